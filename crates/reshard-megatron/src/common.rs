//! Megatron Core's common state: `common.pt`, or an object of the sharded part.

use crate::cells::{SUFFIX, cells, is_cell, is_file_of_a_cell, names};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{BoxError, ObjectCodec, Payload, ShardedObject, Value, ValueTree};
use reshard_storage::{FileBody, Name, Progress, StoreExt};
use reshard_strategy::{
    BackendVersion, LoadCommonStrategy, Make, OpenCx, ReadCx, ReadLimits, ReadObject, Registration,
    Result, SaveCommonStrategy, StorageReader, StrategyError, Uncovered, decode_object,
    encode_object,
    torch::{TorchObjects, check_archive, check_records, is_beyond_us, no_damage, uncovered},
};
use reshard_torch_format::{LoadOptions, TorchSave, archive::ArchiveOptions};
use std::sync::Arc;

/// The file of common state.
pub const COMMON: &str = "common.pt";

/// The object of the sharded part in which Megatron Core 0.19 and later keep common state.
pub const COMMON_STATE: &str = "common_state";

/// Its name as a cell of an array.
pub const COMMON_STATE_CELL: &str = "common_state/shard_0_1";

/// The common strategy `("torch", 1)`: it writes one `torch.save` archive. For sharded strategies that store no objects it
/// writes one more archive for each object, at `{key}/shard_{offset}_{shape}.pt`, as Megatron Core does with zarr. It also reads those
/// whose names lack the last number of the shape, which very old versions wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct TorchCommon;

/// The options with which `torch.save` writes a file. The folder in the archive has the name of the file without `.pt`.
fn codec(prefix: &str) -> TorchSave {
    TorchSave::new(
        LoadOptions::default(),
        ArchiveOptions::default().with_prefix(prefix),
    )
}

/// The bytes of `common.pt`. Equal states give equal bytes, if their keys have the same order.
///
/// # Errors
/// What can't be encoded.
pub fn encode_common(common: &ValueTree) -> Result<Bytes> {
    codec("common")
        .encode(&Value::from(common.clone()))
        .map_err(|source| StrategyError::Object {
            key: COMMON.into(),
            what: "the common state can't be encoded",
            source,
        })
}

/// The common state in the bytes of a `common.pt`.
///
/// # Errors
/// They are damaged, beyond the limits, or hold no dict.
pub fn decode_common(bytes: Bytes, limits: &ReadLimits) -> Result<ValueTree> {
    dict(COMMON, decode(COMMON, "the common state", bytes, limits)?)
}

impl SaveCommonStrategy for TorchCommon {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("torch", 1)
    }

    fn layout_common(&self, common: &ValueTree) -> Result<Vec<FileBody>> {
        let bytes = encode_common(common)?;
        Ok(vec![FileBody::from_bytes(Name::new(COMMON)?, bytes)])
    }

    fn layout_objects(&self, objects: &[ShardedObject]) -> Result<Option<Vec<FileBody>>> {
        objects
            .iter()
            .map(object_file)
            .collect::<Result<_>>()
            .map(Some)
    }
}

fn object_file(object: &ShardedObject) -> Result<FileBody> {
    let key = object.unique_key();
    let Some((_, cell)) = key.rsplit_once('/').filter(|_| is_cell(&key)) else {
        let what = "an object that gets a file of its own must be a cell of an array and have a key without `/`";
        return Err(StrategyError::Invalid(format!("{key}: {what}")));
    };
    let bytes = encode_object(&codec(cell), &key, object.data.clone())?;
    Ok(FileBody::from_bytes(
        Name::new(format!("{key}{SUFFIX}"))?,
        bytes,
    ))
}

#[async_trait]
impl LoadCommonStrategy for TorchCommon {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("torch", 1)
    }

    async fn load_common(&self, cx: &OpenCx, from: &dyn StorageReader) -> Result<ValueTree> {
        let (file, value) = match cx.limits.read(&cx.store, &Name::new(COMMON)?).await? {
            Some(bytes) => (
                COMMON,
                decode(COMMON, "the common state", bytes, &cx.limits)?,
            ),
            None => (COMMON_STATE_CELL, from_object(cx, from).await?),
        };
        dict(file, value)
    }

    fn owns(&self, name: &Name) -> bool {
        name.as_str() == COMMON
    }

    fn owns_object(&self, name: &Name) -> bool {
        is_file_of_a_cell(name)
    }

    fn names_of_object(&self, object: &ShardedObject) -> Vec<String> {
        names(object)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        true
    }

    async fn load_sharded_objects(
        &self,
        objects: Vec<ShardedObject>,
        cx: &OpenCx,
    ) -> Result<Vec<ShardedObject>> {
        let mut out = Vec::with_capacity(objects.len());
        for object in objects {
            let (file, bytes) = file_of(&object, cx).await?;
            let value = decode(&file, "the object", bytes, &cx.limits)?;
            out.push(ShardedObject {
                data: Payload::Value(value),
                ..object
            });
        }
        Ok(out)
    }

    async fn check_file(&self, file: &Name, cx: &OpenCx) -> Result<Option<Vec<(Uncovered, u64)>>> {
        let Some(bytes) = cx.limits.read(&cx.store, file).await? else {
            return Err(StrategyError::corrupt(file, None, "it is missing"));
        };
        let left = check_archive(&bytes, &cx.limits).map_err(|e| {
            let told = |why| StrategyError::Unsupported {
                strategy: "torch/1".into(),
                what: format!("checking {file} ({why})"),
            };
            no_damage(&e, file, told).unwrap_or_else(|| StrategyError::Corrupt {
                file: file.to_string(),
                offset: None,
                what: "it is damaged".into(),
                source: Some(Box::new(e)),
            })
        })?;
        Ok(Some(uncovered(left).into()))
    }

    async fn load_sharded_metadata(&self, cx: &OpenCx) -> Result<Vec<ShardedObject>> {
        let files = cx.store.files().await?;
        Ok(cells(files.iter().map(|f| &f.name)))
    }
}

/// The name and the bytes of the file of an object.
async fn file_of(object: &ShardedObject, cx: &OpenCx) -> Result<(String, Bytes)> {
    for name in names(object) {
        let file = format!("{name}{SUFFIX}");
        if let Some(bytes) = cx.limits.read(&cx.store, &Name::new(&*file)?).await? {
            return Ok((file, bytes));
        }
    }
    let file = format!("{}{SUFFIX}", object.unique_key());
    Err(StrategyError::corrupt(file, None, "it is missing"))
}

/// Common state is a dict.
fn dict(file: &str, value: Value) -> Result<ValueTree> {
    match value {
        Value::Dict(_) => Ok(ValueTree::from(value)),
        // It may be a special dict, such as an OrderedDict. That is no damage.
        Value::Opaque(other) => Err(StrategyError::Undecoded {
            what: format!(
                "common state of class {} (only a plain dict is known)",
                other.class()
            ),
        }),
        other => {
            let what = format!(
                "the common state is not a dict but of type {}",
                other.type_name()
            );
            Err(StrategyError::corrupt(file, None, what))
        }
    }
}

fn decode(what: &str, content: &str, bytes: Bytes, limits: &ReadLimits) -> Result<Value> {
    let payload = Payload::Encoded {
        codec: TorchSave::NAME,
        bytes: bytes.clone(),
    };
    decode_object(&TorchObjects::new(limits), what, payload).map_err(|e| match e {
        // An object beyond the limits of the decoder is not damaged.
        StrategyError::Object { source, .. } if is_beyond_us(&source) => {
            let told = |why| format!("decoding {content} of {what} ({why})");
            match check_records(&bytes, limits) {
                Ok(()) => StrategyError::Undecoded {
                    what: told(source.to_string()),
                },
                Err(e) => {
                    let unknown = |why| StrategyError::Unsupported {
                        strategy: "torch/1".into(),
                        what: told(why),
                    };
                    no_damage(&e, what, unknown)
                        .unwrap_or_else(|| cant_be_decoded(what, content, Box::new(e)))
                }
            }
        }
        StrategyError::Object { source, .. } => cant_be_decoded(what, content, source),
        e => e,
    })
}

fn cant_be_decoded(what: &str, content: &str, source: BoxError) -> StrategyError {
    StrategyError::Corrupt {
        file: what.into(),
        offset: None,
        what: format!("{content} can't be decoded"),
        source: Some(source),
    }
}

/// The form of Megatron Core 0.19 and later.
async fn from_object(cx: &OpenCx, from: &dyn StorageReader) -> Result<Value> {
    let Some(object) = from.metadata().object(COMMON_STATE_CELL) else {
        let why = "it has neither common.pt nor the object common_state".into();
        return Err(StrategyError::NotACheckpoint {
            url: cx.store.url(),
            why,
        });
    };
    let none = Progress::none();
    let read = from
        .read_objects(&[ReadObject { object }], &ReadCx::new(true, &none))
        .await?
        .pop();
    let value = match read {
        Some(Payload::Value(value)) => value,
        Some(Payload::Encoded { codec, bytes }) if codec == TorchSave::NAME => {
            decode(COMMON_STATE_CELL, "the common state", bytes, &cx.limits)?
        }
        Some(encoded @ Payload::Encoded { .. }) => {
            decode_object(&*from.codec(), COMMON_STATE_CELL, encoded)?
        }
        _ => {
            let what = format!("the object {COMMON_STATE_CELL} was not read");
            return Err(StrategyError::Internal(what));
        }
    };
    match value {
        // A copy of a checkpoint with lists keeps the list in a format without them, too.
        Value::List(mut v) if v.len() == 1 => Ok(v.remove(0)),
        value if !from.object_lists() => Ok(value),
        _ => Err(StrategyError::corrupt(
            COMMON_STATE_CELL,
            None,
            "it is not a list of one element",
        )),
    }
}

macro_rules! register {
    ($make:expr) => {
        inventory::submit! { Registration {
            backend: "torch",
            version: 1,
            origin: env!("CARGO_PKG_NAME"),
            origin_version: env!("CARGO_PKG_VERSION"),
            make: $make,
        } }
    };
}

register!(Make::SaveCommon(|| Arc::new(TorchCommon)));
register!(Make::LoadCommon(|| Arc::new(TorchCommon)));
