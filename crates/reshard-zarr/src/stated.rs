//! Attributes of groups and arrays, and names of axes, as annotations of the checkpoint.

use crate::{
    array::meta::shown,
    names::{ZATTRS, split},
};
use bytes::Bytes;
use reshard_model::{Path, Value};
use reshard_plan::{AnnotationId, AnnotationKind, Annotations, Metadata};
use reshard_strategy::Refused;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// The key of an array that is the place itself.
pub(crate) const LONE: &str = "tensor";

/// What a group or an array states beside what is needed to read it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Facts {
    pub(crate) attributes: Map<String, Json>,
    pub(crate) dimension_names: Option<Vec<Option<String>>>,
}

/// What groups and arrays state.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    /// The facts of all groups and arrays, by their paths. That of the place itself is empty.
    facts: BTreeMap<String, Facts>,
    /// The paths of those about which consolidated metadata say something else than they do themselves.
    pub(crate) contradicted: BTreeSet<String>,
}

impl Stated {
    /// Adds those of a `zarr.json`. A text that can't be parsed has none: then it is the description that is damaged.
    pub(crate) fn add_node(&mut self, path: &str, text: &[u8]) {
        let fields = serde_json::from_slice::<Map<String, Json>>(text);
        if let Some(Ok(facts)) = fields.ok().map(|fields| Facts::of(&fields)) {
            self.facts.insert(path.into(), facts);
        }
    }

    /// Adds those of a `.zattrs`. Returns `false` if it is no JSON object.
    pub(crate) fn add_attributes(&mut self, path: &str, text: &[u8]) -> bool {
        let Ok(attributes) = serde_json::from_slice(text) else {
            return false;
        };
        self.facts.entry(path.into()).or_default().attributes = attributes;
        true
    }

    /// Adds those of nodes that only consolidated metadata describe: of a `zarr.json`, or of a `.zmetadata`.
    pub(crate) fn add_consolidated(&mut self, text: &[u8]) {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Consolidated {
            metadata: Map<String, Json>,
            consolidated_metadata: Option<Box<Consolidated>>,
        }
        let Ok(all) = serde_json::from_slice::<Consolidated>(text) else {
            return;
        };
        let nodes = match all.consolidated_metadata {
            Some(inner) => inner.metadata,
            None => all.metadata,
        };
        for (name, node) in nodes {
            let (path, facts) = match split(&name) {
                (path, ZATTRS) => match node {
                    Json::Object(attributes) => (path.to_owned(), Ok(of_attributes(attributes))),
                    _ => continue,
                },
                // Another file of Zarr v2.
                (_, file) if file.starts_with(".z") => continue,
                _ => match node.as_object() {
                    Some(fields) => (name, Facts::of(fields)),
                    None => continue,
                },
            };
            // If not, the node is damaged.
            let Ok(facts) = facts else {
                continue;
            };
            match self.facts.get(&path) {
                Some(own) if *own != facts => drop(self.contradicted.insert(path)),
                Some(_) => {}
                None => drop(self.facts.insert(path, facts)),
            }
        }
    }

    /// The facts of the arrays in the table, and of the groups around them.
    pub(crate) fn annotations(self, stored: &Metadata) -> Annotations {
        let mut out = Annotations::default();
        let keys: Vec<&str> = stored.tensors().map(|t| t.key()).collect();
        for (path, facts) in self.facts {
            // Most nodes state nothing.
            if facts.is_empty() {
                continue;
            }
            let node = match &*path {
                "" if stored.tensor(LONE).is_some() && stored.tensor_count() == 1 => LONE,
                path => path,
            };
            let is_group = || node.is_empty() || is_above(&keys, node);
            if stored.tensor(node).is_none() && !is_group() {
                continue;
            }
            let at = || match node {
                "" => Path::default(),
                node => Path(vec![node.into()]),
            };
            for (name, value) in facts.attributes {
                let id = AnnotationId::new(AnnotationKind::Attribute, at(), name);
                out.insert(id, value.to_string());
            }
            if let Some(names) = facts.dimension_names {
                let text = |name: Option<String>| name.map_or(Value::None, Value::from);
                let names: Vec<Value> = names.into_iter().map(text).collect();
                let id = AnnotationId::new(AnnotationKind::DimensionNames, at(), "");
                out.insert(id, names);
            }
        }
        out
    }
}

fn of_attributes(attributes: Map<String, Json>) -> Facts {
    Facts {
        attributes,
        dimension_names: None,
    }
}

/// Whether an array lies below a path. The keys are sorted.
fn is_above(keys: &[&str], path: &str) -> bool {
    let below = format!("{path}/");
    let first = keys.partition_point(|key| *key < &*below);
    keys.get(first).is_some_and(|key| key.starts_with(&below))
}

/// The facts that a new checkpoint states, by path.
pub(crate) fn of_nodes(annotations: &Annotations) -> BTreeMap<String, Facts> {
    let mut out: BTreeMap<String, Facts> = BTreeMap::new();
    for (id, value) in annotations.of_all_files(AnnotationKind::Attribute) {
        let value = value
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        if let Some(value) = value {
            let facts = out.entry(id.path.to_string()).or_default();
            facts.attributes.insert(id.name.to_string(), value);
        }
    }
    for (id, value) in annotations.of_all_files(AnnotationKind::DimensionNames) {
        let names = value.as_seq().unwrap_or_default().iter();
        let names = names.map(|name| name.as_str().map(String::from));
        let facts = out.entry(id.path.to_string()).or_default();
        facts.dimension_names = Some(names.collect());
    }
    out
}

impl Facts {
    /// Those in the fields of a `zarr.json`.
    ///
    /// # Errors
    /// Attributes are no object, or names of axes are no list of texts.
    pub(crate) fn of(fields: &Map<String, Json>) -> Result<Self, Refused> {
        let attributes = match fields.get("attributes") {
            None | Some(Json::Null) => Map::new(),
            Some(Json::Object(attributes)) => attributes.clone(),
            Some(other) => {
                let what = format!("its attributes are {}, not a JSON object", shown(other));
                return Err(Refused::damaged(what));
            }
        };
        let dimension_names = match fields.get("dimension_names") {
            None | Some(Json::Null) => None,
            Some(names) => Some(serde_json::from_value(names.clone()).map_err(|_| {
                let what = "a list of texts and nulls";
                Refused::damaged(format!(
                    "its dimension_names are {}, not {what}",
                    shown(names)
                ))
            })?),
        };
        Ok(Self {
            attributes,
            dimension_names,
        })
    }

    fn is_empty(&self) -> bool {
        self.attributes.is_empty() && self.dimension_names.is_none()
    }

    /// The text of a `zarr.json` with these facts in addition. An array has so many axes.
    pub(crate) fn in_text(&self, text: &[u8], axes: Option<usize>) -> serde_json::Result<Bytes> {
        let mut fields: Map<String, Json> = serde_json::from_slice(text)?;
        fields.insert("attributes".into(), Json::Object(self.attributes.clone()));
        let names = self.dimension_names.as_ref();
        if let Some(names) = names.filter(|names| Some(names.len()) == axes) {
            fields.insert("dimension_names".into(), json!(names));
        }
        serde_json::to_vec_pretty(&fields).map(Bytes::from)
    }

    /// The text of a `.zattrs`.
    pub(crate) fn zattrs(&self) -> serde_json::Result<Bytes> {
        serde_json::to_vec_pretty(&self.attributes).map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::DType;

    fn table(keys: &[&str]) -> Metadata {
        let mut builder = Metadata::builder();
        for key in keys {
            builder
                .add_tensor(key, DType::Int8, &[2, 3], Default::default())
                .unwrap();
        }
        builder.finish(None).unwrap()
    }

    #[test]
    fn facts_of_arrays_and_the_groups_around_them_are_annotations() {
        let mut stated = Stated::default();
        let array =
            json!({"shape": [2, 3], "attributes": {"units": "K"}, "dimension_names": ["x", null]});
        stated.add_node("g/a", array.to_string().as_bytes());
        stated.add_node("other", br#"{"attributes": {"not": "here"}}"#);
        stated.add_attributes("g", br#"{"n": [1, 2.5]}"#);
        let root = json!({"attributes": {"title": "t"}, "consolidated_metadata": {"metadata": {
            "g/a": {"attributes": {"units": "old"}}, "g/b": {"attributes": {"b": null}},
        }}});
        stated.add_node("", root.to_string().as_bytes());
        stated.add_consolidated(root.to_string().as_bytes());
        let found = stated.annotations(&table(&["g/a", "g/b"]));
        let found: Vec<(String, Value)> = found
            .iter()
            .map(|(id, value)| (id.to_string(), value.clone()))
            .collect();
        let want = [
            ("title", r#""t""#.into()),
            ("g n", "[1,2.5]".into()),
            ("g/a units", r#""K""#.into()),
            ("g/b b", "null".into()),
            ("g/a", Value::List(vec!["x".into(), Value::None])),
        ];
        assert_eq!(found, want.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn attributes_of_zarr_2_may_be_consolidated() {
        let mut stated = Stated::default();
        let all =
            json!({"metadata": {".zattrs": {"r": 1}, "a/.zarray": {}, "a/.zattrs": {"u": 2}}});
        stated.add_consolidated(all.to_string().as_bytes());
        let found = stated.annotations(&table(&["a", "b"]));
        let names: Vec<String> = found.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(names, ["r", "a u"]);
    }

    #[test]
    fn names_of_axes_are_written_if_there_are_as_many_axes() {
        let facts = Facts {
            dimension_names: Some(vec![Some("x".into()), None]),
            ..Facts::default()
        };
        for (axes, has) in [(2, true), (3, false)] {
            let text = facts.in_text(br#"{"attributes": {}}"#, Some(axes)).unwrap();
            let text: Json = serde_json::from_slice(&text).unwrap();
            assert_eq!(text.get("dimension_names").is_some(), has);
        }
    }
}
