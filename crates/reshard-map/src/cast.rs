//! Which casts lose nothing.

use reshard_model::DType;

/// Whether each value of `from` is a value of `to`. It may say no for pairs that nobody stores.
pub(crate) fn keeps_all(from: DType, to: DType) -> bool {
    use DType::{
        BFloat16, Bool, Complex64, Complex128, Float8E4M3Fn, Float8E5M2, Float16, Float32, Float64,
        Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    from == to
        || match from {
            Bool => matches!(
                to,
                UInt8 | UInt16 | UInt32 | UInt64 | Int8 | Int16 | Int32 | Int64
            ),
            UInt8 => matches!(to, UInt16 | UInt32 | UInt64 | Int16 | Int32 | Int64),
            UInt16 => matches!(to, UInt32 | UInt64 | Int32 | Int64),
            UInt32 => matches!(to, UInt64 | Int64),
            Int8 => matches!(to, Int16 | Int32 | Int64),
            Int16 => matches!(to, Int32 | Int64),
            Int32 => to == Int64,
            Float8E4M3Fn | Float8E5M2 => matches!(to, Float16 | BFloat16 | Float32 | Float64),
            Float16 | BFloat16 => matches!(to, Float32 | Float64),
            Float32 => to == Float64,
            Complex64 => to == Complex128,
            _ => false,
        }
}
