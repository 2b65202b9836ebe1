//! The text of `.zarray`, as zarr-python writes it for Megatron Core.

use bytes::Bytes;
use reshard_model::{DType, Dims};
use serde::Serialize;
use serde_json::{
    json,
    ser::{PrettyFormatter, Serializer},
};

/// An array of NumPy has no more axes.
pub(crate) const MAX_AXES: usize = 64;

/// How Zarr v2 spells an element type. NumPy's spelling, or else the name that TensorStore gives to types that NumPy lacks. `None` for
/// types that neither has.
pub(crate) fn spelling(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::UInt8 => "|u1",
        DType::UInt16 => "<u2",
        DType::UInt32 => "<u4",
        DType::UInt64 => "<u8",
        DType::Int8 => "|i1",
        DType::Int16 => "<i2",
        DType::Int32 => "<i4",
        DType::Int64 => "<i8",
        DType::Float16 => "<f2",
        DType::Float32 => "<f4",
        DType::Float64 => "<f8",
        DType::Complex64 => "<c8",
        DType::Complex128 => "<c16",
        DType::BFloat16 => "bfloat16",
        DType::Float8E4M3Fn => "float8_e4m3fn",
        DType::Float8E4M3FnUz => "float8_e4m3fnuz",
        DType::Float8E5M2 => "float8_e5m2",
        DType::Float8E5M2FnUz => "float8_e5m2fnuz",
        _ => return None,
    })
}

/// The description of an uncompressed array, byte for byte as Megatron Core has it written.
pub(crate) fn text(shape: &Dims, chunks: &Dims, dtype: &str) -> serde_json::Result<Bytes> {
    let mut out = Vec::new();
    let indented = PrettyFormatter::with_indent(b"    ");
    // In alphabetical order, because zarr-python sorts them.
    let fields = json!({
        "chunks": chunks,
        "compressor": null,
        "dtype": dtype,
        "fill_value": null,
        "filters": null,
        "order": "C",
        "shape": shape,
        "zarr_format": 2,
    });
    fields.serialize(&mut Serializer::with_formatter(&mut out, indented))?;
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_zarr_python() {
        let text = text(&[2, 6].into(), &[2, 3].into(), "<i8").unwrap();
        let want = "{\n    \"chunks\": [\n        2,\n        3\n    ],\n    \"compressor\": null,\n    \"dtype\": \"<i8\",\n    \"fill_value\": null,\n    \"filters\": null,\n    \"order\": \"C\",\n    \"shape\": [\n        2,\n        6\n    ],\n    \"zarr_format\": 2\n}";
        assert_eq!(text, want);
        let scalar = super::text(&Dims::default(), &Dims::default(), "<f4").unwrap();
        assert!(scalar.starts_with(b"{\n    \"chunks\": [],\n"));
    }
}
