//! Ints beyond 64 bits as text.

use reshard::strategy::hex;

/// Ints up to so many bytes are written in decimal, larger ones in hexadecimal, which takes no time that grows with the
/// square of their length.
const DECIMAL: usize = 512;

/// Text of an int in two's complement, little-endian.
pub(super) fn text(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let sign = if negative { "-" } else { "" };
    let mut magnitude = bytes.to_vec();
    if negative {
        let mut carry = true;
        for b in &mut magnitude {
            let (low, over) = (!*b).overflowing_add(u8::from(carry));
            (*b, carry) = (low, over);
        }
    }
    if magnitude.len() > DECIMAL {
        magnitude.reverse();
        return format!("{sign}0x{}", hex(&magnitude).trim_start_matches('0'));
    }
    decimal(sign, &magnitude)
}

/// Decimal digits of a few bytes.
fn decimal(sign: &str, magnitude: &[u8]) -> String {
    // Nine decimal digits each, the last ones first.
    let mut groups = vec![0u64];
    for byte in magnitude.iter().rev() {
        let mut carry = u64::from(*byte);
        for group in &mut groups {
            carry += *group << 8;
            *group = carry % 1_000_000_000;
            carry /= 1_000_000_000;
        }
        groups.extend((carry > 0).then_some(carry));
    }
    let mut out = format!("{sign}{}", groups.pop().unwrap_or(0));
    groups.iter().rev().for_each(|g| out += &format!("{g:09}"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ints_are_right_in_both_forms() {
        for power in 0..38 {
            let ten = 10i128.pow(power);
            for i in [ten, -ten, ten + 7, 1 - ten] {
                assert_eq!(text(&i.to_le_bytes()), i.to_string());
            }
        }
        // 2^4088
        let mut long = vec![0; 512];
        long[511] = 1;
        let digits = text(&long);
        assert_eq!(
            (digits.len(), &digits[..9], &digits[1222..]),
            (1231, "407964406", "699821056")
        );
        long.push(0);
        assert_eq!(text(&long), format!("0x1{}", "00".repeat(511)));
        long[512] = 0xff;
        assert_eq!(text(&long), format!("-0x{}{}", "ff", "00".repeat(511)));
    }
}
