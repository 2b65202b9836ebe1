//! `integrity.json`: digests of the other files, which Megatron Core 0.17 and later can write and check.

use bytes::Bytes;
use reshard_storage::{Name, Store};
use reshard_strategy::{Result, StrategyError, read_small};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// The file with digests of the other files.
pub const INTEGRITY: &str = "integrity.json";

/// The only algorithm that Megatron Core knows.
const SHA256: &str = "sha256";

/// The content of `integrity.json`: the SHA-256 of each file that lies directly in the directory, but of the file itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Integrity {
    /// `sha256`.
    algorithm: String,
    /// By name, 64 hexadecimal digits each.
    files: BTreeMap<String, String>,
}

impl Default for Integrity {
    fn default() -> Self {
        Self {
            algorithm: SHA256.into(),
            files: BTreeMap::new(),
        }
    }
}

impl Integrity {
    /// Whether a file of this name has a digest in it: Megatron Core lists no files of folders.
    pub fn covers(name: &Name) -> bool {
        !name.as_str().contains('/') && name.as_str() != INTEGRITY
    }

    /// Adds a file, if it is one of those that are listed.
    pub fn insert(&mut self, name: &Name, sha256: String) {
        if Self::covers(name) {
            self.files.insert(name.to_string(), sha256);
        }
    }

    /// The digest of a file.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(String::as_str)
    }

    /// All files with their digests, by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        let pair = |(name, sha256)| (String::as_str(name), String::as_str(sha256));
        self.files.iter().map(pair)
    }

    /// The bytes of the file, as Python's `json.dump(…, indent=2)` writes them.
    pub fn to_bytes(&self) -> Bytes {
        serde_json::to_vec_pretty(self).unwrap_or_default().into()
    }

    /// Reads the file of a checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub async fn of(store: &Arc<dyn Store>) -> Result<Option<Self>> {
        let bytes = read_small(store, &Name::new(INTEGRITY)?).await?;
        bytes.map(|bytes| Self::parse(&bytes)).transpose()
    }

    /// Parses the bytes of the file.
    ///
    /// # Errors
    /// [`StrategyError::Corrupt`] if they are no such JSON; [`StrategyError::Unsupported`] if they name another algorithm.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let corrupt = |e| StrategyError::Corrupt {
            file: INTEGRITY.into(),
            offset: None,
            what: "it is not a JSON object with an algorithm and the digests of files".into(),
            source: Some(Box::new(e)),
        };
        let me: Self = serde_json::from_slice(bytes).map_err(corrupt)?;
        if me.algorithm != SHA256 {
            return Err(StrategyError::Unsupported {
                strategy: INTEGRITY.into(),
                what: format!("digests by {:?}", me.algorithm),
            });
        }
        Ok(me)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_written_as_python_writes_it() {
        let mut integrity = Integrity::default();
        for (name, sha256) in [
            ("b", "22"),
            ("a.pt", "11"),
            ("k/0.0", "33"),
            (INTEGRITY, "44"),
        ] {
            integrity.insert(&Name::new(name).unwrap(), sha256.into());
        }
        let text = "{\n  \"algorithm\": \"sha256\",\n  \"files\": {\n    \"a.pt\": \"11\",\n    \"b\": \"22\"\n  }\n}";
        assert_eq!(integrity.to_bytes(), text);
        assert_eq!(Integrity::parse(text.as_bytes()).unwrap(), integrity);
        let other = text.replace("sha256", "md5");
        let e = Integrity::parse(other.as_bytes()).unwrap_err();
        assert!(matches!(e, StrategyError::Unsupported { .. }) && e.to_string().contains("md5"));
        assert!(Integrity::parse(b"{\"files\": {}}").is_err());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(Integrity::parse(&bytes));
        }

        #[test]
        fn no_text_that_is_nearly_right_makes_it_panic(at in 0usize..80, byte in any::<u8>()) {
            let mut text = b"{\"algorithm\": \"sha256\", \"files\": {\"__0_0.distcp\": \"00ff\", \"x\": \"1\"}}".to_vec();
            if let Some(b) = text.get_mut(at) {
                *b = byte;
            }
            drop(Integrity::parse(&text));
        }
    }
}
