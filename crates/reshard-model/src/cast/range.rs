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
    let zero = d != DType::Float8E8M0Fnu;
    let negative_zero = zero && !matches!(d, DType::Float8E4M3FnUz | DType::Float8E5M2FnUz);
    let infinite = negative_zero && d != DType::Float8E4M3Fn;
    let int = |signed, digits| {
        Some(Values {
            digits,
            signed,
            float: None,
            complex: false,
        })
    };
    let float = |digits, max, min| {
        let float = Float {
            max,
            min,
            zero,
            negative_zero,
            infinite,
        };
        Some(Values {
            digits,
            signed: zero,
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
        DType::Float16 => float(11, 15, -24),
        DType::BFloat16 => float(8, 127, -133),
        DType::Float32 => float(24, 127, -149),
        DType::Float64 => float(53, 1023, -1074),
        DType::Float8E5M2 => float(3, 15, -16),
        DType::Float8E5M2FnUz => float(3, 15, -17),
        DType::Float8E4M3FnUz => float(4, 7, -10),
        DType::Float8E4M3Fn => float(4, 8, -9),
        DType::Float8E8M0Fnu => float(1, 127, -127),
        DType::Complex32 | DType::BComplex32 | DType::Complex64 | DType::Complex128 => {
            super::part(d)
                .and_then(values)
                .map(|v| Values { complex: true, ..v })
        }
        _ => None,
    }
}

/// The smallest and the largest value of an int type.
pub(super) fn bounds(d: DType) -> Option<(i128, i128)> {
    let int = values(d).filter(|v| v.float.is_none() && d != DType::Bool)?;
    let end = 1i128 << int.digits;
    Some((if int.signed { -end } else { 0 }, end - 1))
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
