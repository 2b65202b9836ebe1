//! The index of a model in several files, as `transformers` writes it.

use crate::header::unparsed;
use bytes::Bytes;
use reshard_storage::Name;
use reshard_strategy::{Refused, UniqueMap};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// So many files can an index name. Each is opened.
const FILES: usize = 1 << 16;

/// Which file has which tensor.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// In the order of their names.
    pub(crate) files: Vec<Name>,
    /// The number of the file of each key.
    pub(crate) of: BTreeMap<Box<str>, u32>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Raw<'i> {
    #[serde(borrow)]
    weight_map: UniqueMap<std::borrow::Cow<'i, str>>,
}

impl Index {
    /// Parses an index.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Refused> {
        let raw: Raw<'_> =
            serde_json::from_slice(text).map_err(|e| unparsed(e.to_string(), &e, 0))?;
        // Two paths, such as `a` and `./a`, may name one file.
        let mut named: BTreeMap<&str, Name> = BTreeMap::new();
        for (key, file) in &raw.weight_map.0 {
            if !named.contains_key(&**file) {
                let name = Name::from_path(file)
                    .map_err(|e| Refused::damaged(format!("the file of {key}: {e}")))?;
                named.insert(file, name);
                if named.len() > FILES {
                    return Err(Refused::damaged(format!(
                        "it names more than {FILES} files"
                    )));
                }
            }
        }
        let files: BTreeSet<&Name> = named.values().collect();
        let numbers: BTreeMap<&Name, u32> = files.into_iter().zip(0..).collect();
        let number = |file: &str| {
            let number = named.get(file).and_then(|name| numbers.get(name));
            number.copied().unwrap_or(u32::MAX)
        };
        let of = raw.weight_map.0.iter();
        let of = of.map(|(key, file)| (key.clone(), number(file))).collect();
        let files = numbers.into_keys().cloned().collect();
        Ok(Self { files, of })
    }

    /// The text of an index, with the bytes of all tensors.
    pub(crate) fn text(
        weight_map: &BTreeMap<&str, String>,
        total_size: u64,
    ) -> serde_json::Result<Bytes> {
        let mut text = serde_json::to_vec_pretty(&json!({
            "metadata": {"total_size": total_size},
            "weight_map": weight_map,
        }))?;
        text.push(b'\n');
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_it_is_written() {
        let map = BTreeMap::from([
            ("b", "2.safetensors"),
            ("a", "2.safetensors"),
            ("c", "1.safetensors"),
        ]);
        let map = map
            .into_iter()
            .map(|(key, file)| (key, file.to_owned()))
            .collect();
        let text = Index::text(&map, 12).unwrap();
        assert_eq!(
            &text[..],
            b"{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \"a\": \"2.safetensors\",\n    \"b\": \"2.safetensors\",\n    \"c\": \"1.safetensors\"\n  }\n}\n"
        );
        let index = Index::parse(&text).unwrap();
        let names: Vec<_> = index.files.iter().map(Name::as_str).collect();
        assert_eq!(names, ["1.safetensors", "2.safetensors"]);
        let of: Vec<_> = index.of.iter().map(|(key, n)| (&**key, *n)).collect();
        assert_eq!(of, [("a", 1), ("b", 1), ("c", 0)]);
    }

    #[test]
    fn dots_before_a_file_mean_nothing() {
        let text =
            br#"{"weight_map":{"a":"./1.safetensors","b":"1.safetensors","c":"./2.safetensors"}}"#;
        let index = Index::parse(text).unwrap();
        let names: Vec<_> = index.files.iter().map(Name::as_str).collect();
        assert_eq!(names, ["1.safetensors", "2.safetensors"]);
        assert_eq!(index.of.values().collect::<Vec<_>>(), [&0, &0, &1]);
    }

    #[test]
    fn what_an_index_may_not_say_is_named() {
        let wrong = |text: &str| Index::parse(text.as_bytes()).unwrap_err().what;
        let leaves = wrong(r#"{"weight_map":{"w":"../x.safetensors"}}"#);
        assert!(
            leaves.contains("of w") && leaves.contains("leads out of"),
            "{leaves}"
        );
        let twice = wrong(r#"{"weight_map":{"w":"x","w":"y"}}"#);
        assert!(twice.contains("\"w\" comes twice"), "{twice}");
        assert!(wrong("[]").contains("invalid length 0") && wrong("{}").contains("weight_map"));
        assert!(wrong(r#"{"weight_map":{"w":7}}"#).contains("invalid type"));
        let all: Vec<String> = (0..=FILES)
            .map(|n| format!(r#""{n}":"{n}.safetensors""#))
            .collect();
        let many = wrong(&format!(r#"{{"weight_map":{{{}}}}}"#, all.join(",")));
        assert_eq!(many, "it names more than 65536 files");
    }
}
