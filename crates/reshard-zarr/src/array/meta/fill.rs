//! The value of elements that are not stored.

use super::json::shown;
use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use reshard_model::DType;
use reshard_plan::cast;
use reshard_strategy::Refused;
use serde_json::Value;

/// The bytes of one element, little-endian. `null` is zero.
pub(crate) fn parse(value: &Value, dtype: DType) -> Result<Vec<u8>, Refused> {
    let size = dtype.size() as usize;
    if value.is_null() {
        return Ok(vec![0; size]);
    }
    let wrong = || Refused::damaged(format!("the fill value {} is no {dtype}", shown(value)));
    let found = match (dtype, value) {
        (DType::Bool, Value::Bool(b)) => Some(vec![u8::from(*b)]),
        (DType::Bool, Value::Number(n)) => match n.as_u64() {
            Some(n @ 0..=1) => Some(vec![n as u8]),
            _ => None,
        },
        (d, Value::Array(parts)) if d.is_complex() => complex(parts, d),
        (d, Value::Number(_) | Value::String(_)) if d.is_complex() => {
            // A number alone is real.
            real(value, part(d)).map(|mut re| {
                re.resize(size, 0);
                re
            })
        }
        // NumPy's "not a time".
        (DType::Int64, Value::String(text)) if text == "NaT" => Some(i64::MIN.to_le_bytes().into()),
        (d, _) => real(value, d),
    };
    found
        .or_else(|| base64(value.as_str()?).filter(|bytes| bytes.len() == size))
        .ok_or_else(wrong)
}

fn complex(parts: &[Value], dtype: DType) -> Option<Vec<u8>> {
    let [re, im] = parts else { return None };
    let mut out = real(re, part(dtype))?;
    out.extend(real(im, part(dtype))?);
    Some(out)
}

/// The type of the two parts of a complex number.
fn part(dtype: DType) -> DType {
    match dtype {
        DType::Complex128 => DType::Float64,
        DType::Complex64 => DType::Float32,
        DType::BComplex32 => DType::BFloat16,
        _ => DType::Float16,
    }
}

/// An int or a float.
fn real(value: &Value, dtype: DType) -> Option<Vec<u8>> {
    if dtype.is_float() {
        return float(value, dtype);
    }
    let number: i128 = match value {
        Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(n), ..) => n.into(),
            (_, Some(n), _) => n.into(),
            // Beyond 2^53 a float does not say which int it means.
            (.., Some(x)) if x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0 => x as i128,
            _ => return None,
        },
        _ => return None,
    };
    let bits = u32::try_from(dtype.size()).ok()? * 8;
    let (least, most) = match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        }
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => (0, (1i128 << bits) - 1),
        _ => return None,
    };
    (least..=most)
        .contains(&number)
        .then(|| number.to_le_bytes()[..bits as usize / 8].to_vec())
}

fn float(value: &Value, dtype: DType) -> Option<Vec<u8>> {
    let mut out = vec![0; dtype.size() as usize];
    let number = match value {
        Value::Number(n) => n.as_f64()?,
        Value::String(text) => match text.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            // The bits of the number, as v3 writes a NaN that is not the usual one.
            text => return bits(text.strip_prefix("0x")?, out.len()),
        },
        _ => return None,
    };
    cast::convert(DType::Float64, &number.to_le_bytes(), dtype, &mut out).ok()?;
    Some(out)
}

/// Hexadecimal digits, the most significant first.
fn bits(digits: &str, size: usize) -> Option<Vec<u8>> {
    if digits.len() != size * 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = u64::from_str_radix(digits, 16).ok()?;
    Some(number.to_le_bytes()[..size].to_vec())
}

/// Spare bits of the last digit may have any value.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The bytes of an element of at most 16 bytes. numpy's raw types have such fill values.
fn base64(text: &str) -> Option<Vec<u8>> {
    let short = Some(text).filter(|text| text.len() <= 24)?;
    BASE64.decode(short).ok()
}
