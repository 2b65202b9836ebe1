//! Megatron Core's common state: `common.pt`, and `metadata.json`, which says which strategies a checkpoint is of.

use crate::{
    METADATA,
    limits::{Objects, no_damage, parsing},
    reader::{TorchDistReader, check_records, is_beyond_us},
    table::Table,
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{BoxError, Dialect, ObjectCodec, Payload, ShardedObject, Value, ValueTree};
use reshard_storage::{FileBody, Name, Progress};
use reshard_strategy::{
    BackendVersion, LoadCommonStrategy, OpenCx, ReadCx, ReadLimits, ReadObject, Result, SaveCommonStrategy,
    StorageReader, StrategyError, decode_object, encode_object,
};
use reshard_torch_format::{LoadOptions, TorchSave, archive::ArchiveOptions};
use serde::{Deserialize, Serialize, de::IgnoredAny};

/// The file of common state.
pub const COMMON: &str = "common.pt";

/// The file whose presence makes a checkpoint of Megatron Core.
pub const METADATA_JSON: &str = "metadata.json";

/// Where Megatron Core 0.19 and later keep common state: an object of the sharded part.
pub const COMMON_STATE: &str = "common_state";

/// Its name as a cell of an array.
const COMMON_STATE_CELL: &str = "common_state/shard_0_1";

/// How the file of an object ends.
const SUFFIX: &str = ".pt";

/// Content of `metadata.json`, in Megatron Core's order of fields. Fields that are not known are ignored; the common ones are
/// missing since 0.19.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataJson {
    /// Strategy of the sharded part.
    pub sharded_backend: String,
    /// Its version.
    #[serde(default = "one")]
    pub sharded_backend_version: u32,
    /// Strategy of the common part.
    #[serde(default = "torch")]
    pub common_backend: String,
    /// Its version.
    #[serde(default = "one")]
    pub common_backend_version: u32,
}

/// What tells that a file is Megatron Core's.
#[derive(Deserialize)]
struct Sign {
    sharded_backend: Option<IgnoredAny>,
}

fn one() -> u32 {
    1
}

fn torch() -> String {
    "torch".into()
}

impl MetadataJson {
    /// For strategies of these names.
    pub fn new(sharded: &BackendVersion, common: &BackendVersion) -> Self {
        Self {
            sharded_backend: sharded.backend.to_string(),
            sharded_backend_version: sharded.version,
            common_backend: common.backend.to_string(),
            common_backend_version: common.version,
        }
    }

    /// Strategy of the sharded part.
    pub fn sharded(&self) -> BackendVersion {
        BackendVersion::new(&self.sharded_backend, self.sharded_backend_version)
    }

    /// Strategy of the common part.
    pub fn common(&self) -> BackendVersion {
        BackendVersion::new(&self.common_backend, self.common_backend_version)
    }

    /// The file's bytes in the form of Megatron Core 0.19 and later, which leaves the common strategy out.
    pub fn to_short_bytes(&self) -> Bytes {
        let backend = serde_json::Value::from(self.sharded_backend.as_str());
        let version = self.sharded_backend_version;
        format!(r#"{{"sharded_backend": {backend}, "sharded_backend_version": {version}}}"#).into()
    }

    /// The file's bytes, as Python's `json.dump` writes them.
    pub fn to_bytes(&self) -> Bytes {
        let quoted = |s: &str| serde_json::Value::from(s).to_string();
        format!(
            r#"{{"sharded_backend": {}, "sharded_backend_version": {}, "common_backend": {}, "common_backend_version": {}}}"#,
            quoted(&self.sharded_backend),
            self.sharded_backend_version,
            quoted(&self.common_backend),
            self.common_backend_version
        )
        .into()
    }

    /// Reads the file's bytes. `None` when it is JSON that says nothing of Megatron Core's: many programs call a file so.
    ///
    /// # Errors
    /// [`StrategyError::Corrupt`] when it is no JSON, or not all of this.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        // Serde would take an array for the object.
        let of_others = match bytes.trim_ascii_start().first() {
            Some(b'{') => serde_json::from_slice::<Sign>(bytes).is_ok_and(|s| s.sharded_backend.is_none()),
            _ => serde_json::from_slice::<IgnoredAny>(bytes).is_ok(),
        };
        if of_others {
            return Ok(None);
        }
        serde_json::from_slice(bytes).map(Some).map_err(|e| StrategyError::Corrupt {
            file: METADATA_JSON.into(),
            offset: None,
            what: "it is no JSON object with sharded_backend and its version".into(),
            source: Some(Box::new(e)),
        })
    }

    /// Whether bytes begin as Megatron Core begins this file, also when they end in the middle of it.
    pub fn begins(bytes: &[u8]) -> bool {
        let begin = br#"{"sharded_backend": ""#;
        bytes.iter().zip(begin).all(|(a, b)| a == b)
    }
}

/// Common strategy `("torch", 1)`: one `torch.save` archive. For sharded strategies that store no objects, one more for each object, at
/// `{key}/shard_{offset}_{shape}.pt`, as Megatron Core has them beside its zarr.
#[derive(Clone, Copy, Debug, Default)]
pub struct TorchCommon;

/// How `torch.save` writes a file: the folder in the archive is called as the file is, without `.pt`.
fn codec(prefix: &str) -> TorchSave {
    TorchSave::new(LoadOptions::default(), ArchiveOptions::default().with_prefix(prefix))
}

impl SaveCommonStrategy for TorchCommon {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("torch", 1)
    }

    fn layout_common(&self, common: &ValueTree) -> Result<Vec<FileBody>> {
        let bytes = codec("common").encode(&Value::from(common.clone())).map_err(|source| {
            StrategyError::Object { key: COMMON.into(), what: "the common state can't be encoded", source }
        })?;
        Ok(vec![FileBody::from_bytes(Name::new(COMMON)?, bytes)])
    }

    fn layout_objects(&self, objects: &[ShardedObject]) -> Result<Option<Vec<FileBody>>> {
        objects.iter().map(object_file).collect::<Result<_>>().map(Some)
    }
}

fn object_file(object: &ShardedObject) -> Result<FileBody> {
    let key = object.unique_key();
    let Some((_, cell)) = cell(&key).and_then(|_| key.rsplit_once('/')) else {
        let what =
            "an object that is stored in a file of its own has a key without `/`, and is a cell of an array";
        return Err(StrategyError::Invalid(format!("{key}: {what}")));
    };
    let bytes = encode_object(&codec(cell), &key, object.data.clone())?;
    Ok(FileBody::from_bytes(Name::new(format!("{key}{SUFFIX}"))?, bytes))
}

/// The object that a file without its suffix is named by.
fn cell(key: &str) -> Option<ShardedObject> {
    ShardedObject::empty_from_unique_key(key).ok().filter(|o| o.unique_key() == key)
}

#[async_trait]
impl LoadCommonStrategy for TorchCommon {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("torch", 1)
    }

    async fn load_common(&self, cx: &OpenCx) -> Result<ValueTree> {
        let (file, value) = match cx.limits.read(&cx.store, &Name::new(COMMON)?).await? {
            Some(bytes) => (COMMON, decode(COMMON, "the common state", bytes, &cx.limits)?),
            None => (COMMON_STATE_CELL, from_object(cx).await?),
        };
        match value {
            Value::Dict(_) => Ok(ValueTree::from(value)),
            // It may be a dict of a kind of its own, such as an OrderedDict: nothing is damaged.
            Value::Opaque(other) => Err(StrategyError::Undecoded {
                what: format!("common state of class {} (a plain dict is known)", other.class()),
            }),
            other => {
                let what = format!("the common state is no dict but of type {}", other.type_name());
                Err(StrategyError::corrupt(file, None, what))
            }
        }
    }

    fn owns(&self, name: &Name) -> bool {
        name.as_str() == COMMON
    }

    fn owns_object(&self, name: &Name) -> bool {
        name.as_str().strip_suffix(SUFFIX).and_then(cell).is_some()
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
            let file = format!("{}{SUFFIX}", object.unique_key());
            let Some(bytes) = cx.limits.read(&cx.store, &Name::new(&*file)?).await? else {
                return Err(StrategyError::corrupt(file, None, "it is missing"));
            };
            let value = decode(&file, "the object", bytes, &cx.limits)?;
            out.push(ShardedObject { data: Payload::Value(value), ..object });
        }
        Ok(out)
    }

    async fn load_sharded_metadata(&self, cx: &OpenCx) -> Result<Vec<ShardedObject>> {
        let files = cx.store.list().await?;
        Ok(files.iter().filter_map(|f| cell(f.name.as_str().strip_suffix(SUFFIX)?)).collect())
    }
}

fn decode(what: &str, content: &str, bytes: Bytes, limits: &ReadLimits) -> Result<Value> {
    let payload = Payload::Encoded { codec: TorchSave::NAME, bytes: bytes.clone() };
    decode_object(&Objects::new(limits), what, payload).map_err(|e| match e {
        // What is more than this program decodes is not damaged for that.
        StrategyError::Object { source, .. } if is_beyond_us(&source) => {
            let told = |why| format!("decoding {content} of {what} ({why})");
            match check_records(&bytes, limits) {
                Ok(()) => StrategyError::Undecoded { what: told(source.to_string()) },
                Err(e) => {
                    let unknown =
                        |why| StrategyError::Unsupported { strategy: "torch/1".into(), what: told(why) };
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
async fn from_object(cx: &OpenCx) -> Result<Value> {
    let missing = |why: &str| StrategyError::NotACheckpoint { url: cx.store.url(), why: why.into() };
    let Some(bytes) = cx.limits.read(&cx.store, &Name::new(METADATA)?).await? else {
        return Err(missing("it has neither common.pt nor .metadata"));
    };
    let table = Table::parse(METADATA, bytes, &parsing(&cx.limits))?;
    let Some(object) = table.metadata.object(COMMON_STATE_CELL) else {
        return Err(missing("it has neither common.pt nor the object common_state"));
    };
    let reader = TorchDistReader::new(cx, table, Dialect::Megatron, None);
    let none = Progress::none();
    let read = reader.read_objects(&[ReadObject { object }], &ReadCx::new(true, &none)).await?.pop();
    let Some(Payload::Encoded { bytes, .. }) = read else {
        return Err(StrategyError::corrupt(METADATA, None, "common_state was not read"));
    };
    match decode(COMMON_STATE_CELL, "the common state", bytes, &cx.limits)? {
        Value::List(mut v) if v.len() == 1 => Ok(v.remove(0)),
        _ => Err(StrategyError::corrupt(COMMON_STATE_CELL, None, "it is no list of one element")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_json_of_another_program_is_told_from_a_damaged_one() {
        for (text, want) in [
            (r#"{"sharded_backend": "torch_dist", "more": [1]}"#, Ok(true)),
            (r#" {"sharded_backend": "torch_dist", "sharded_backend_version": 1}"#, Ok(true)),
            ("{}", Ok(false)),
            (r#"{"lr": 0.1, "steps": [1, 2]}"#, Ok(false)),
            (r#"["sharded_backend"]"#, Ok(false)),
            ("1", Ok(false)),
            ("", Err(())),
            ("{", Err(())),
            (r#"{"a": 1} {"a": 2}"#, Err(())),
            (r#"{"sharded_backend": 3}"#, Err(())),
            (r#"{"sharded_backend": "a", "sharded_backend": "b"}"#, Err(())),
            (r#"{"sharded_backend": "torch_di"#, Err(())),
        ] {
            let found = MetadataJson::parse(text.as_bytes()).map(|json| json.is_some()).map_err(|_| ());
            assert_eq!(found, want, "{text}");
        }
        for (text, want) in
            [("", true), ("{", true), (r#"{"sharded_backend": "x"#, true), (r#"{"lr"#, false), ("{ ", false)]
        {
            assert_eq!(MetadataJson::begins(text.as_bytes()), want, "{text}");
        }
    }
}
