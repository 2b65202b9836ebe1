//! For tests: devices that are none.

use crate::{BoxError, DeviceBuffer, Layout, Segments};
use std::sync::{Arc, Mutex, PoisonError};

/// Device memory that lies in the host, behind copies.
#[derive(Debug)]
pub struct FakeDevice(Mutex<Vec<u8>>);

impl FakeDevice {
    /// Memory of this many zero bytes.
    pub fn new(nbytes: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; nbytes as usize])))
    }

    /// A copy of the memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl DeviceBuffer for FakeDevice {
    fn device(&self) -> &'static str {
        "fake:0"
    }

    fn nbytes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn allocate(&self, nbytes: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        Ok(Self::new(nbytes))
    }

    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flat = Layout::contiguous(from.item(), from.shape()).ok_or("too large")?;
        for (s, d, n) in Segments::row_major(from, &flat) {
            out[d as usize..(d + n) as usize]
                .copy_from_slice(&memory[s as usize..(s + n) as usize]);
        }
        Ok(())
    }

    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flat = Layout::contiguous(to.item(), to.shape()).ok_or("too large")?;
        for (s, d, n) in Segments::row_major(&flat, to) {
            memory[d as usize..(d + n) as usize]
                .copy_from_slice(&elements[s as usize..(s + n) as usize]);
        }
        Ok(())
    }

    fn synchronise(&self) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A device of 8 bytes that is gone: what is copied to it is taken, and nothing comes back.
#[derive(Debug)]
pub struct LostDevice;

impl DeviceBuffer for LostDevice {
    fn device(&self) -> &'static str {
        "lost:0"
    }
    fn nbytes(&self) -> u64 {
        8
    }
    fn allocate(&self, _: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        Err("gone".into())
    }
    fn copy_to_host(&self, _: &Layout, _: &mut [u8]) -> Result<(), BoxError> {
        Err("gone".into())
    }
    fn copy_from_host(&self, _: &Layout, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
    fn synchronise(&self) -> Result<(), BoxError> {
        Err("gone".into())
    }
}
