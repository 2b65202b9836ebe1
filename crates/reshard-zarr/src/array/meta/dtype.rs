//! Names of element types in Zarr.

use super::json::{Named, shown};
use crate::{zarr3, zarray};
use reshard_model::DType;
use reshard_strategy::Refused;
use serde_json::Value;

/// The element type of a v2 array, and whether it is big-endian.
pub(crate) fn v2(value: &Value) -> Result<(DType, bool), Refused> {
    let unknown = || Refused::unknown(format!("the dtype {}", shown(value)));
    let text = value.as_str().ok_or_else(unknown)?;
    // TensorStore writes the types that numpy does not have by their names. Megatron Core wrote bfloat16 so, too.
    if let Some(dtype) = unordered(text) {
        return Ok((dtype, false));
    }
    let (order, name) = text.split_at_checked(1).ok_or_else(unknown)?;
    let is_named = |dtype: &DType| {
        let spelling = zarray::spelling(*dtype);
        spelling.and_then(|text| text.strip_prefix(['<', '|'])) == Some(name)
    };
    let dtype = DType::ALL.iter().copied().find(is_named);
    let dtype = dtype.ok_or_else(unknown)?;
    match order {
        "<" => Ok((dtype, false)),
        ">" => Ok((dtype, true)),
        // "Not relevant" is said of single bytes.
        "|" if dtype.word() == 1 => Ok((dtype, false)),
        _ => Err(unknown()),
    }
}

/// Types that have no name of numpy.
fn unordered(text: &str) -> Option<DType> {
    let is_unordered = text == "bfloat16" || text.starts_with("float8_");
    let mut all = DType::ALL.iter().copied();
    all.find(|dtype| is_unordered && dtype.name() == text)
}

/// The element type of a v3 array.
pub(crate) fn v3(value: &Value) -> Result<DType, Refused> {
    let unknown = || Refused::unknown(format!("the data type {}", shown(value)));
    let named = Named::of("data_type", value)?;
    let dtype = match named.name {
        "complex_float32" => Some(DType::Complex64),
        "complex_float64" => Some(DType::Complex128),
        name => DType::ALL
            .iter()
            .copied()
            .find(|dtype| zarr3::spelling(*dtype) == Some(name)),
    };
    dtype.ok_or_else(unknown)
}
