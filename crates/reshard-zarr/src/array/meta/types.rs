//! What the metadata of an array or a group say.

use super::keys::ChunkKeys;
use reshard_model::{DType, Dims, Layout};
use reshard_strategy::Refused;

/// An array or a group of Zarr v3.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    /// An array, or why it is refused.
    Array(Box<Result<ArrayMeta, Refused>>),
    /// A group, with the nodes below it by path, if it has consolidated metadata. They are in the order of the file.
    Group(Vec<(String, Node)>),
}

/// An array, of either version of Zarr. Shapes count elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrayMeta {
    pub(crate) shape: Dims,
    /// The shape of what one file holds: a chunk, or a shard. No length is 0. Files at the end of an axis are full, too.
    pub(crate) chunk: Dims,
    pub(crate) dtype: DType,
    /// One element, little-endian, that stands where a file is missing.
    pub(crate) fill: Vec<u8>,
    pub(crate) keys: ChunkKeys,
    pub(crate) encoding: Encoding,
}

/// How a file holds its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// The file is one chunk.
    Chunk(Stored),
    /// The file is a shard.
    Sharded(Sharding),
}

/// How the bytes of one chunk become elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Whether elements are big-endian.
    pub(crate) big_endian: bool,
    /// The axes from the one with the largest step to the one with the smallest. `None` if that is row-major order.
    pub(crate) axes: Option<Vec<usize>>,
    /// What was done to the bytes, in the order in which a writer did it.
    pub(crate) codecs: Vec<Codec>,
}

/// From bytes to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Gzip,
    Zlib,
    Zstd,
    Blosc,
    /// A checksum of four bytes, behind what it covers or before it.
    Crc32c {
        at_start: bool,
    },
}

/// How a shard holds its inner chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sharding {
    /// The shape of an inner chunk. It divides the shape of the shard.
    pub(crate) inner: Dims,
    pub(crate) stored: Stored,
    /// Whether the index is at the start of the file.
    pub(crate) index_at_start: bool,
    /// Whether the numbers of the index are big-endian.
    pub(crate) index_big_endian: bool,
    /// Whether the index has a CRC-32C behind it.
    pub(crate) index_crc: bool,
}

impl Codec {
    /// Its name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
            Self::Blosc => "blosc",
            Self::Crc32c { .. } => "crc32c",
        }
    }
}

impl Stored {
    /// Whether a file holds the elements themselves, in this machine's form: little-endian, in any order of axes.
    pub(crate) fn is_plain(&self, dtype: DType) -> bool {
        self.codecs.is_empty() && !self.swaps(dtype)
    }

    /// Whether bytes of words have to be swapped.
    pub(crate) fn swaps(&self, dtype: DType) -> bool {
        self.big_endian && dtype.word() > 1
    }

    /// Where the elements of a chunk lie in its decoded bytes. `None` if their size does not fit 63 bits.
    pub(crate) fn layout(&self, dtype: DType, chunk: &[u64]) -> Option<Layout> {
        let Some(axes) = &self.axes else {
            return Layout::contiguous(dtype.size(), chunk);
        };
        let mut strides = Dims::splat(1, chunk.len());
        let mut step = 1u64;
        for &axis in axes.iter().rev() {
            *strides.get_mut(axis)? = step;
            step = step.checked_mul((*chunk.get(axis)?).max(1))?;
        }
        Layout::new(dtype.size(), 0, chunk.into(), strides)
    }
}

impl ArrayMeta {
    /// The shape of what is read at once: a chunk, or an inner chunk of a shard.
    pub(crate) fn cell(&self) -> &Dims {
        match &self.encoding {
            Encoding::Chunk(_) => &self.chunk,
            Encoding::Sharded(sharding) => &sharding.inner,
        }
    }

    /// How a chunk, or an inner chunk of a shard, is stored.
    pub(crate) fn stored(&self) -> &Stored {
        match &self.encoding {
            Encoding::Chunk(stored) => stored,
            Encoding::Sharded(sharding) => &sharding.stored,
        }
    }

    /// Bytes of the elements of one cell, as they are decoded.
    pub(crate) fn cell_bytes(&self) -> u64 {
        let elements = self.cell().volume().unwrap_or(u64::MAX);
        elements.saturating_mul(self.dtype.size())
    }

    /// Checks that sizes fit 63 bits, and that shapes and encoding fit each other.
    pub(crate) fn checked(mut self) -> Result<Self, Refused> {
        let (shape, chunk) = (&self.shape, &self.chunk);
        if shape.len() != chunk.len() {
            return Err(Refused::damaged(format!(
                "its shape {shape} and its chunks {chunk} differ in the number of axes"
            )));
        }
        for axis in 0..shape.len() {
            if self.chunk[axis] == 0 {
                if self.shape[axis] > 0 {
                    return Err(Refused::damaged(format!(
                        "its chunks {} have no element, but its shape is {}",
                        self.chunk, self.shape
                    )));
                }
                // Some writers give an empty axis empty chunks.
                self.chunk[axis] = 1;
            }
        }
        for (what, lengths) in [("shape", &self.shape), ("chunk", &self.chunk)] {
            if Layout::contiguous(self.dtype.size(), lengths).is_none() {
                return Err(Refused::damaged(format!(
                    "its {what} {lengths} has more bytes than 63 bits can count"
                )));
            }
        }
        if let Encoding::Sharded(sharding) = &self.encoding {
            let inner = &sharding.inner;
            let divides = |(whole, part): (&u64, &u64)| *part > 0 && whole % part == 0;
            if inner.len() != self.chunk.len() || !self.chunk.iter().zip(inner).all(divides) {
                return Err(Refused::damaged(format!(
                    "its inner chunks {inner} do not divide its shards {}",
                    self.chunk
                )));
            }
        }
        Ok(self)
    }
}
