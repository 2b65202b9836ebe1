//! What a planned item is made of, as blocks of bytes: for whoever writes a format.

use crate::{Result, StrategyError};
use bytes::Bytes;
use reshard_model::{BoxError, Data, Dims, ObjectCodec, Payload, Region, Tensor, TensorSource, Value};
use reshard_plan::{TensorWrite, WriteItem};
use std::{fmt, io, sync::Arc};

/// Small enough to stay in a core's cache between the checksum and the write, large enough to be few.
const BLOCK: u64 = 256 << 10;

/// Blocks in row-major order, little-endian.
pub type Blocks = Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;

/// The elements of a planned chunk, pulled in row-major order, wherever they lie.
pub struct Elements(Source);

enum Source {
    Host(Tensor),
    Pulled { source: Arc<dyn TensorSource>, shape: Region, size: u64 },
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
    /// The elements of `chunk`, which is what `item` writes.
    ///
    /// # Errors
    /// [`StrategyError::Invalid`] when there is no data, or data of another type or shape than planned.
    pub fn of(item: &WriteItem, chunk: &TensorWrite, data: Data) -> Result<Self> {
        let shape = &chunk.region.lengths;
        let invalid = |what: String| StrategyError::Invalid(format!("{}: {what}", item.key));
        if let Some((dtype, have)) = data.spec()
            && (dtype != chunk.dtype || without_ones(have) != without_ones(shape))
        {
            let planned = chunk.dtype;
            return Err(invalid(format!(
                "data of {dtype} {have} was given for a chunk of {planned} {shape}"
            )));
        }
        let size = chunk.dtype.size();
        Ok(Self(match data {
            Data::Host(h) => Source::Host(h),
            Data::Device(d) => {
                let shape = Region::whole(d.shape());
                Source::Pulled { source: Arc::new(d), shape, size }
            }
            Data::Lazy(source) => Source::Pulled { source, shape: Region::whole(shape), size },
            Data::None => return Err(invalid("there is no data to save".into())),
        }))
    }

    /// The tensor, if they lie in host memory.
    pub fn host(&self) -> Option<&Tensor> {
        if let Source::Host(t) = &self.0 { Some(t) } else { None }
    }

    /// Their bytes.
    pub fn blocks(self) -> Blocks {
        match self.0 {
            Source::Host(t) => Box::new(t.blocks(BLOCK).map(Ok)),
            Source::Pulled { source, shape, size } => {
                Box::new(shape.blocks(BLOCK * 4 / size.max(1)).map(move |r| {
                    let mut out = vec![0; (r.volume().unwrap_or(0) * size) as usize];
                    source.read(&r, &mut out).map_err(|e: BoxError| io::Error::other(e))?;
                    Ok(out.into())
                }))
            }
        }
    }
}

/// Prepended axes have extent 1 and are not in the local tensor's shape.
fn without_ones(shape: &[u64]) -> Dims {
    shape.iter().copied().filter(|&n| n != 1).collect()
}

/// An object as `codec` writes it. One that comes encoded by the same codec is carried over as it is.
///
/// # Errors
/// When there is none, when it can't be encoded, or when it is encoded otherwise.
pub fn encode_object(codec: &dyn ObjectCodec, key: &str, payload: Payload) -> Result<Bytes> {
    match payload {
        Payload::Encoded { codec: name, bytes } if name == codec.name() => Ok(bytes),
        Payload::Value(v) => codec.encode(&v).map_err(|source| StrategyError::Object {
            key: key.into(),
            what: "it can't be encoded",
            source,
        }),
        Payload::Encoded { codec: name, .. } => {
            let what = format!("{key}: an object encoded as {name} can't be stored here; decode it first");
            Err(StrategyError::Invalid(what))
        }
        Payload::None => Err(StrategyError::Invalid(format!("object {key} has no data to save"))),
    }
}

/// An object's value. A codec that knows more of what stopped it than that it can't be decoded gives a [`StrategyError`].
///
/// # Errors
/// When it can't be decoded, or asks for too much.
pub fn decode_object(codec: &dyn ObjectCodec, key: &str, payload: Payload) -> Result<Value> {
    let bytes = match payload {
        Payload::Value(v) => return Ok(v),
        Payload::None => return Ok(Value::None),
        Payload::Encoded { bytes, .. } => bytes,
    };
    codec.decode(&bytes).map_err(|source| match source.downcast() {
        Ok(told) => match *told {
            StrategyError::Limit { what, option, max } => {
                StrategyError::Limit { what: format!("object {key}: {what}"), option, max }
            }
            told => told,
        },
        Err(source) => StrategyError::Object { key: key.into(), what: "it can't be decoded", source },
    })
}
