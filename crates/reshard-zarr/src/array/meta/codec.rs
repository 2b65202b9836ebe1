//! Single codecs: names and settings.

use super::{
    dtype,
    json::shown,
    types::{Codec, Element, Numbers, Recoded, Sum},
};
use reshard_model::DType;
use reshard_strategy::Refused;
use serde_json::Value;

/// A codec of the metadata: its name in v3 or its id in v2, and its settings.
pub(super) struct Stated<'a> {
    pub(super) name: &'a str,
    pub(super) get: &'a dyn Fn(&str) -> Option<&'a Value>,
}

/// What the names of numcodecs' codecs begin with where zarr-python writes v3.
const NUMCODECS: &str = "numcodecs.";

/// A codec for elements of a type. `None` if there is nothing to undo.
pub(super) fn codec(stated: &Stated<'_>, dtype: DType) -> Result<Option<Codec>, Refused> {
    let checksum = |sum, at_start: bool| {
        let at_start = match (stated.get)("location").and_then(Value::as_str) {
            Some("start") => true,
            Some("end") => false,
            _ => at_start,
        };
        Codec::Checksum { sum, at_start }
    };
    Ok(Some(match short(stated.name) {
        "gzip" => Codec::Gzip,
        "zlib" => Codec::Zlib,
        "zstd" => Codec::Zstd,
        "bz2" => Codec::Bz2,
        "blosc" => Codec::Blosc,
        "lz4" => Codec::Lz4,
        "crc32c" => checksum(Sum::Crc32c, false),
        "crc32" => checksum(Sum::Crc32, true),
        "adler32" => checksum(Sum::Adler32, true),
        // It has no location.
        "fletcher32" => Codec::Checksum {
            sum: Sum::Fletcher32,
            at_start: false,
        },
        "shuffle" => shuffle(stated)?,
        _ => return filter(stated, dtype),
    }))
}

fn short(name: &str) -> &str {
    name.strip_prefix(NUMCODECS).unwrap_or(name)
}

pub(super) fn unknown(name: &str) -> Refused {
    Refused::unknown(format!("the codec {}", shown(&Value::from(name))))
}

/// Whether it is a filter on numbers, which stands before `bytes` in v3.
pub(super) fn is_filter(name: &str) -> bool {
    // Without the prefix, `packbits` is another codec, which makes bytes of elements.
    ["bitround", "delta", "fixedscaleoffset"].contains(&short(name)) || name == "numcodecs.packbits"
}

fn filter(stated: &Stated<'_>, dtype: DType) -> Result<Option<Codec>, Refused> {
    Ok(Some(match short(stated.name) {
        // Numbers without their last bits are numbers.
        "bitround" => return Ok(None),
        "delta" => Codec::Delta(delta(stated, dtype)?),
        "fixedscaleoffset" => Codec::Scale {
            offset: number(stated, "offset")?,
            scale: number(stated, "scale")?,
            numbers: recoded(stated, dtype)?,
        },
        "packbits" if dtype == DType::Bool => Codec::PackBits,
        "packbits" => return Err(unknown(&format!("{} of {dtype}", stated.name))),
        _ => return Err(unknown(stated.name)),
    }))
}

fn shuffle(stated: &Stated<'_>) -> Result<Codec, Refused> {
    /// NumPy's largest elements that anybody shuffles have 16 bytes.
    const MOST: u64 = 1 << 16;
    let size = (stated.get)("elementsize");
    let known = match size {
        // The default of numcodecs.
        None => Some(4),
        Some(size) => size.as_u64().filter(|size| (1..=MOST).contains(size)),
    };
    match (known, size) {
        (Some(size), _) => Ok(Codec::Shuffle {
            element: size as usize,
        }),
        (None, size) => {
            let size = shown(size.unwrap_or(&Value::Null));
            let what = format!("the elementsize of shuffle is {size}");
            Err(Refused::damaged(what))
        }
    }
}

fn number(stated: &Stated<'_>, setting: &str) -> Result<f64, Refused> {
    let value = (stated.get)(setting);
    value.and_then(Value::as_f64).ok_or_else(|| {
        let (name, value) = (stated.name, shown(value.unwrap_or(&Value::Null)));
        Refused::damaged(format!("the {setting} of {name} is {value}, not a number"))
    })
}

/// Differences of integers are not stored as floats.
fn delta(stated: &Stated<'_>, dtype: DType) -> Result<Recoded, Refused> {
    let found = recoded(stated, dtype)?;
    let (from, to) = (found.encoded.dtype, found.decoded.dtype);
    match from.is_float() && !to.is_float() {
        false => Ok(found),
        true => Err(unknown(&format!("{} from {to} to {from}", stated.name))),
    }
}

/// The settings `dtype` and `astype` of a filter.
fn recoded(stated: &Stated<'_>, dtype: DType) -> Result<Recoded, Refused> {
    let refused = |what: &str| unknown(&format!("{} of {what}", stated.name));
    let checked = |dtype, big_endian| match is_number(dtype) {
        true => Ok(Numbers { dtype, big_endian }),
        false => Err(refused(dtype.name())),
    };
    let numbers = |setting: &str| {
        let Some(value) = (stated.get)(setting).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        // NumPy's long names are those of v3.
        let element = dtype::v2(value).or_else(|_| dtype::v3(value));
        match element {
            Ok(Element {
                dtype,
                big_endian,
                stated: None,
            }) => checked(dtype, big_endian).map(Some),
            _ => Err(refused(&shown(value))),
        }
    };
    let decoded = numbers("dtype")?.map_or_else(|| checked(dtype, false), Ok)?;
    let encoded = numbers("astype")?.unwrap_or(decoded);
    Ok(Recoded { decoded, encoded })
}

/// Whether filters know numbers of this type.
fn is_number(dtype: DType) -> bool {
    use DType::{
        Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    matches!(
        dtype,
        Float16
            | Float32
            | Float64
            | Int8
            | Int16
            | Int32
            | Int64
            | UInt8
            | UInt16
            | UInt32
            | UInt64
    )
}
