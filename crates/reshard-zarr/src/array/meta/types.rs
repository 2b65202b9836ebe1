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
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ArrayMeta {
    pub(crate) shape: Dims,
    /// The shape of what one file holds: a chunk, or a shard. No length is 0. Files at the end of an axis are full, too.
    pub(crate) chunk: Dims,
    pub(crate) dtype: DType,
    /// The stated type, if `dtype` is only the closest one.
    pub(crate) stated: Option<Approximated>,
    /// One element, little-endian, that stands where a file is missing.
    pub(crate) fill: Vec<u8>,
    pub(crate) keys: ChunkKeys,
    pub(crate) encoding: Encoding,
}

/// How a file holds its elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Encoding {
    /// The file is one chunk.
    Chunk(Stored),
    /// The file is a shard.
    Sharded(Sharding),
}

/// How the bytes of one chunk become elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored {
    /// Whether elements are big-endian.
    pub(crate) big_endian: bool,
    /// The axes from the one with the largest step to the one with the smallest. `None` if that is row-major order.
    pub(crate) axes: Option<Vec<usize>>,
    /// What was done to the bytes, in the order in which a writer did it.
    pub(crate) codecs: Vec<Codec>,
}

/// From bytes to bytes. Filters on numbers count as such codecs, because they know how their numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Codec {
    Gzip,
    Zlib,
    Zstd,
    Bz2,
    Blosc,
    /// A block of LZ4 after its decoded length, as numcodecs writes it.
    Lz4,
    /// A checksum of four bytes, behind what it covers or before it.
    Checksum {
        sum: Sum,
        at_start: bool,
    },
    /// The first bytes of all elements, then the second ones, and so on.
    Shuffle {
        element: usize,
    },
    /// Differences of neighbours, stored in another type or the same.
    Delta(Recoded),
    /// Numbers that were shifted, scaled and rounded.
    Scale {
        offset: f64,
        scale: f64,
        numbers: Recoded,
    },
    /// Eight bools in a byte, after a byte with the number of unused bits.
    PackBits,
    /// Signed integers of fewer than 8 bits, one in each byte.
    Narrow {
        bits: u32,
    },
}

/// An algorithm for checksums of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Crc32c,
    Crc32,
    Adler32,
    /// As in HDF5.
    Fletcher32,
}

/// The types of numbers before and after a filter encoded them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recoded {
    pub(crate) decoded: Numbers,
    pub(crate) encoded: Numbers,
}

/// A data type of Zarr, as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) dtype: DType,
    pub(crate) big_endian: bool,
    /// The stated type, if `dtype` is only the closest one.
    pub(crate) stated: Option<Approximated>,
}

/// A type for which there is no element type, so that elements are read as another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Approximated {
    /// Signed integers of so many bits, read as int8.
    Narrow(u32),
    /// Points in time or durations of NumPy, read as int64. The text is the name of the type.
    Time(Box<str>),
}

/// How a filter stores numbers: integers, or floats of 16, 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) dtype: DType,
    pub(crate) big_endian: bool,
}

/// How a shard holds its inner chunks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sharding {
    /// The shape of an inner chunk. It divides the shape of the shard.
    pub(crate) inner: Dims,
    /// The axes of the array, from the one whose steps in the index are the largest. `None` if that is row-major order.
    pub(crate) axes: Option<Vec<usize>>,
    /// How an inner chunk holds its elements. It may be a shard, too.
    pub(crate) within: Box<Encoding>,
    /// Whether the index is at the start of the file.
    pub(crate) index_at_start: bool,
    /// Whether the numbers of the index are big-endian.
    pub(crate) index_big_endian: bool,
    /// Whether the index has a CRC-32C behind it.
    pub(crate) index_crc: bool,
}

impl Encoding {
    /// How the smallest chunks are stored.
    pub(crate) fn stored(&self) -> &Stored {
        match self {
            Self::Chunk(stored) => stored,
            Self::Sharded(sharding) => sharding.within.stored(),
        }
    }

    fn stored_mut(&mut self) -> &mut Stored {
        match self {
            Self::Chunk(stored) => stored,
            Self::Sharded(sharding) => sharding.within.stored_mut(),
        }
    }

    /// The shape of the smallest chunks of a file that holds `chunk`.
    pub(crate) fn cell<'a>(&'a self, chunk: &'a Dims) -> &'a Dims {
        match self {
            Self::Chunk(_) => chunk,
            Self::Sharded(sharding) => sharding.within.cell(&sharding.inner),
        }
    }

    /// Checks that inner chunks divide their shards.
    fn check(&self, chunk: &Dims) -> Result<(), Refused> {
        let Self::Sharded(Sharding { inner, within, .. }) = self else {
            return Ok(());
        };
        let divides = |(whole, part): (&u64, &u64)| *part > 0 && whole % part == 0;
        if inner.len() != chunk.len() || !chunk.iter().zip(inner).all(divides) {
            return Err(Refused::damaged(format!(
                "its inner chunks {inner} do not divide its shards {chunk}"
            )));
        }
        within.check(inner)
    }
}

impl Approximated {
    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Narrow(bits) => format!("int{bits}"),
            Self::Time(name) => name.to_string(),
        }
    }

    /// What turns its stored bytes into elements.
    pub(crate) fn codec(&self) -> Option<Codec> {
        match self {
            Self::Narrow(bits) => Some(Codec::Narrow { bits: *bits }),
            Self::Time(_) => None,
        }
    }
}

impl Codec {
    /// Its name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
            Self::Bz2 => "bz2",
            Self::Blosc => "blosc",
            Self::Lz4 => "lz4",
            Self::Checksum { sum, .. } => sum.name(),
            Self::Shuffle { .. } => "shuffle",
            Self::Delta(_) => "delta",
            Self::Scale { .. } => "fixedscaleoffset",
            Self::PackBits => "packbits",
            Self::Narrow { bits: 2 } => "int2",
            Self::Narrow { .. } => "int4",
        }
    }

    /// Whether there is a checksum of what it was given. Those of zstd are optional.
    pub(crate) fn has_sum(self) -> bool {
        matches!(
            self,
            Self::Gzip | Self::Zlib | Self::Bz2 | Self::Checksum { .. }
        )
    }
}

impl Sum {
    /// Its name as a codec.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Crc32 => "crc32",
            Self::Adler32 => "adler32",
            Self::Fletcher32 => "fletcher32",
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
        self.encoding.cell(&self.chunk)
    }

    /// How a chunk, or an inner chunk of a shard, is stored.
    pub(crate) fn stored(&self) -> &Stored {
        self.encoding.stored()
    }

    /// Bytes of the elements of one cell, as they are decoded.
    pub(crate) fn cell_bytes(&self) -> u64 {
        let elements = self.cell().volume().unwrap_or(u64::MAX);
        elements.saturating_mul(self.dtype.size())
    }

    /// Adds what the stated type needs. Checks that sizes fit 63 bits, and that shapes and encoding fit each other.
    pub(crate) fn checked(mut self) -> Result<Self, Refused> {
        if let Some(codec) = self.stated.as_ref().and_then(Approximated::codec) {
            let stored = self.encoding.stored_mut();
            stored.codecs.insert(0, codec);
        }
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
        self.encoding.check(&self.chunk)?;
        Ok(self)
    }
}
