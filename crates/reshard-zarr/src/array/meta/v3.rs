//! `zarr.json` of Zarr v3.

use super::{
    chain, dtype, fill,
    json::{self, Named, shown},
    keys::ChunkKeys,
    types::{ArrayMeta, Element, Node},
};
use crate::stated::Facts;
use reshard_strategy::Refused;
use serde_json::{Map, Value};

/// Parses a `zarr.json`.
///
/// # Errors
/// It is damaged, or it is of a group that this version does not understand. What is wrong with an array is in [`Node::Array`].
pub(crate) fn parse_zarr_json(text: &[u8]) -> Result<Node, Refused> {
    node(json::parse("zarr.json", text)?, true)
}

/// `nested` says whether consolidated metadata are parsed. They are not in a node that comes from such metadata.
fn node(mut of: Map<String, Value>, nested: bool) -> Result<Node, Refused> {
    json::version(&of, "zarr.json", 3)?;
    match json::field(&of, "node_type")?.as_str() {
        Some("array") => Ok(Node::Array(Box::new(array(&of)))),
        Some("group") => {
            understood(
                &of,
                &["zarr_format", "node_type", "attributes", CONSOLIDATED],
            )?;
            Facts::of(&of)?;
            Ok(Node::Group(match of.remove(CONSOLIDATED) {
                Some(value) if nested => consolidated(value)?,
                _ => Vec::new(),
            }))
        }
        _ => Err(Refused::damaged(format!(
            "its node_type is {}",
            shown(&of["node_type"])
        ))),
    }
}

/// The field of a group with the metadata of what lies below it.
pub(super) const CONSOLIDATED: &str = "consolidated_metadata";

/// Fails if there are fields that a reader has to understand.
fn understood(of: &Map<String, Value>, known: &[&str]) -> Result<(), Refused> {
    let must = |(name, value): &(&String, &Value)| {
        !known.contains(&name.as_str())
            && value.get("must_understand").and_then(Value::as_bool) != Some(false)
    };
    match of.iter().find(must) {
        Some((name, _)) => Err(Refused::unknown(format!(
            "the field {} of zarr.json",
            shown(&Value::from(name.as_str()))
        ))),
        None => Ok(()),
    }
}

/// Nodes by path. There are none if they are of a kind that this version does not know: the nodes themselves have metadata, too.
fn consolidated(mut value: Value) -> Result<Vec<(String, Node)>, Refused> {
    if value.get("kind").and_then(Value::as_str) != Some("inline") {
        return Ok(Vec::new());
    }
    let wrong = || Refused::damaged(format!("{CONSOLIDATED} has no metadata"));
    let Some(Value::Object(metadata)) = value.get_mut("metadata").map(Value::take) else {
        return Err(wrong());
    };
    let mut out = Vec::with_capacity(metadata.len());
    for (path, value) in metadata {
        let found = match value {
            Value::Object(fields) => node(fields, false),
            other => Err(Refused::damaged(format!("it is {}", shown(&other)))),
        };
        let found = found.unwrap_or_else(|fault| Node::Array(Box::new(Err(fault))));
        out.push((path, found));
    }
    Ok(out)
}

fn array(of: &Map<String, Value>) -> Result<ArrayMeta, Refused> {
    const KNOWN: [&str; 11] = [
        "zarr_format",
        "node_type",
        "attributes",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "dimension_names",
        "storage_transformers",
    ];
    understood(of, &KNOWN)?;
    match of.get("storage_transformers") {
        None | Some(Value::Null) => {}
        Some(Value::Array(none)) if none.is_empty() => {}
        Some(other) => {
            let what = format!("the storage_transformers {}", shown(other));
            return Err(Refused::unknown(what));
        }
    }
    let shape = json::dims(of, "shape")?;
    let names = Facts::of(of)?.dimension_names;
    if let Some(names) = names.filter(|names| names.len() != shape.len()) {
        return Err(Refused::damaged(format!(
            "it has {} dimension_names, and its shape has {} axes",
            names.len(),
            shape.len()
        )));
    }
    let Element { dtype, stated, .. } = dtype::v3(json::field(of, "data_type")?)?;
    let grid = Named::of("chunk_grid", json::field(of, "chunk_grid")?)?;
    if grid.name != "regular" {
        let name = shown(&Value::from(grid.name));
        return Err(Refused::unknown(format!("the chunk grid {name}")));
    }
    ArrayMeta {
        chunk: json::dims(grid.settings()?, "chunk_shape")?,
        dtype,
        stated,
        fill: fill::parse(json::field(of, "fill_value")?, dtype)?,
        keys: keys(json::field(of, "chunk_key_encoding")?)?,
        encoding: chain::v3(json::field(of, "codecs")?, dtype, shape.len())?,
        shape,
    }
    .checked()
}

fn keys(value: &Value) -> Result<ChunkKeys, Refused> {
    let named = Named::of("chunk_key_encoding", value)?;
    let usual = match named.name {
        "default" => ChunkKeys::SLASHES,
        "v2" => ChunkKeys::DOTS,
        name => {
            let name = shown(&Value::from(name));
            return Err(Refused::unknown(format!("the chunk key encoding {name}")));
        }
    };
    let separator = match named.get("separator") {
        None => usual.separator,
        Some(value) => json::separator(value, "separator of chunk keys")?,
    };
    Ok(ChunkKeys { separator, ..usual })
}
