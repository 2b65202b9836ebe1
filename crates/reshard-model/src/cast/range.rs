//! Which element types hold all values of which.

use crate::DType;

/// What values a type has.
#[derive(Clone, Copy)]
struct Values {
    /// Bits of the longest magnitude that ints, or mantissas with their leading one, have.
    digits: i32,
    signed: bool,
    /// What floats have.
    float: Option<Float>,
    complex: bool,
}

#[derive(Clone, Copy)]
struct Float {
    /// Largest and smallest power of two.
    max: i32,
    min: i32,
    /// Zero, negative zero, infinities.
    zero: bool,
    negative_zero: bool,
    infinite: bool,
}

/// `None`: not known to convert to anything.
fn values(d: DType) -> Option<Values> {
    let int = |signed, digits| {
        Some(Values {
            digits,
            signed,
            float: None,
            complex: false,
        })
    };
    let float = |digits, max, min, special| {
        let float = Float {
            max,
            min,
            zero: true,
            negative_zero: special,
            infinite: special,
        };
        Some(Values {
            digits,
            signed: true,
            float: Some(float),
            complex: false,
        })
    };

    // `min` is the exponent of the smallest subnormal number, since that too has to fit.
    match d {
        DType::Bool => int(false, 1),
        DType::UInt8 => int(false, 8),
        DType::UInt16 => int(false, 16),
        DType::UInt32 => int(false, 32),
        DType::UInt64 => int(false, 64),
        DType::Int8 => int(true, 7),
        DType::Int16 => int(true, 15),
        DType::Int32 => int(true, 31),
        DType::Int64 => int(true, 63),
        DType::Float16 => float(11, 15, -24, true),
        DType::BFloat16 => float(8, 127, -133, true),
        DType::Float32 => float(24, 127, -149, true),
        DType::Float64 => float(53, 1023, -1074, true),
        DType::Float8E5M2 => float(3, 15, -16, true),
        DType::Float8E5M2FnUz => float(3, 15, -17, false),
        DType::Float8E4M3FnUz => float(4, 7, -10, false),
        DType::Float8E4M3Fn => {
            let float = Float {
                max: 8,
                min: -9,
                zero: true,
                negative_zero: true,
                infinite: false,
            };
            Some(Values {
                digits: 4,
                signed: true,
                float: Some(float),
                complex: false,
            })
        }
        DType::Float8E8M0Fnu => {
            let float = Float {
                max: 127,
                min: -127,
                zero: false,
                negative_zero: false,
                infinite: false,
            };
            Some(Values {
                digits: 1,
                signed: false,
                float: Some(float),
                complex: false,
            })
        }
        DType::Complex32 | DType::BComplex32 | DType::Complex64 | DType::Complex128 => {
            super::part(d)
                .and_then(values)
                .map(|v| Values { complex: true, ..v })
        }
        _ => None,
    }
}

/// Whether every value of `a` is one of `b`.
pub(super) fn holds(b: DType, a: DType) -> bool {
    let (Some(b), Some(a)) = (values(b), values(a)) else {
        return false;
    };
    if a.complex && !b.complex || a.signed && !b.signed || a.digits > b.digits {
        return false;
    }
    match (a.float, b.float) {
        (None, None) => true,
        (Some(_), None) => false,
        (None, Some(b)) => b.zero && b.max >= a.digits,
        (Some(a), Some(b)) => {
            a.max <= b.max
                && a.min >= b.min
                && (b.zero || !a.zero)
                && (b.negative_zero || !a.negative_zero)
                && (b.infinite || !a.infinite)
        }
    }
}
