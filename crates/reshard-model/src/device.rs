use crate::{BoxError, DType, Dims, Layout, ModelError, Region, Result, Tensor, TensorSource};
use std::{fmt, sync::Arc};

/// Memory of a device that the host can't reach by pointers.
///
/// # Contract
/// Copies move exactly the elements that the layout selects, in row-major order of its shape; a copy to the host has happened
/// when the call returns, a copy to the device when [`synchronise`](Self::synchronise) returns.
pub trait DeviceBuffer: fmt::Debug + Send + Sync {
    /// PyTorch's name of the device, such as `cuda:0`.
    fn device(&self) -> &str;
    /// Size in bytes.
    fn nbytes(&self) -> u64;
    /// New memory on the same device.
    ///
    /// # Errors
    /// What the device says.
    fn allocate(&self, nbytes: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError>;
    /// Copies elements to `out`, which has exactly their bytes.
    ///
    /// # Errors
    /// What the device says.
    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError>;
    /// Copies `elements` to the device.
    ///
    /// # Errors
    /// What the device says.
    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError>;
    /// Waits until all copies to the device are done.
    ///
    /// # Errors
    /// What the device says.
    fn synchronise(&self) -> Result<(), BoxError>;
}

/// A tensor over device memory. `Clone` copies a handle.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    dtype: DType,
    layout: Layout,
    buffer: Arc<dyn DeviceBuffer>,
}

impl DeviceTensor {
    /// A row-major tensor over a device buffer.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the buffer is too small.
    pub fn new(dtype: DType, shape: &[u64], buffer: Arc<dyn DeviceBuffer>) -> Result<Self> {
        let layout = Layout::contiguous(dtype.size(), shape).filter(|l| l.hull().end <= buffer.nbytes());
        let layout = layout.ok_or_else(|| {
            let (shape, have) = (Dims::from(shape), buffer.nbytes());
            ModelError::invalid(
                "",
                format!("shape {shape} of {dtype} does not fit a device buffer of {have} bytes"),
            )
        })?;
        Ok(Self { dtype, layout, buffer })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements per axis.
    pub fn shape(&self) -> &Dims {
        self.layout.shape()
    }

    /// The memory.
    pub fn buffer(&self) -> &Arc<dyn DeviceBuffer> {
        &self.buffer
    }

    /// Where the elements lie in the buffer.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A view of a part of it; `region` must lie in the shape.
    pub fn narrow(&self, region: &Region) -> Self {
        Self { dtype: self.dtype, layout: self.layout.narrow(region), buffer: Arc::clone(&self.buffer) }
    }

    /// Parts that are neighbours along the first axis in one buffer, as [`narrow`](Self::narrow) makes them, as one tensor.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when they aren't.
    pub fn concat(key: &str, parts: &[Self]) -> Result<Self> {
        let fail = || {
            ModelError::invalid(
                key,
                "parts in device memory that aren't neighbours in one buffer can't be put together",
            )
        };
        let first = parts.first().ok_or_else(fail)?;
        if parts.iter().any(|p| p.dtype != first.dtype || !Arc::ptr_eq(&p.buffer, &first.buffer)) {
            return Err(fail());
        }
        let layout = Layout::stacked(parts.iter().map(|p| &p.layout)).ok_or_else(fail)?;
        Ok(Self { dtype: first.dtype, layout, buffer: Arc::clone(&first.buffer) })
    }

    /// A copy in host memory.
    ///
    /// # Errors
    /// [`ModelError::Source`] with what the device says.
    pub fn to_host(&self, key: &str) -> Result<Tensor> {
        let mut host = bytemuck::allocation::try_zeroed_vec(self.layout.bytes() as usize)
            .map_err(|()| ModelError::invalid(key, "no host memory for a copy from the device"))?;
        let copied = self.buffer.copy_to_host(&self.layout, &mut host);
        copied.map_err(|source| self.failed(key, "copying from", source))?;
        Tensor::new(self.dtype, self.shape(), host)
    }

    /// Copies a host tensor of equal type and shape to the device, and waits for it.
    ///
    /// # Errors
    /// [`ModelError::Source`] with what the device says.
    pub fn fill(&self, key: &str, host: &Tensor) -> Result<()> {
        let copied = self.buffer.copy_from_host(&self.layout, &host.to_bytes());
        copied
            .and_then(|()| self.buffer.synchronise())
            .map_err(|source| self.failed(key, "copying to", source))
    }

    fn failed(&self, key: &str, what: &str, source: BoxError) -> ModelError {
        ModelError::Source { key: key.into(), what: format!("{what} {}", self.buffer.device()), source }
    }
}

impl TensorSource for DeviceTensor {
    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.buffer.copy_to_host(&self.layout.narrow(region), out)
    }
}
