//! Names and settings of codecs.

use super::{
    json::{self, Named, shown},
    types::{Codec, Encoding, Sharding, Stored},
};
use reshard_model::DType;
use reshard_strategy::Refused;
use serde_json::{Map, Value};

/// The most codecs of an array.
const MAX_CODECS: usize = 16;

/// A codec from bytes to bytes, by its name in v3 or its id in v2. `location` is a setting of crc32c.
fn bytes_to_bytes(name: &str, location: Option<&Value>) -> Result<Codec, Refused> {
    // zarr-python calls numcodecs' codecs so in v3.
    Ok(match name.strip_prefix("numcodecs.").unwrap_or(name) {
        "gzip" => Codec::Gzip,
        "zlib" => Codec::Zlib,
        "zstd" => Codec::Zstd,
        "blosc" => Codec::Blosc,
        "crc32c" => Codec::Crc32c {
            at_start: location.and_then(Value::as_str) == Some("start"),
        },
        _ => return Err(unknown(name)),
    })
}

fn unknown(name: &str) -> Refused {
    Refused::unknown(format!("the codec {}", shown(&Value::from(name))))
}

/// `filters` and `compressor` of v2: the filters come first when chunks are written.
pub(crate) fn v2(of: &Map<String, Value>) -> Result<Vec<Codec>, Refused> {
    let filters = match of.get("filters") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(filters)) if filters.len() <= MAX_CODECS => filters,
        Some(other) => {
            return Err(Refused::damaged(format!(
                "filters is {}, not a short list",
                shown(other)
            )));
        }
    };
    let compressor = of.get("compressor").filter(|c| !c.is_null());
    let codec = |value: &Value| {
        let id = value
            .get("id")
            .and_then(Value::as_str)
            .ok_or_else(|| Refused::damaged(format!("the codec {} has no id", shown(value))))?;
        bytes_to_bytes(id, value.get("location"))
    };
    filters.iter().chain(compressor).map(codec).collect()
}

/// `codecs` of v3, for an array of so many axes.
pub(crate) fn v3(value: &Value, dtype: DType, axes: usize) -> Result<Encoding, Refused> {
    let codecs = list(value)?;
    let [sharding] = &*codecs else {
        if codecs.iter().any(|c| c.name == SHARDING) {
            // What is around shards would have to be undone for a whole shard before anything of it can be read.
            return Err(unknown("sharding_indexed beside other codecs"));
        }
        return Ok(Encoding::Chunk(stored(&codecs, dtype, axes)?));
    };
    if sharding.name != SHARDING {
        return Ok(Encoding::Chunk(stored(&codecs, dtype, axes)?));
    }
    let settings = sharding.settings()?;
    let inner = list(json::field(settings, "codecs")?)?;
    if inner.iter().any(|c| c.name == SHARDING) {
        return Err(unknown("sharding_indexed within sharding_indexed"));
    }
    let index = list(json::field(settings, "index_codecs")?)?;
    let index = stored(&index, DType::UInt64, axes + 1)?;
    let index_crc = match &*index.codecs {
        [] => false,
        [Codec::Crc32c { at_start: false }] => true,
        [codec, ..] => {
            return Err(unknown(&format!("{} of an index of shards", codec.name())));
        }
    };
    if index.axes.is_some() {
        return Err(unknown("transpose of an index of shards"));
    }
    let index_at_start = match sharding.get("index_location").map(Value::as_str) {
        None | Some(Some("end")) => false,
        Some(Some("start")) => true,
        _ => return Err(Refused::damaged("index_location is neither start nor end")),
    };
    Ok(Encoding::Sharded(Sharding {
        inner: json::dims(settings, "chunk_shape")?,
        stored: stored(&inner, dtype, axes)?,
        index_at_start,
        index_big_endian: index.big_endian,
        index_crc,
    }))
}

const SHARDING: &str = "sharding_indexed";

fn list(value: &Value) -> Result<Vec<Named<'_>>, Refused> {
    match value.as_array() {
        Some(codecs) if codecs.len() <= MAX_CODECS => {
            codecs.iter().map(|c| Named::of("a codec", c)).collect()
        }
        _ => Err(Refused::damaged(format!(
            "codecs is {}, not a short list",
            shown(value)
        ))),
    }
}

/// Transposes, then `bytes`, then codecs from bytes to bytes.
fn stored(codecs: &[Named<'_>], dtype: DType, axes: usize) -> Result<Stored, Refused> {
    let mut out = Stored::default();
    let mut serialised = false;
    for codec in codecs {
        match (codec.name, serialised) {
            ("transpose", false) => {
                let order = transpose(codec, axes)?;
                // A second transpose permutes the axes that the first has made.
                let new = match &out.axes {
                    Some(before) => order.iter().map(|&a| before[a]).collect(),
                    None => order,
                };
                out.axes = Some(new);
            }
            ("bytes" | "endian", false) => {
                out.big_endian = match codec.get("endian").map(Value::as_str) {
                    Some(Some("little")) => false,
                    Some(Some("big")) => true,
                    None if dtype.word() == 1 => false,
                    _ => {
                        let what = format!("the codec bytes does not say how {dtype} is ordered");
                        return Err(Refused::damaged(what));
                    }
                };
                serialised = true;
            }
            ("transpose" | "bytes" | "endian", true) => {
                let what = format!("the codec {} stands behind bytes", codec.name);
                return Err(Refused::damaged(what));
            }
            (name, _) => {
                let known = bytes_to_bytes(name, codec.get("location"))?;
                if !serialised {
                    let what = format!("the codec {name} stands before bytes");
                    return Err(Refused::damaged(what));
                }
                out.codecs.push(known);
            }
        }
    }
    if !serialised {
        return Err(Refused::damaged("no codec makes bytes of elements"));
    }
    out.axes = out.axes.filter(|axes| !axes.is_sorted());
    Ok(out)
}

fn transpose(codec: &Named<'_>, axes: usize) -> Result<Vec<usize>, Refused> {
    let order = codec.get("order").unwrap_or(&Value::Null);
    let found: Option<Vec<usize>> = match order {
        // Orders of early versions of the specification.
        Value::String(s) if s == "C" => Some((0..axes).collect()),
        Value::String(s) if s == "F" => Some((0..axes).rev().collect()),
        Value::Array(list) if list.len() == axes => list
            .iter()
            .map(|n| usize::try_from(n.as_u64()?).ok())
            .collect(),
        _ => None,
    };
    let is_permutation = |order: &Vec<usize>| {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..axes)
    };
    found.filter(is_permutation).ok_or_else(|| {
        Refused::damaged(format!(
            "transpose has the order {}, which is none of {axes} axes",
            shown(order)
        ))
    })
}
