//! Names of element types in Zarr.

use super::{
    json::{Named, shown},
    types::{Approximated, Element},
};
use crate::{zarr3, zarray};
use reshard_model::DType;
use reshard_strategy::Refused;
use serde_json::Value;

/// The element type of a v2 array.
pub(crate) fn v2(value: &Value) -> Result<Element, Refused> {
    let unknown = || Refused::unknown(format!("the dtype {}", shown(value)));
    let text = value.as_str().ok_or_else(unknown)?;
    // TensorStore writes the types that numpy does not have by their names. Megatron Core wrote bfloat16 so, too.
    if let Some(dtype) = unordered(text) {
        return Ok(plain(dtype));
    }
    if let Some(narrow) = narrow(text) {
        return Ok(narrow);
    }
    let (order, name) = text.split_at_checked(1).ok_or_else(unknown)?;
    let (dtype, stated) = if is_time(name) {
        let kind = if name.starts_with('M') {
            "datetime64"
        } else {
            "timedelta64"
        };
        let stated = Approximated::Time(format!("{kind}{}", &name[2..]).into());
        (DType::Int64, Some(stated))
    } else {
        let is_named = |dtype: &DType| {
            let spelling = zarray::spelling(*dtype);
            spelling.and_then(|text| text.strip_prefix(['<', '|'])) == Some(name)
        };
        let dtype = DType::ALL.iter().copied().find(is_named);
        (dtype.ok_or_else(unknown)?, None)
    };
    let big_endian = match order {
        "<" => false,
        ">" => true,
        // "Not relevant" is said of single bytes.
        "|" if dtype.word() == 1 => false,
        _ => return Err(unknown()),
    };
    Ok(Element {
        dtype,
        big_endian,
        stated,
    })
}

fn plain(dtype: DType) -> Element {
    Element {
        dtype,
        big_endian: false,
        stated: None,
    }
}

/// Types that have no name of numpy.
fn unordered(text: &str) -> Option<DType> {
    let is_unordered = text == "bfloat16" || text.starts_with("float8_");
    let mut all = DType::ALL.iter().copied();
    all.find(|dtype| is_unordered && dtype.name() == text)
}

/// TensorStore's integers of fewer than 8 bits. Each has a byte, of which only the lower bits count.
fn narrow(text: &str) -> Option<Element> {
    let bits = match text {
        "int2" => 2,
        "int4" => 4,
        _ => return None,
    };
    Some(Element {
        stated: Some(Approximated::Narrow(bits)),
        ..plain(DType::Int8)
    })
}

/// Whether it is a type of NumPy for points in time or durations, such as `M8[ns]`.
fn is_time(name: &str) -> bool {
    /// The longest unit that NumPy writes is one like `[25s/25]`.
    const LONGEST: usize = 32;
    name.len() <= LONGEST
        && (name.starts_with("M8[") || name.starts_with("m8["))
        && name.ends_with(']')
}

/// The element type of a v3 array.
pub(crate) fn v3(value: &Value) -> Result<Element, Refused> {
    let unknown = || Refused::unknown(format!("the data type {}", shown(value)));
    let named = Named::of("data_type", value)?;
    if let Some(narrow) = narrow(named.name) {
        return Ok(narrow);
    }
    let dtype = match named.name {
        "complex_float32" => Some(DType::Complex64),
        "complex_float64" => Some(DType::Complex128),
        "numpy.datetime64" | "numpy.timedelta64" => {
            let unit = named.get("unit").and_then(Value::as_str);
            let factor = named.get("scale_factor").map_or(Some(1), Value::as_u64);
            let (Some(unit), Some(factor)) = (unit, factor) else {
                return Err(unknown());
            };
            let name = named.name.trim_start_matches("numpy.");
            let factor = if factor == 1 {
                String::new()
            } else {
                factor.to_string()
            };
            let stated = format!("{name}[{factor}{unit}]");
            return Ok(Element {
                stated: Some(Approximated::Time(stated.into())),
                ..plain(DType::Int64)
            });
        }
        name => DType::ALL
            .iter()
            .copied()
            .find(|dtype| zarr3::spelling(*dtype) == Some(name)),
    };
    dtype.map(plain).ok_or_else(unknown)
}
