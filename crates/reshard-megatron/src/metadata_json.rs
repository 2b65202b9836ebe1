//! `metadata.json`, which marks a checkpoint as Megatron Core's and names its strategies.

use crate::COMMON;
use bytes::Bytes;
use reshard_storage::{Name, Store, StoreExt};
use reshard_strategy::{BackendVersion, Result, StrategyError, UniqueMap, read_small};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use std::{collections::BTreeMap, sync::Arc};

/// The file whose presence makes a directory a checkpoint of Megatron Core.
pub const METADATA_JSON: &str = "metadata.json";

/// The content of `metadata.json`, in Megatron Core's order of fields. Unknown fields are ignored. Since Megatron Core 0.19
/// the fields of the common part may be missing.
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

/// The fields that mark a file as Megatron Core's. Any of them does: if the name of one is damaged, the file is damaged, not another
/// program's.
const SIGNS: [&str; 4] = [
    "sharded_backend",
    "sharded_backend_version",
    "common_backend",
    "common_backend_version",
];

fn one() -> u32 {
    1
}

fn torch() -> String {
    "torch".into()
}

impl MetadataJson {
    /// For strategies with these names.
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

    /// The bytes of the file in the form of Megatron Core 0.19 and later, which leaves out the common strategy.
    pub fn to_short_bytes(&self) -> Bytes {
        let backend = serde_json::Value::from(self.sharded_backend.as_str());
        let version = self.sharded_backend_version;
        format!(r#"{{"sharded_backend": {backend}, "sharded_backend_version": {version}}}"#).into()
    }

    /// The bytes of the file, as Python's `json.dump` writes them.
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

    /// Reads the `metadata.json` of a checkpoint. `None` if the checkpoint is not Megatron Core's.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub async fn of(store: &Arc<dyn Store>) -> Result<Option<Self>> {
        let bytes = read_small(store, &Name::new(METADATA_JSON)?).await?;
        Ok(bytes
            .map(|bytes| Self::parse(&bytes))
            .transpose()?
            .flatten())
    }

    /// Parses the bytes of the file. `None` if they are JSON without Megatron Core's fields, because many programs have a
    /// file of this name.
    ///
    /// # Errors
    /// [`StrategyError::Corrupt`] if they are no JSON, or lack some of the fields.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let has_no_sign = |UniqueMap(fields): UniqueMap<Option<IgnoredAny>>| {
            let is_none = |sign: &&str| fields.get(*sign).is_none_or(Option::is_none);
            SIGNS.iter().all(is_none)
        };
        // Other programs may repeat keys of their own.
        let names_no_sign = |fields: BTreeMap<String, IgnoredAny>| {
            let is_none = |sign: &&str| !fields.contains_key(*sign);
            SIGNS.iter().all(is_none)
        };
        // Serde would accept an array in place of the object.
        let of_others = match bytes.trim_ascii_start().first() {
            Some(b'{') => serde_json::from_slice(bytes).map_or_else(
                |_| serde_json::from_slice(bytes).is_ok_and(names_no_sign),
                has_no_sign,
            ),
            _ => serde_json::from_slice::<IgnoredAny>(bytes).is_ok(),
        };
        if of_others {
            return Ok(None);
        }
        serde_json::from_slice(bytes)
            .map(Some)
            .map_err(|e| StrategyError::Corrupt {
                file: METADATA_JSON.into(),
                offset: None,
                what: "it is not a JSON object with sharded_backend and sharded_backend_version"
                    .into(),
                source: Some(Box::new(e)),
            })
    }

    /// Whether the bytes begin as Megatron Core begins this file, even if they end early.
    fn begins(bytes: &[u8]) -> bool {
        let begin = br#"{"sharded_backend": ""#;
        bytes.iter().zip(begin).all(|(a, b)| a == b)
    }
}

/// Whether a place holds an unfinished save of Megatron Core: it has common state, but no `metadata.json`, which is written
/// last. Call this only if [`MetadataJson::of`] finds nothing.
///
/// # Errors
/// What the store says.
pub async fn is_unfinished(store: &Arc<dyn Store>) -> Result<bool> {
    Ok(store.exists(&Name::new(COMMON)?).await?)
}

/// To which program a `metadata.json` belongs. Other programs use Megatron Core's file names too, so this decides for all
/// files with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Megatron Core's, whole or not.
    Megatrons,
    /// There is none, or it has none of Megatron Core's fields.
    OfOthers,
    /// It is no JSON, and does not begin as Megatron Core begins this file.
    Unclear,
}

impl Whose {
    /// Reads the file of a place. A file that can't be read counts as another program's.
    pub async fn of(store: &Arc<dyn Store>) -> Self {
        let Ok(name) = Name::new(METADATA_JSON) else {
            return Self::OfOthers;
        };
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
            (
                r#"{"sharded_backend": "torch_dist", "more": [1]}"#,
                Ok(true),
            ),
            (
                r#" {"sharded_backend": "torch_dist", "sharded_backend_version": 1}"#,
                Ok(true),
            ),
            ("{}", Ok(false)),
            (r#"{"lr": 0.1, "steps": [1, 2]}"#, Ok(false)),
            (r#"["sharded_backend"]"#, Ok(false)),
            ("1", Ok(false)),
            ("", Err(())),
            ("{", Err(())),
            (r#"{"a": 1} {"a": 2}"#, Err(())),
            (r#"{"sharded_backend": 3}"#, Err(())),
            (
                r#"{"sharded_backend": "a", "sharded_backend": "b"}"#,
                Err(()),
            ),
            (
                r#"{"common_backend": "torch", "common_backend": null}"#,
                Err(()),
            ),
            (r#"{"lr": 0.1, "lr": 0.2}"#, Ok(false)),
            (r#"{"common_backend": null}"#, Ok(false)),
            (r#"{"sharded_backend": "torch_di"#, Err(())),
            // One bit of a name is wrong.
            (
                r#"{"sharded_backenD": "torch_dist", "sharded_backend_version": 1}"#,
                Err(()),
            ),
            (
                r#"{"sharded_backenD": "zarr", "common_backend": "torch"}"#,
                Err(()),
            ),
            (r#"{"common_backend_version": 1}"#, Err(())),
        ] {
            let found = MetadataJson::parse(text.as_bytes())
                .map(|json| json.is_some())
                .map_err(|_| ());
            assert_eq!(found, want, "{text}");
        }
        for (text, want) in [
            ("", true),
            ("{", true),
            (r#"{"sharded_backend": "x"#, true),
            (r#"{"lr"#, false),
            ("{ ", false),
        ] {
            assert_eq!(MetadataJson::begins(text.as_bytes()), want, "{text}");
        }
    }
}
