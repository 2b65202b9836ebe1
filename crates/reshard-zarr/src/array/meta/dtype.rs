//! Names of element types in Zarr.

use super::{
    fault::Fault,
    json::{Named, shown},
};
use reshard_model::DType;
use serde_json::Value;

/// The element type of a v2 array, and whether it is big-endian.
pub(crate) fn v2(value: &Value) -> Result<(DType, bool), Fault> {
    let unknown = || Fault::unknown(format!("the dtype {}", shown(value)));
    let text = value.as_str().ok_or_else(unknown)?;
    // TensorStore writes the types that numpy does not have by their names. Megatron Core wrote bfloat16 so, too.
    if let Some(dtype) = unordered(text) {
        return Ok((dtype, false));
    }
    let mut chars = text.chars();
    let order = chars.next().ok_or_else(unknown)?;
    let dtype = match chars.as_str() {
        "b1" => DType::Bool,
        "u1" => DType::UInt8,
        "u2" => DType::UInt16,
        "u4" => DType::UInt32,
        "u8" => DType::UInt64,
        "i1" => DType::Int8,
        "i2" => DType::Int16,
        "i4" => DType::Int32,
        "i8" => DType::Int64,
        "f2" => DType::Float16,
        "f4" => DType::Float32,
        "f8" => DType::Float64,
        "c8" => DType::Complex64,
        "c16" => DType::Complex128,
        _ => return Err(unknown()),
    };
    match order {
        '<' => Ok((dtype, false)),
        '>' => Ok((dtype, true)),
        // "Not relevant" is said of single bytes.
        '|' if dtype.word() == 1 => Ok((dtype, false)),
        _ => Err(unknown()),
    }
}

/// Types that have no name of numpy.
fn unordered(text: &str) -> Option<DType> {
    match text {
        "bfloat16" => Some(DType::BFloat16),
        _ => float8(text),
    }
}

fn float8(text: &str) -> Option<DType> {
    text.starts_with("float8_").then_some(())?;
    DType::ALL.iter().copied().find(|d| d.name() == text)
}

/// The element type of a v3 array.
pub(crate) fn v3(value: &Value) -> Result<DType, Fault> {
    let unknown = || Fault::unknown(format!("the data type {}", shown(value)));
    let named = Named::of("data_type", value)?;
    let dtype = match named.name {
        "complex_float32" => DType::Complex64,
        "complex_float64" => DType::Complex128,
        "complex_float16" => DType::Complex32,
        "complex_bfloat16" => DType::BComplex32,
        "bool" | "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32"
        | "uint64" | "float16" | "bfloat16" | "float32" | "float64" | "complex64"
        | "complex128" => named.name.parse().map_err(|_| unknown())?,
        name => float8(name).ok_or_else(unknown)?,
    };
    Ok(dtype)
}
