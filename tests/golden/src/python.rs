//! Values held against what Python said of them.

mod numpy;
mod repr;
mod typed;

pub use repr::{Cannot, says};
pub use typed::same;

use reshard::{
    Value,
    model::{Construct, Opaque},
};

/// Positional arguments that an object is made of.
fn args(o: &Opaque) -> &[Value] {
    match &o.construct {
        Construct::Reduce(a) | Construct::NewObj(a) | Construct::NewObjEx(a, _) => a,
        _ => &[],
    }
}

/// A float as Python writes it: as few digits as tell it apart.
fn float(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.into();
    }
    let text = format!("{v:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = format!("{v}");
        return if text.contains('.') {
            text
        } else {
            text + ".0"
        };
    }
    format!(
        "{digits}e{}{:02}",
        if exponent < 0 { '-' } else { '+' },
        exponent.abs()
    )
}

/// An int of any size, from two's complement in little-endian bytes.
fn big(le: &[u8]) -> String {
    let negative = le.last().is_some_and(|b| b & 0x80 != 0);
    let mut magnitude = le.to_vec();
    if negative {
        let mut carry = true;
        for b in &mut magnitude {
            (*b, carry) = (!*b).overflowing_add(u8::from(carry));
        }
    }
    let mut digits: Vec<u8> = Vec::new();
    for &b in magnitude.iter().rev() {
        let mut carry = u32::from(b);
        for d in &mut digits {
            carry += u32::from(*d) * 256;
            *d = (carry % 10) as u8;
            carry /= 10;
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
    }
    let text: String = digits.iter().rev().map(|d| char::from(b'0' + d)).collect();
    format!(
        "{}{}",
        if negative { "-" } else { "" },
        if text.is_empty() { "0" } else { &text }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for (v, text) in [
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (123456789012345.0, "123456789012345.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(v), text);
        }
        assert_eq!(big(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), "9223372036854775808");
        assert_eq!(big(&[0xff, 0xff]), "-1");
        assert_eq!(big(&[0]), "0");
    }
}
