//! Writes an object to a file. Of an object without tensors only the pickle is kept until then: the archive around it is many times
//! larger than a number, and a checkpoint may have hundreds of thousands of them.

use bytes::Bytes;
use reshard_model::{BoxError, Payload};
use reshard_storage::{Extent, Length};
use reshard_strategy::{Result, StrategyError, encode_object};
use reshard_torch_format::{
    Encoded, TorchSave,
    archive::{ArchiveLayout, ArchiveOptions},
    encode,
};
use std::io;

/// What is written of an object.
///
/// # Errors
/// As those of [`encode_object`].
pub(crate) fn extent(key: &str, payload: Payload) -> Result<Box<dyn Extent>> {
    if let Payload::Value(value) = &payload {
        let failed = |source: BoxError| StrategyError::Object {
            key: key.into(),
            what: "it can't be encoded",
            source,
        };
        let mut encoded = encode(value).map_err(|e| failed(e.into()))?;
        // Tensors belong to the caller, who may change them as soon as this function has returned.
        if encoded.storages.is_empty() {
            encoded.pickle.shrink_to_fit();
            let options = ArchiveOptions::default();
            let layout =
                ArchiveLayout::new(&encoded.pickle, &[], &options).map_err(|e| failed(e.into()))?;
            return Ok(Box::new(Pickled {
                len: layout.len(),
                encoded: Some(encoded),
            }));
        }
    }
    Ok(Box::new(encode_object(
        &TorchSave::default(),
        key,
        payload,
    )?))
}

/// An object of which only the pickle is in memory.
struct Pickled {
    len: u64,
    encoded: Option<Encoded>,
}

impl Extent for Pickled {
    fn length(&self) -> Length {
        Length::Exact(self.len)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let encoded = self.encoded.take()?;
        let archive = encoded.archive(&ArchiveOptions::default());
        Some(archive.map(Bytes::from).map_err(io::Error::other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::{Tensor, Value};

    #[test]
    fn an_object_is_written_as_the_codec_encodes_it() {
        let tensor = Tensor::from_vec(&[2], vec![1f32, 2.0]).unwrap();
        let values = [
            Value::None,
            Value::from(7),
            Value::List(vec![Value::from("x"), Value::None]),
            Value::List(vec![Value::from(1), tensor.into()]),
        ];
        for value in values {
            let payload = Payload::Value(value);
            let whole = encode_object(&TorchSave::default(), "k", payload.clone()).unwrap();
            let encoded = Payload::Encoded {
                codec: TorchSave::NAME,
                bytes: whole.clone(),
            };
            for payload in [payload, encoded] {
                let mut extent = extent("k", payload).unwrap();
                assert!(matches!(extent.length(), Length::Exact(n) if n == whole.len() as u64));
                let mut written = Vec::new();
                while let Some(block) = extent.next_block() {
                    written.extend_from_slice(&block.unwrap());
                }
                assert_eq!(written, whole);
            }
        }
    }
}
