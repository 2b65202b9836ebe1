//! `.zarray` and `.zmetadata` of Zarr v2.

use super::{
    chain, dtype, fill,
    json::{self, shown},
    keys::ChunkKeys,
    types::{ArrayMeta, Element, Encoding, Node, Stored},
};
use crate::names::{ZARRAY, ZATTRS, ZMETADATA};
use reshard_strategy::Refused;
use serde_json::{Map, Value};

/// Parses a `.zarray`.
///
/// # Errors
/// It is damaged, or this version does not know its dtype, order or codec.
pub(crate) fn parse_zarray(text: &[u8]) -> Result<ArrayMeta, Refused> {
    array(&json::parse(ZARRAY, text)?)
}

/// Parses the consolidated metadata of a v2 group: its arrays, by path. The path of an array at the root is empty.
///
/// # Errors
/// It is damaged. A damaged or unknown array is an error of its own.
pub(crate) fn parse_zmetadata(text: &[u8]) -> Result<Vec<(String, Node)>, Refused> {
    let mut fields = json::parse(ZMETADATA, text)?;
    let metadata = match fields.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => return Err(Refused::damaged(".zmetadata has no metadata")),
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
            _ => Err(Refused::damaged(format!("it is {}", shown(&value)))),
        };
        out.push((path.to_owned(), Node::Array(Box::new(found))));
    }
    Ok(out)
}

fn is_zattrs(name: &str) -> bool {
    name.rsplit('/').next() == Some(ZATTRS)
}

/// What is wrong with a `.zattrs` that is no object.
pub(crate) fn no_attributes() -> Refused {
    Refused::damaged("its attributes are no JSON object")
}

fn array(of: &Map<String, Value>) -> Result<ArrayMeta, Refused> {
    json::version(of, ZARRAY, 2)?;
    let shape = json::dims(of, "shape")?;
    let Element {
        dtype,
        big_endian,
        stated,
    } = dtype::v2(json::field(of, "dtype")?).map_err(|why| objects(of).unwrap_or(why))?;
    let axes = match of.get("order").map_or(Some("C"), Value::as_str) {
        Some("C") => None,
        Some("F") => Some((0..shape.len()).rev().collect()).filter(|_| shape.len() > 1),
        _ => return Err(Refused::damaged("its order is neither C nor F")),
    };
    let separator = match of.get("dimension_separator") {
        None | Some(Value::Null) => '.',
        Some(value) => json::separator(value, "dimension_separator")?,
    };
    ArrayMeta {
        chunk: json::dims(of, "chunks")?,
        shape,
        dtype,
        stated,
        fill: fill::parse(of.get("fill_value").unwrap_or(&Value::Null), dtype)?,
        keys: ChunkKeys {
            separator,
            ..ChunkKeys::DOTS
        },
        encoding: Encoding::Chunk(Stored {
            big_endian,
            axes,
            codecs: chain::v2(of, dtype)?,
        }),
    }
    .checked()
}

/// The refusal of an array of objects, such as strings, with the codec that stores them.
fn objects(of: &Map<String, Value>) -> Option<Refused> {
    let filter = of.get("filters")?.as_array()?.first()?.get("id")?;
    let what = format!(
        "the dtype \"|O\" of objects, which the codec {} stores",
        shown(filter)
    );
    (of.get("dtype")? == "|O").then(|| Refused::unknown(what))
}
