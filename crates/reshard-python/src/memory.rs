//! Memory of Python objects, such as tensors of torch and arrays of numpy.
#![expect(
    unsafe_code,
    reason = "the memory of a Python object is known by its address; the object keeps it alive"
)]

use crate::error::{Raise as _, about};
use pyo3::prelude::*;
use reshard::{
    DType, Region, Tensor,
    model::{HostBuffer, Layout, LentBuffer, ModelError, RegionMut},
};
use std::{collections::BTreeMap, ptr::NonNull, slice, sync::Arc};

/// Elements in the memory of a Python object, as Python describes them.
#[derive(FromPyObject)]
pub(crate) struct Strided {
    /// The address of the memory, and its bytes.
    address: usize,
    bytes: usize,
    /// The first element, counted in elements from the address.
    start: u64,
    shape: Vec<u64>,
    /// Elements between neighbours along each axis.
    strides: Vec<u64>,
    dtype: String,
    /// What keeps the memory alive, and at its address.
    owner: Py<PyAny>,
}

impl Strided {
    /// PyTorch's name of the element type.
    pub(crate) fn dtype(&self) -> &str {
        &self.dtype
    }
}

/// The memory of a Python object, which it owns a reference to.
struct Memory {
    address: NonNull<u8>,
    bytes: usize,
    _owner: Py<PyAny>,
}

// SAFETY: the memory is plain bytes, and the reference to its owner may move between threads. As with torch itself, whoever changes a tensor while it is
// saved or loaded gets any mixture of bytes; Python's contract for `save` says so.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl HostBuffer for Memory {
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: Python gave the address and the length of memory that the owner keeps alive.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above; Python describes memory to read into only if it may be written.
        Some(unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) })
    }
}

/// Memories by address, so that several views of one storage share one buffer, as loads demand it.
#[derive(Default)]
pub(crate) struct Memories(BTreeMap<(usize, usize), Arc<dyn HostBuffer>>);

impl Memories {
    /// The elements as a tensor over their own memory.
    ///
    /// # Errors
    /// An unknown element type; a layout that does not fit the memory.
    pub(crate) fn tensor(&mut self, py: Python<'_>, key: &str, at: Strided) -> PyResult<Tensor> {
        let dtype: DType = dtype(py, key, &at.dtype)?;
        let too_large = || {
            about(
                py,
                "MismatchError",
                key,
                &format!("{key}: its layout is too large"),
            )
        };
        let (shape, strides) = (at.shape.into(), at.strides.into());
        let layout = Layout::new(dtype.size(), at.start, shape, strides).ok_or_else(too_large)?;
        let buffer = self.0.entry((at.address, at.bytes)).or_insert_with(|| {
            Arc::new(Memory {
                // Of no bytes, any address will do.
                address: NonNull::new(at.address as *mut u8).unwrap_or(NonNull::dangling()),
                bytes: if at.address == 0 { 0 } else { at.bytes },
                _owner: at.owner,
            })
        });
        Tensor::with_layout(dtype, layout, Arc::clone(buffer)).raised(py)
    }
}

/// An element type by PyTorch's name.
pub(crate) fn dtype(py: Python<'_>, key: &str, name: &str) -> PyResult<DType> {
    name.parse().map_err(|_| {
        let text = format!("{key}: reshard does not know elements of type {name}");
        about(py, "UnsupportedError", key, &text)
    })
}

/// Regions of memory that no other handle is held on, to be filled.
///
/// # Errors
/// Regions that overlap or lie outside; elements that share memory.
pub(crate) fn regions(
    key: &str,
    into: Tensor,
    which: &[Region],
) -> Result<Vec<RegionMut>, ModelError> {
    let (lent, views) = LentBuffer::new(key, vec![into]).map_err(|(e, _)| e)?;
    let wants: Vec<_> = views
        .iter()
        .flat_map(|view| which.iter().map(move |r| (view, r.clone())))
        .collect();
    lent.regions_mut(&wants)
}
