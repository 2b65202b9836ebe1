//! `.zarray` and `.zmetadata` of Zarr v2.

use super::{
    codec, dtype,
    fault::Fault,
    fill,
    json::{self, shown},
    keys::ChunkKeys,
    types::{ArrayMeta, Encoding, Node, Stored},
};
use crate::stated::ZATTRS;
use serde_json::{Map, Value};

const ZARRAY: &str = ".zarray";
/// Consolidated metadata.
pub(super) const ZMETADATA: &str = ".zmetadata";

/// Parses a `.zarray`.
///
/// # Errors
/// It is damaged, or this version does not know its dtype, order or codec.
pub(crate) fn parse_zarray(text: &[u8]) -> Result<ArrayMeta, Fault> {
    array(&json::parse(ZARRAY, text)?)
}

/// Parses the consolidated metadata of a v2 group: its arrays, by path. The path of an array at the root is empty.
///
/// # Errors
/// It is damaged. A damaged or unknown array is an error of its own.
pub(crate) fn parse_zmetadata(text: &[u8]) -> Result<Vec<(String, Node)>, Fault> {
    let mut fields = json::parse(ZMETADATA, text)?;
    let metadata = match fields.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => return Err(Fault::damaged(".zmetadata has no metadata")),
    };
    let mut out = Vec::new();
    for (name, value) in metadata {
        let path = match name.strip_suffix(ZARRAY) {
            Some("") => "",
            Some(folder) => match folder.strip_suffix('/') {
                Some(path) => path,
                None => continue,
            },
            None if is_zattrs(&name) && !value.is_object() => {
                out.push((name, Node::Array(Box::new(Err(no_attributes())))));
                continue;
            }
            None => continue,
        };
        let found = match &value {
            Value::Object(fields) => array(fields),
            _ => Err(Fault::damaged(format!("it is {}", shown(&value)))),
        };
        out.push((path.to_owned(), Node::Array(Box::new(found))));
    }
    Ok(out)
}

fn is_zattrs(name: &str) -> bool {
    name.rsplit('/').next() == Some(ZATTRS)
}

/// What is wrong with a `.zattrs` that is no object.
pub(crate) fn no_attributes() -> Fault {
    Fault::damaged("its attributes are no JSON object")
}

fn array(of: &Map<String, Value>) -> Result<ArrayMeta, Fault> {
    match json::field(of, "zarr_format")?.as_u64() {
        Some(2) => {}
        _ => {
            let format = shown(&of["zarr_format"]);
            return Err(Fault::unknown(format!(
                "version {format} of Zarr in {ZARRAY}"
            )));
        }
    }
    let shape = json::dims(of, "shape")?;
    let (dtype, big_endian) = dtype::v2(json::field(of, "dtype")?)?;
    let axes = match of.get("order").map_or(Some("C"), Value::as_str) {
        Some("C") => None,
        Some("F") => Some((0..shape.len()).rev().collect()).filter(|_| shape.len() > 1),
        _ => return Err(Fault::damaged("its order is neither C nor F")),
    };
    let separator = match of.get("dimension_separator") {
        None | Some(Value::Null) => '.',
        Some(value) => match value.as_str() {
            Some(".") => '.',
            Some("/") => '/',
            _ => {
                let what = format!("its dimension_separator is {}", shown(value));
                return Err(Fault::damaged(what));
            }
        },
    };
    ArrayMeta {
        chunk: json::dims(of, "chunks")?,
        shape,
        dtype,
        fill: fill::parse(of.get("fill_value").unwrap_or(&Value::Null), dtype)?,
        keys: ChunkKeys {
            separator,
            ..ChunkKeys::DOTS
        },
        encoding: Encoding::Chunk(Stored {
            big_endian,
            axes,
            codecs: codec::v2(of)?,
        }),
    }
    .checked()
}
