//! Lists of codecs.

use super::{
    codec::{Stated, codec, is_filter, unknown},
    json::{self, Named, shown},
    types::{Codec, Encoding, Sharding, Stored, Sum},
};
use reshard_model::DType;
use reshard_strategy::Refused;
use serde_json::{Map, Value};

/// The most codecs of an array.
const MAX_CODECS: usize = 16;

/// `filters` and `compressor` of v2: the filters come first when chunks are written.
pub(crate) fn v2(of: &Map<String, Value>, dtype: DType) -> Result<Vec<Codec>, Refused> {
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
        let name = value
            .get("id")
            .and_then(Value::as_str)
            .ok_or_else(|| Refused::damaged(format!("the codec {} has no id", shown(value))))?;
        let get = |setting: &str| value.get(setting);
        codec(&Stated { name, get: &get }, dtype)
    };
    let all = filters.iter().chain(compressor);
    all.filter_map(|value| codec(value).transpose()).collect()
}

/// The most shards that may be within each other.
const MAX_SHARDINGS: usize = 8;

/// `codecs` of v3, for an array of so many axes.
pub(crate) fn v3(value: &Value, dtype: DType, axes: usize) -> Result<Encoding, Refused> {
    encoding(value, dtype, (axes, None), MAX_SHARDINGS)
}

/// The same for what is in a shard whose axes were transposed before. There may be so many more levels of shards.
fn encoding(
    value: &Value,
    dtype: DType,
    (axes, before): (usize, Option<Vec<usize>>),
    levels: usize,
) -> Result<Encoding, Refused> {
    let codecs = list(value)?;
    let at = codecs.iter().position(|c| c.name == SHARDING);
    let Some((around, [sharding, behind @ ..])) = at.map(|at| codecs.split_at(at)) else {
        return Ok(Encoding::Chunk(stored(&codecs, dtype, (axes, before))?));
    };
    let mut order = before;
    for codec in around {
        match codec.name {
            "transpose" => order = Some(transposed(codec, axes, order)?),
            name => return Err(unknown(&format!("{name} before {SHARDING}"))),
        }
    }
    if let Some(codec) = behind.first() {
        // It would have to be undone for a whole shard before anything of it can be read.
        return Err(unknown(&format!("{} around {SHARDING}", codec.name)));
    }
    let Some(levels) = levels.checked_sub(1) else {
        let what = format!("{SHARDING} on more than {MAX_SHARDINGS} levels");
        return Err(unknown(&what));
    };
    sharded(sharding, dtype, (axes, order), levels).map(Encoding::Sharded)
}

fn sharded(
    sharding: &Named<'_>,
    dtype: DType,
    (axes, order): (usize, Option<Vec<usize>>),
    levels: usize,
) -> Result<Sharding, Refused> {
    let settings = sharding.settings()?;
    let index = list(json::field(settings, "index_codecs")?)?;
    let index = stored(&index, DType::UInt64, (axes + 1, None))?;
    let index_crc = match &*index.codecs {
        [] => false,
        [
            Codec::Checksum {
                sum: Sum::Crc32c,
                at_start: false,
            },
        ] => true,
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
    let mut inner = json::dims(settings, "chunk_shape")?;
    if let Some(order) = order.as_ref().filter(|order| order.len() == inner.len()) {
        // It counts the axes as they were transposed.
        let stated = inner.clone();
        for (axis, length) in order.iter().zip(&stated) {
            inner[*axis] = *length;
        }
    }
    let within = encoding(
        json::field(settings, "codecs")?,
        dtype,
        (axes, order.clone()),
        levels,
    )?;
    Ok(Sharding {
        inner,
        axes: order.filter(|axes| !axes.is_sorted()),
        within: Box::new(within),
        index_at_start,
        index_big_endian: index.big_endian,
        index_crc,
    })
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

/// Transposes and filters, then `bytes`, then codecs from bytes to bytes.
fn stored(
    codecs: &[Named<'_>],
    dtype: DType,
    (axes, before): (usize, Option<Vec<usize>>),
) -> Result<Stored, Refused> {
    let mut out = Stored {
        axes: before,
        ..Stored::default()
    };
    let (mut serialised, mut filter) = (false, None);
    for stated in codecs {
        match (stated.name, serialised) {
            ("transpose", false) => {
                out.axes = Some(transposed(stated, axes, out.axes)?);
            }
            ("bytes" | "endian", false) => {
                out.big_endian = match stated.get("endian").map(Value::as_str) {
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
                let what = format!("the codec {} stands behind bytes", stated.name);
                return Err(Refused::damaged(what));
            }
            (name, _) => {
                let get = |setting: &str| stated.get(setting);
                let known = codec(&Stated { name, get: &get }, dtype)?;
                if is_filter(name) == serialised {
                    let side = if serialised { "behind" } else { "before" };
                    let what = format!("the codec {name} stands {side} bytes");
                    return Err(Refused::damaged(what));
                }
                filter = filter.or((!serialised).then_some(name));
                out.codecs.extend(known);
            }
        }
    }
    if !serialised {
        return Err(Refused::damaged("no codec makes bytes of elements"));
    }
    out.axes = out.axes.filter(|axes| !axes.is_sorted());
    if let Some(name) = filter {
        // zarr-python gives its own arrays back wrong then.
        if out.axes.is_some() {
            return Err(unknown(&format!("{name} beside transpose")));
        }
        if out.big_endian {
            return Err(unknown(&format!("{name} of big-endian elements")));
        }
    }
    Ok(out)
}

/// The order of axes after a transpose of axes that were transposed `before`.
fn transposed(
    codec: &Named<'_>,
    axes: usize,
    before: Option<Vec<usize>>,
) -> Result<Vec<usize>, Refused> {
    let order = transpose(codec, axes)?;
    // It permutes the axes that the transposes before it have made.
    Ok(match before {
        Some(before) => order.iter().map(|&axis| before[axis]).collect(),
        None => order,
    })
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
