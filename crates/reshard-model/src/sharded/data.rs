//! Where the elements of a piece are.

use crate::{BoxError, DType, DeviceTensor, Dims, ModelError, Region, Tensor};
use std::{fmt, sync::Arc};

/// Where the elements of a piece are.
#[derive(Clone, Default)]
pub enum Data {
    /// Nowhere: there is only metadata. A load allocates memory.
    #[default]
    None,
    /// In host memory.
    Host(Tensor),
    /// In device memory.
    Device(DeviceTensor),
    /// Elsewhere: they are read while they are written, so that a conversion runs in bounded memory.
    Lazy(Arc<dyn TensorSource>),
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Host(t) => t.fmt(f),
            Self::Device(t) => t.fmt(f),
            Self::Lazy(_) => f.write_str("Lazy"),
        }
    }
}

/// Elements that are not in host memory.
pub trait TensorSource: Send + Sync {
    /// Reads the elements of a region of the piece, in row-major order, little-endian. `out` has exactly their length in
    /// bytes.
    ///
    /// It may block. Usually it is called on I/O threads. There are exceptions if ranks write for each other in a save: a rank
    /// writes the files with items of other ranks on a thread of their own, and it reads what it gives away on the thread
    /// that polls the save. A format may also read while it makes its layout, on the thread that does so.
    ///
    /// # Errors
    /// Any error of the source.
    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError>;

    /// About how many bytes a read should ask for, if small reads cost much. By default the caller decides.
    fn block(&self) -> Option<u64> {
        None
    }

    /// Which elements these are, if other sources may have the same ones: two sources of one save that say the same have the same elements in
    /// the same row-major order. A format that can store elements once for several tensors does so then, and reads only one of the sources. By
    /// default nobody knows.
    fn identity(&self) -> Option<String> {
        None
    }
}

impl From<Tensor> for Data {
    fn from(t: Tensor) -> Self {
        Self::Host(t)
    }
}

impl From<DeviceTensor> for Data {
    fn from(t: DeviceTensor) -> Self {
        Self::Device(t)
    }
}

impl Data {
    /// The tensor, if it is in host memory.
    pub fn host(&self) -> Option<&Tensor> {
        if let Self::Host(t) = self {
            Some(t)
        } else {
            None
        }
    }

    /// Fetches the reference counts of host buffers into the caches. Call it before you clone or drop many handles: these are
    /// fetched side by side, and those of clones and drops one after the other.
    pub fn prefetch<'a>(data: impl IntoIterator<Item = &'a Self>) {
        // The count lies beside the length.
        let bytes = |t: &Tensor| t.buffer_bytes().len();
        let tensors = data.into_iter().filter_map(Self::host);
        std::hint::black_box(tensors.map(bytes).fold(0, usize::wrapping_add));
    }

    /// Type and shape of the elements, where they are known without reading.
    pub fn spec(&self) -> Option<(DType, &Dims)> {
        match self {
            Self::Host(t) => Some((t.dtype(), t.shape())),
            Self::Device(t) => Some((t.dtype(), t.shape())),
            Self::None | Self::Lazy(_) => None,
        }
    }

    pub(crate) fn known_spec(&self, key: &str) -> crate::Result<(DType, Dims)> {
        let known = self.spec().map(|(dtype, shape)| (dtype, shape.clone()));
        known.ok_or_else(|| {
            let what =
                "the type and shape of the data are not known; declare them, and add the data with `with_data`";
            ModelError::invalid(key, what)
        })
    }

    /// A part of it, without a copy; `region` must lie in the shape.
    pub fn narrow(&self, region: &Region) -> Self {
        match self {
            Self::None => Self::None,
            Self::Host(t) => Self::Host(t.narrow(region)),
            Self::Device(t) => Self::Device(t.narrow(region)),
            Self::Lazy(source) => Self::Lazy(Arc::new(Part {
                source: Arc::clone(source),
                at: region.offsets.clone(),
            })),
        }
    }
}

/// A part of a source, from an offset on.
struct Part {
    source: Arc<dyn TensorSource>,
    at: Dims,
}

impl TensorSource for Part {
    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let offsets: Dims = self
            .at
            .iter()
            .zip(&region.offsets)
            .map(|(a, b)| a + b)
            .collect();
        self.source.read(
            &Region {
                offsets,
                lengths: region.lengths.clone(),
            },
            out,
        )
    }
}
