//! `metadata.json`, which says that a checkpoint is Megatron Core's, and which strategies it is of.

use crate::COMMON;
use bytes::Bytes;
use reshard_storage::{Name, Store, StoreExt};
use reshard_strategy::{BackendVersion, Result, StrategyError, read_small};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use std::sync::Arc;

/// The file whose presence makes a checkpoint of Megatron Core.
pub const METADATA_JSON: &str = "metadata.json";

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

    /// That of a checkpoint; `None` when it is not Megatron Core's.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub async fn of(store: &Arc<dyn Store>) -> Result<Option<Self>> {
        let bytes = read_small(store, &Name::new(METADATA_JSON)?).await?;
        Ok(bytes.map(|bytes| Self::parse(&bytes)).transpose()?.flatten())
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
    fn begins(bytes: &[u8]) -> bool {
        let begin = br#"{"sharded_backend": ""#;
        bytes.iter().zip(begin).all(|(a, b)| a == b)
    }
}

/// Whether a save of Megatron Core that lies there was never finished: `metadata.json`, which is written last, is not there, and
/// common state is. Asked where [`MetadataJson::of`] finds nothing.
///
/// # Errors
/// What the store says.
pub async fn is_unfinished(store: &Arc<dyn Store>) -> Result<bool> {
    Ok(store.exists(&Name::new(COMMON)?).await?)
}

/// Whose a `metadata.json` is. It tells whose all files are that have Megatron Core's names, which other programs give, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Megatron Core's, whole or not.
    Megatrons,
    /// There is none, or it says nothing of Megatron Core's.
    OfOthers,
    /// Not JSON, and nothing that Megatron Core begins to write.
    Unclear,
}

impl Whose {
    /// That of a place. One that can't be read counts as one of others.
    pub async fn of(store: &Arc<dyn Store>) -> Self {
        let Ok(name) = Name::new(METADATA_JSON) else { return Self::OfOthers };
        let bytes = read_small(store, &name).await.ok().flatten();
        match bytes.map(|b| (MetadataJson::begins(&b), MetadataJson::parse(&b))) {
            None | Some((false, Ok(None))) => Self::OfOthers,
            Some((true, _) | (_, Ok(Some(_)))) => Self::Megatrons,
            Some((false, Err(_))) => Self::Unclear,
        }
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
