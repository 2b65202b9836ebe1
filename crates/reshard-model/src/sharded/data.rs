//! Where the elements of a piece are.

use crate::{
    BoxError, DType, DeviceTensor, Dims, Layout, ModelError, Region, Tensor, cast::convert,
};
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

/// Elements that are produced on demand, such as those of a file or a device.
///
/// A save checks that type and shape are the planned ones before it reads.
pub trait TensorSource: Send + Sync {
    /// Type of the elements that [`read`](Self::read) returns.
    fn dtype(&self) -> DType;

    /// Elements per axis.
    fn shape(&self) -> Dims;

    /// Reads the elements of a region, in row-major order, little-endian. The region lies in the [`shape`](Self::shape) and has as many
    /// axes. `out` has exactly the length of the elements in bytes.
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

    /// How many bytes may be read on another thread before they are written, as far as the source is concerned. 0, the default, means none: a
    /// read is made when its bytes are needed. Copies from a device run ahead, as far as the save allows.
    fn ahead(&self) -> u64 {
        0
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

    /// Type and shape of the elements, if there are elements.
    pub fn spec(&self) -> Option<(DType, Dims)> {
        match self {
            Self::None => None,
            Self::Host(t) => Some((t.dtype(), t.shape().clone())),
            Self::Device(t) => Some((t.dtype(), t.shape().clone())),
            Self::Lazy(source) => Some((source.dtype(), source.shape())),
        }
    }

    /// How elements in memory of the host or of a device lie in their buffer.
    pub fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Host(t) => Some(t.layout()),
            Self::Device(t) => Some(t.layout()),
            Self::None | Self::Lazy(_) => None,
        }
    }

    /// A number that is equal for data with one buffer, as long as both are there.
    pub fn buffer_id(&self) -> Option<usize> {
        match self {
            Self::Host(t) => Some(t.buffer_id()),
            Self::Device(t) => Some(Arc::as_ptr(t.buffer()).cast::<u8>() as usize),
            Self::None | Self::Lazy(_) => None,
        }
    }

    /// The elements as a source, wherever they are. A planner that changes elements wraps it in a source of its own.
    pub fn source(&self) -> Option<Arc<dyn TensorSource>> {
        match self {
            Self::None => None,
            Self::Host(t) => Some(Arc::new(t.clone())),
            Self::Device(t) => Some(Arc::new(t.clone())),
            Self::Lazy(source) => Some(Arc::clone(source)),
        }
    }

    /// The elements in host memory, if there are elements. Those of a device are copied, and those of a source are read.
    ///
    /// # Errors
    /// [`ModelError::Source`] with the error of the device or source; no memory.
    pub fn to_host(&self, key: &str) -> crate::Result<Option<Tensor>> {
        Ok(match self {
            Self::None => None,
            Self::Host(t) => Some(t.clone()),
            Self::Device(t) => Some(t.to_host(key)?),
            Self::Lazy(source) => {
                let shape = source.shape();
                let mut out = Tensor::zeros(key, source.dtype(), &shape)?;
                let read = source.read(&Region::whole(&shape), out.new_bytes(key)?);
                read.map_err(|source| ModelError::Source {
                    key: key.into(),
                    what: "reading its elements".into(),
                    source,
                })?;
                Some(out)
            }
        })
    }

    /// The same elements with another type, as [`Tensor::cast`]. Elements in host memory are cast now, all others while they are read.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if there is no such cast, or no memory.
    ///
    /// ```
    /// use reshard_model::{DType, Data, Tensor};
    /// let data = Data::from(Tensor::from_vec(&[2], vec![1.5f32, -2.5])?);
    /// assert_eq!(data.cast(DType::Float16)?.spec(), Some((DType::Float16, [2].into())));
    /// # Ok::<(), reshard_model::ModelError>(())
    /// ```
    pub fn cast(&self, to: DType) -> crate::Result<Self> {
        let source = match self {
            Self::Host(t) => return Ok(Self::Host(t.cast(to)?)),
            other => other.source(),
        };
        match source {
            Some(source) if source.dtype() != to => {
                // An empty cast fails if there is none between these types.
                convert(source.dtype(), &[], to, &mut [])?;
                Ok(Self::Lazy(Arc::new(CastSource { source, to })))
            }
            _ => Ok(self.clone()),
        }
    }

    pub(crate) fn known_spec(&self, key: &str) -> crate::Result<(DType, Dims)> {
        self.spec().ok_or_else(|| {
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
                region: region.clone(),
            })),
        }
    }
}

/// A region of a source.
struct Part {
    source: Arc<dyn TensorSource>,
    region: Region,
}

impl TensorSource for Part {
    fn dtype(&self) -> DType {
        self.source.dtype()
    }

    fn shape(&self) -> Dims {
        self.region.lengths.clone()
    }

    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn ahead(&self) -> u64 {
        self.source.ahead()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.source.read(&region.shifted(&self.region.offsets), out)
    }
}

/// A source whose elements are cast while they are read.
struct CastSource {
    source: Arc<dyn TensorSource>,
    to: DType,
}

impl TensorSource for CastSource {
    fn dtype(&self) -> DType {
        self.to
    }

    fn shape(&self) -> Dims {
        self.source.shape()
    }

    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn ahead(&self) -> u64 {
        self.source.ahead()
    }

    fn identity(&self) -> Option<String> {
        let stored = self.source.identity()?;
        Some(format!("{stored} as {}", self.to))
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let from = self.source.dtype();
        let elements = out.len() / self.to.size() as usize;
        let mut stored = vec![0; elements * from.size() as usize];
        self.source.read(region, &mut stored)?;
        Ok(convert(from, &stored, self.to, out)?)
    }
}

impl TensorSource for Tensor {
    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn shape(&self) -> Dims {
        self.shape().clone()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let elements = region
            .volume()
            .and_then(|n| n.checked_mul(self.dtype().size()));
        if !region.fits(self.shape()) || elements != Some(out.len() as u64) {
            return Err(format!(
                "{region} does not lie in {}, or does not fit the memory",
                self.shape()
            )
            .into());
        }
        let mut rest = out;
        for block in self.narrow(region).blocks(BLOCK) {
            let (now, later) = rest.split_at_mut(block.len());
            now.copy_from_slice(&block);
            rest = later;
        }
        Ok(())
    }
}

/// Elements that are not contiguous are copied through memory of this size.
const BLOCK: u64 = 256 << 10;
