//! Arguments that stand as text in the old protocols, and ints of any size.

use std::borrow::Cow;

/// The shortest two's complement that means the same.
pub(crate) fn shortest(mut le: &[u8]) -> &[u8] {
    while let Some((&top, below)) = le.split_last() {
        let below_is_negative = below.last().is_some_and(|b| b & 0x80 != 0);
        let spare = (top == 0 && !below_is_negative) || (top == 0xFF && below_is_negative);
        if !spare {
            break;
        }
        le = below;
    }
    le
}

/// An int of up to eight bytes; `None` if it is larger.
#[inline]
pub(crate) fn small(le: &[u8]) -> Option<i64> {
    let le = if le.len() <= 8 { le } else { shortest(le) };
    let fill = if le.last().is_some_and(|b| b & 0x80 != 0) {
        0xFF
    } else {
        0
    };
    let mut out = [fill; 8];
    out.get_mut(..le.len())?.copy_from_slice(le);
    Some(i64::from_le_bytes(out))
}

/// Most decimal digits of an int that is longer than 64 bits: they cost the square of their number. Python has set itself the
/// same limit for them.
pub(crate) const MAX_DIGITS: usize = 4300;

/// A decimal number as text becomes two's complement, least significant byte first.
pub(crate) fn decimal(text: &str) -> Option<Vec<u8>> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    // Eighteen digits at a time fit a word.
    let mut words: Vec<u64> = Vec::new();
    for group in digits.as_bytes().chunks(18) {
        let (mut scale, mut carry) = (1u128, 0u128);
        for d in group {
            (scale, carry) = (scale * 10, carry * 10 + u128::from(d - b'0'));
        }
        for word in &mut words {
            carry += u128::from(*word) * scale;
            *word = carry as u64;
            carry >>= 64;
        }
        if carry > 0 {
            words.push(carry as u64);
        }
    }
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    out.push(0);
    if negative {
        let mut carry = true;
        for byte in &mut out {
            let (v, c) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (v, c);
        }
    }
    let n = shortest(&out).len();
    out.truncate(n);
    Some(out)
}

/// Up to eight hexadecimal digits, without a sign.
fn hex(digits: &[u8]) -> Option<u32> {
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Python's raw-unicode-escape: Latin-1 with `\uXXXX` and `\UXXXXXXXX`. `None` if an escape is no character.
pub(crate) fn raw_unicode(raw: &[u8]) -> Option<Cow<'_, str>> {
    if raw.is_ascii() && !raw.contains(&b'\\') {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    }
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&b, tail)) = rest.split_first() {
        let digits = match (b, tail.split_first()) {
            (b'\\', Some((b'u', _))) => 4,
            (b'\\', Some((b'U', _))) => 8,
            // A backslash takes what follows with it, so that the second of two begins no escape.
            (b'\\', Some((&next, tail))) => {
                out.extend([char::from(b), char::from(next)]);
                rest = tail;
                continue;
            }
            _ => {
                out.push(char::from(b));
                rest = tail;
                continue;
            }
        };
        let (escape, behind) = tail.split_at_checked(1 + digits)?;
        out.push(char::from_u32(hex(escape.get(1..)?)?)?);
        rest = behind;
    }
    Some(out.into())
}

/// A quoted string of protocol 0, escapes as in Python source.
pub(crate) fn quoted(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let raw = raw.trim_ascii();
    let (&quote, rest) = raw.split_first()?;
    let inner = rest.strip_suffix(&[quote])?;
    if !matches!(quote, b'\'' | b'"') {
        return None;
    }

    // Most strings have no escapes, and are borrowed.
    if !inner.contains(&b'\\') {
        return Some(inner.into());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&b, tail)) = rest.split_first() {
        rest = tail;
        if b != b'\\' {
            out.push(b);
            continue;
        }
        let (&e, tail) = rest.split_first()?;
        rest = tail;

        // These are the escapes of Python's bytes. An unknown one stays as it is, with its backslash.
        match e {
            b'\n' => {}
            b'\\' | b'\'' | b'"' => out.push(e),
            b'a' => out.push(7),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'x' => {
                let (digits, behind) = rest.split_at_checked(2)?;
                out.push(u8::try_from(hex(digits)?).ok()?);
                rest = behind;
            }
            // Up to three digits count. Python, too, keeps only the low byte.
            b'0'..=b'7' => {
                let mut v = u32::from(e - b'0');
                for _ in 0..2 {
                    let Some((&d @ b'0'..=b'7', tail)) = rest.split_first() else {
                        break;
                    };
                    v = v * 8 + u32::from(d - b'0');
                    rest = tail;
                }
                out.push(v as u8);
            }
            _ => out.extend([b'\\', e]),
        }
    }
    Some(out.into())
}

/// Whether bytes are what Python's `surrogatepass` makes of a str: UTF-8, but surrogates stand as three bytes each.
pub(crate) fn is_surrogate_utf8(mut raw: &[u8]) -> bool {
    loop {
        match std::str::from_utf8(raw) {
            Ok(_) => return true,
            Err(e) => match raw.get(e.valid_up_to()..) {
                Some([0xED, 0xA0..=0xBF, 0x80..=0xBF, behind @ ..]) => raw = behind,
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn decimals_mean_their_number(v: i128) {
            let le = decimal(&v.to_string()).unwrap();
            let bytes = v.to_le_bytes();
            prop_assert_eq!(&le[..], shortest(&bytes));
            prop_assert_eq!(small(&le), i64::try_from(v).ok());
        }

        #[test]
        fn long_decimals_are_what_digit_by_digit_gives(text in "[0-9]{1,400}") {
            let mut bytes: Vec<u8> = Vec::new();
            for d in text.bytes() {
                let mut carry = u32::from(d - b'0');
                for byte in &mut bytes {
                    carry += u32::from(*byte) * 10;
                    *byte = carry as u8;
                    carry >>= 8;
                }
                bytes.extend((carry > 0).then_some(carry as u8));
            }
            bytes.push(0);
            prop_assert_eq!(decimal(&text).unwrap(), shortest(&bytes));
        }
    }

    #[test]
    fn escapes_are_pythons() {
        assert_eq!(
            quoted(br"'a\n\x41\101\q'").as_deref(),
            Some(&b"a\nAA\\q"[..])
        );
        assert_eq!(quoted(b"'a"), None);
        assert_eq!(quoted(b"'"), None);
        assert_eq!(raw_unicode(b"\\u00e9\xe9\\n").as_deref(), Some("éé\\n"));
        assert_eq!(raw_unicode(b"\\ud800"), None);
        assert_eq!(raw_unicode(b"\\u12"), None);
        // Only the last of an odd number of backslashes begins an escape.
        for (raw, text) in [
            (&br"\\u0041"[..], r"\\u0041"),
            (br"\\\u0041", r"\\A"),
            (br"\n\u0041\", r"\nA\"),
            (br"\\", r"\\"),
            (br"\U00000041", "A"),
        ] {
            assert_eq!(raw_unicode(raw).as_deref(), Some(text));
        }
        for signed in [r"\u+041", r"\u-041", r"\U+0000041", r"\u 041", r"\u004_"] {
            assert_eq!(raw_unicode(signed.as_bytes()), None, "{signed}");
        }
        for signed in [r"'\x+1'", r"'\x-1'", r"'\x 1'"] {
            assert_eq!(quoted(signed.as_bytes()), None, "{signed}");
        }
        assert_eq!(decimal("--1"), None);
        assert_eq!(small(&[]), Some(0));
        assert!(
            is_surrogate_utf8(b"a\xed\xb2\x80b")
                && !is_surrogate_utf8(b"\xff")
                && !is_surrogate_utf8(b"\xed\xa0")
        );
    }
}
