//! The data of a planned item as blocks of bytes, for authors of formats.

use crate::{Result, StrategyError, ahead::ahead};
use bytes::Bytes;
use reshard_model::{Data, ObjectCodec, Payload, Region, Tensor, TensorSource, Value};
use reshard_plan::{TensorWrite, WriteData, WriteItem, WriteKind};
use std::{fmt, io, sync::Arc};

/// The size of a block. It is small enough to stay in a core's cache between the checksum and the write, and large enough that there are
/// few blocks.
const BLOCK: u64 = 256 << 10;

/// Blocks in row-major order, little-endian.
pub type Blocks = Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;

/// The elements of a planned chunk, in row-major order. They may be in host memory, on a device, or elsewhere.
pub struct Elements(Source);

enum Source {
    Host(Tensor),
    Pulled {
        source: Arc<dyn TensorSource>,
        shape: Region,
        size: u64,
    },
}

impl fmt::Debug for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Host(t) => t.fmt(f),
            Source::Pulled { shape, .. } => write!(f, "Elements({shape})"),
        }
    }
}

impl From<Tensor> for Elements {
    fn from(t: Tensor) -> Self {
        Self(Source::Host(t))
    }
}

impl Elements {
    /// The elements of `chunk`, which `item` writes.
    ///
    /// # Errors
    /// [`StrategyError::Invalid`] if there is no data, or the data have another type or shape than planned.
    pub fn of(item: &WriteItem, chunk: &TensorWrite, data: Data) -> Result<Self> {
        check_spec(item, chunk, &data)?;
        let size = chunk.dtype.size();
        Ok(Self(match data {
            Data::Host(h) => Source::Host(h),
            Data::Device(d) => {
                let shape = Region::whole(d.shape());
                Source::Pulled {
                    source: Arc::new(d),
                    shape,
                    size,
                }
            }
            Data::Lazy(source) => Source::Pulled {
                shape: Region::whole(&source.shape()),
                source,
                size,
            },
            Data::None => {
                let what = format!("{}: there is no data to save", item.key);
                return Err(StrategyError::Invalid(what));
            }
        }))
    }

    /// The tensor, if they lie in host memory.
    pub fn host(&self) -> Option<&Tensor> {
        if let Source::Host(t) = &self.0 {
            Some(t)
        } else {
            None
        }
    }

    /// Their bytes.
    pub fn blocks(self) -> Blocks {
        match self.0 {
            Source::Host(t) => Box::new(t.blocks(BLOCK).map(Ok)),
            Source::Pulled {
                source,
                shape,
                size,
            } => {
                let bytes = source.block().unwrap_or(0).clamp(BLOCK * 4, BLOCK * 64);
                ahead(shape, size, (bytes, source.ahead()), move |r| {
                    let mut out = vec![0; (r.volume().unwrap_or(0) * size) as usize];
                    source.read(&r, &mut out).map_err(io::Error::other)?;
                    Ok(out.into())
                })
            }
        }
    }
}

/// Checks that a planner has found what an item writes: an object, or elements of the planned type and shape.
pub(crate) fn check_planned(item: &WriteItem, data: &WriteData) -> Result<()> {
    match (&item.kind, data) {
        (WriteKind::Tensor(chunk), WriteData::Tensor(data)) => check_spec(item, chunk, data),
        (WriteKind::Object { .. }, WriteData::Object(_)) => Ok(()),
        _ => Err(other_kind(item)),
    }
}

/// The error of a planner that found an object for a tensor, or a tensor for an object.
pub fn other_kind(item: &WriteItem) -> StrategyError {
    StrategyError::Invalid(format!(
        "{}: an object was given for a tensor, or a tensor for an object",
        item.key
    ))
}

fn check_spec(item: &WriteItem, chunk: &TensorWrite, data: &Data) -> Result<()> {
    let (planned, shape) = (chunk.dtype, &chunk.region.lengths);
    match data.spec() {
        Some((dtype, have)) if dtype != planned || !is_without_prepended(&have, shape) => {
            let what = format!(
                "{}: data of {dtype} {have} was given for a chunk of {planned} {shape}; a planner that changes one must change the other",
                item.key
            );
            Err(StrategyError::Invalid(what))
        }
        _ => Ok(()),
    }
}

/// Whether a local tensor of this shape is the chunk, which may have prepended axes of extent 1.
fn is_without_prepended(local: &[u64], chunk: &[u64]) -> bool {
    let prepended = chunk
        .len()
        .checked_sub(local.len())
        .and_then(|n| chunk.split_at_checked(n));
    prepended.is_some_and(|(ones, rest)| rest == local && ones.iter().all(|n| *n == 1))
}

/// An object as `codec` writes it. If it is already encoded by the same codec, it is returned unchanged.
///
/// # Errors
/// There is no object, it can't be encoded, or another codec has encoded it.
pub fn encode_object(codec: &dyn ObjectCodec, key: &str, payload: Payload) -> Result<Bytes> {
    match payload {
        Payload::Encoded { codec: name, bytes } if name == codec.name() => Ok(bytes),
        Payload::Value(v) => codec.encode(&v).map_err(|source| StrategyError::Object {
            key: key.into(),
            what: "it can't be encoded",
            source,
        }),
        Payload::Encoded { codec: name, .. } => {
            let what =
                format!("{key}: an object encoded as {name} can't be stored here; decode it first");
            Err(StrategyError::Invalid(what))
        }
        Payload::None => Err(StrategyError::Invalid(format!(
            "object {key} has no data to save"
        ))),
    }
}

/// The value of an object. If a codec knows more than that it can't decode the object, its error is a [`StrategyError`].
///
/// # Errors
/// It can't be decoded, or exceeds a limit.
pub fn decode_object(codec: &dyn ObjectCodec, key: &str, payload: Payload) -> Result<Value> {
    let bytes = match payload {
        Payload::Value(v) => return Ok(v),
        Payload::None => return Ok(Value::None),
        Payload::Encoded { bytes, .. } => bytes,
    };
    codec
        .decode(&bytes)
        .map_err(|source| match source.downcast() {
            Ok(told) => match *told {
                StrategyError::Limit { what, option, max } => StrategyError::Limit {
                    what: format!("object {key}: {what}"),
                    option,
                    max,
                },
                told => told,
            },
            Err(source) => StrategyError::Object {
                key: key.into(),
                what: "it can't be decoded",
                source,
            },
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::{BoxError, DType, Dims};

    /// Zeros that want to be read in blocks of so many bytes.
    struct Zeros(Option<u64>);

    impl TensorSource for Zeros {
        fn dtype(&self) -> DType {
            DType::Float32
        }

        fn shape(&self) -> Dims {
            [32, (1 << 20) / 4].into()
        }

        fn block(&self) -> Option<u64> {
            self.0
        }

        fn read(&self, _: &Region, out: &mut [u8]) -> Result<(), BoxError> {
            out.fill(0);
            Ok(())
        }
    }

    #[test]
    fn a_source_says_how_much_is_read_at_a_time_within_bounds() {
        const MIB: u64 = 1 << 20;
        let blocks = |wants| {
            let source = Source::Pulled {
                source: Arc::new(Zeros(wants)),
                shape: Region::whole(&[32, MIB / 4]),
                size: 4,
            };
            let blocks = Elements(source).blocks().map(|b| b.unwrap().len() as u64);
            blocks.collect::<Vec<_>>()
        };
        assert_eq!(blocks(None), [MIB; 32]);
        assert_eq!(blocks(Some(1)), [MIB; 32]);
        assert_eq!(blocks(Some(8 * MIB)), [8 * MIB; 4]);
        assert_eq!(blocks(Some(u64::MAX)), [16 * MIB; 2]);
    }

    #[test]
    fn only_leading_axes_of_extent_1_may_be_missing() {
        let is = |local: &[u64], chunk: &[u64]| is_without_prepended(local, chunk);
        assert!(
            is(&[2, 3], &[2, 3])
                && is(&[2, 3], &[1, 1, 2, 3])
                && is(&[], &[1])
                && is(&[1, 2], &[1, 1, 2])
        );
        assert!(!is(&[2, 3], &[2, 1, 3]) && !is(&[2, 3], &[2, 3, 1]) && !is(&[2, 3], &[4, 2, 3]));
        assert!(!is(&[1, 2, 3], &[2, 3]) && !is(&[3, 2], &[2, 3]) && !is(&[2], &[]));
    }
}
