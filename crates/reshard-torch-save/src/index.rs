//! `pytorch_model.bin.index.json`: which file holds which key.

use crate::names::INDEX;
use bytes::Bytes;
use reshard_model::{PathOfKey, Step};
use reshard_plan::PlannerData;
use reshard_storage::Name;
use reshard_strategy::{Result, StrategyError, UniqueMap};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The index, in the form that transformers writes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct Index {
    #[serde(default)]
    metadata: Notes,
    weight_map: UniqueMap<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    /// The paths of keys, if the state was nested. Other programs don't know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reshard_paths: Option<PathOfKey>,
    /// Bytes of all tensors. Other programs may have written a float.
    #[serde(default, deserialize_with = "any_number")]
    total_size: u64,
}

fn any_number<'d, D: serde::Deserializer<'d>>(d: D) -> Result<u64, D::Error> {
    let value = serde_json::Value::deserialize(d)?;
    Ok(value
        .as_u64()
        .or_else(|| value.as_f64().map(|n| n as u64))
        .unwrap_or(0))
}

/// Whether each key is a path of one step, so that nothing is nested.
fn is_flat(paths: &PathOfKey) -> bool {
    let mut paths = paths.iter();
    paths.all(|(key, path)| matches!(&*path.0, [Step::Key(k)] if k == key))
}

impl Index {
    pub(crate) fn new(
        total_size: u64,
        weight_map: BTreeMap<Box<str>, String>,
        paths: Option<&PlannerData>,
    ) -> Self {
        let reshard_paths = match paths {
            Some(PlannerData::Paths(paths)) if !is_flat(paths) => Some(paths.clone()),
            _ => None,
        };
        let metadata = Notes {
            reshard_paths,
            total_size,
        };
        Self {
            metadata,
            weight_map: UniqueMap(weight_map),
        }
    }

    pub(crate) fn to_bytes(&self) -> Result<Bytes> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|e| StrategyError::Internal(format!("{INDEX} can't be written: {e}")))?;
        text.push(b'\n');
        Ok(text.into())
    }

    /// # Errors
    /// It is no index; a key comes twice; it names a file that does not lie in the folder, or below it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed> {
        let damaged = |what: String| StrategyError::corrupt(INDEX, None, what);
        let index: Self =
            serde_json::from_slice(bytes).map_err(|e| damaged(format!("it is no index: {e}")))?;
        let mut files: BTreeMap<Name, Vec<Box<str>>> = BTreeMap::new();
        for (key, file) in index.weight_map.0 {
            let name = Name::from_path(&file).map_err(|e| damaged(format!("{key}: {e}")))?;
            if name.as_str() == INDEX {
                let what = format!("{key}: it names the file {file:?}, which is the index itself");
                return Err(damaged(what));
            }
            files.entry(name).or_default().push(key);
        }
        Ok(Parsed {
            files,
            paths: index.metadata.reshard_paths,
        })
    }
}

/// What an index says.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// The keys of each file, sorted.
    pub(crate) files: BTreeMap<Name, Vec<Box<str>>>,
    /// The path of each key, if reshard has noted them.
    pub(crate) paths: Option<PathOfKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_outside_of_the_folder_and_keys_that_come_twice_are_refused() {
        for file in [
            "../x.bin",
            "/etc/passwd",
            "a/../../b.bin",
            "",
            "a\\b",
            INDEX,
        ] {
            let json = serde_json::json!({ "weight_map": { "w": file } }).to_string();
            let e = Index::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(e.contains(INDEX) && e.contains("w: "), "{file}: {e}");
        }
        let twice = br#"{"weight_map": {"a": "x.bin", "a": "y.bin"}}"#;
        let e = Index::parse(twice).unwrap_err().to_string();
        assert!(e.contains("the key \"a\" comes twice"), "{e}");
        let json = r#"{"metadata": {"total_size": 1.5e3, "other": []}, "weight_map": {"a": "x.bin", "b": "x.bin"}}"#;
        let parsed = Index::parse(json.as_bytes()).unwrap();
        assert_eq!(parsed.files.values().map(Vec::len).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn dots_before_a_file_mean_nothing() {
        let text = br#"{"weight_map": {"a": "./x.bin", "b": "x.bin"}}"#;
        let files = Index::parse(text).unwrap().files;
        let files: Vec<_> = files
            .iter()
            .map(|(name, keys)| (name.as_str(), keys.len()))
            .collect();
        assert_eq!(files, [("x.bin", 2)]);
    }

    #[test]
    fn a_key_that_an_index_names_twice_is_refused() {
        let json = r#"{"weight_map": {"w": "x.bin", "v": "x.bin", "w": "y.bin"}}"#;
        let e = Index::parse(json.as_bytes()).unwrap_err();
        assert_eq!(e.kind(), reshard_model::ErrorKind::Corrupt);
        let e = e.to_string();
        assert!(
            e.contains(INDEX) && e.contains("the key \"w\" comes twice"),
            "{e}"
        );
    }

    #[test]
    fn it_has_the_bytes_that_transformers_writes() {
        let map = [("b", "y.bin"), ("a", "x.bin")].map(|(k, f)| (k.into(), f.into()));
        let text = Index::new(12, map.into(), None).to_bytes().unwrap();
        let want = "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \"a\": \"x.bin\",\n    \"b\": \"y.bin\"\n  }\n}\n";
        assert_eq!(text, want);
    }
}
