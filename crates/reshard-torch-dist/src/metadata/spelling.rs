//! Lone surrogates in keys. Python's str may hold them, and PyTorch saves and loads such keys; Rust's can't.
//!
//! A surrogate is spelled as Python's `repr` shows it: `\ud800` to `\udfff`, with lower-case digits. So that such letters
//! can be told from a surrogate, the backslashes right before them are doubled, and nowhere else: a key that has no such
//! letters is spelled as it is.

use std::borrow::Cow;

/// The code of a surrogate whose spelling, without the backslash, a text begins with.
fn spelled(text: &[u8]) -> Option<u16> {
    let [b'u', digits @ ..] = text.get(..5)? else {
        return None;
    };
    if digits
        .iter()
        .any(|d| !matches!(d, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    let code = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (0xD800..0xE000).contains(&code).then_some(code)
}

/// Copies a text; `each` is given each run of backslashes by its length, and what follows it, and gives what to put there and
/// how many bytes of what follows that stands for.
fn copy(text: &[u8], out: &mut Vec<u8>, mut each: impl FnMut(usize, &[u8], &mut Vec<u8>) -> usize) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| *b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let run = rest[at..].iter().take_while(|b| **b == b'\\').count();
        let after = &rest[at + run..];
        let done = each(run, after, out);
        rest = &after[done..];
    }
    out.extend_from_slice(rest);
}

fn slashes(n: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + n, b'\\');
}

/// Whether a text may hold something that is spelled in another way.
pub(crate) fn has_letters(text: &[u8]) -> bool {
    text.contains(&b'\\') && text.windows(3).any(|w| w == b"\\ud")
}

/// The key that Python's bytes stand for: UTF-8 in which surrogates are three bytes each. `None` for other bytes.
pub(crate) fn spell(python: &[u8]) -> Option<Cow<'_, str>> {
    if !has_letters(python)
        && let Ok(plain) = std::str::from_utf8(python)
    {
        return Some(plain.into());
    }
    let (mut out, mut rest) = (Vec::new(), python);
    loop {
        let valid = std::str::from_utf8(rest).map_or_else(|e| e.valid_up_to(), str::len);
        let (text, odd) = rest.split_at(valid);
        copy(text, &mut out, |run, after, out| {
            let before_a_surrogate =
                spelled(after).is_some() || (after.is_empty() && !odd.is_empty());
            slashes(if before_a_surrogate { 2 * run } else { run }, out);
            0
        });
        match odd {
            [] => return String::from_utf8(out).ok().map(Cow::Owned),
            [0xED, a @ 0xA0..=0xBF, b @ 0x80..=0xBF, after @ ..] => {
                let code = 0xD000 | u16::from(a & 0x3F) << 6 | u16::from(b & 0x3F);
                out.extend_from_slice(format!("\\u{code:04x}").as_bytes());
                rest = after;
            }
            _ => return None,
        }
    }
}

/// The bytes in which Python writes a key.
pub(crate) fn unspell(key: &str) -> Cow<'_, [u8]> {
    if !has_letters(key.as_bytes()) {
        return key.as_bytes().into();
    }
    let mut out = Vec::with_capacity(key.len());
    copy(key.as_bytes(), &mut out, |run, after, out| {
        match spelled(after) {
            None => {
                slashes(run, out);
                0
            }
            Some(code) => {
                slashes(run / 2, out);
                if run.is_multiple_of(2) {
                    return 0;
                }
                out.extend([
                    0xED,
                    0x80 | (code >> 6 & 0x3F) as u8,
                    0x80 | (code & 0x3F) as u8,
                ]);
                5
            }
        }
    });
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            3 => "\\\\{1,4}".prop_map(String::into_bytes),
            3 => prop::sample::select(vec!["ud800", "udfff", "ud7ff", "ue000", "uD800", "ud80", "u", "d800", "é", "x"])
                .prop_map(|s| s.as_bytes().to_vec()),
            3 => (0xA0u8..0xC0, 0x80u8..0xC0).prop_map(|(a, b)| vec![0xED, a, b]),
            1 => any::<char>().prop_map(|c| c.to_string().into_bytes()),
        ]
    }

    fn python() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(part(), 0..8).prop_map(|p| p.concat())
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn every_key_of_python_has_a_spelling_of_its_own(python in python()) {
            let key = spell(&python).unwrap();
            prop_assert_eq!(&unspell(&key)[..], &python[..]);
        }

        #[test]
        fn every_text_spells_a_key_of_python(parts in prop::collection::vec(part(), 0..8)) {
            let text: String = parts.iter().filter_map(|p| std::str::from_utf8(p).ok()).collect();
            let python = unspell(&text);
            let spelled = spell(&python);
            prop_assert_eq!(spelled.as_deref(), Some(&text[..]));
        }
    }

    #[test]
    fn keys_without_surrogates_are_spelled_as_they_are() {
        for key in [
            "",
            "weight",
            "C:\\data\\\\x",
            "\\u0041",
            "\\uD800",
            "\\ud7ff",
            "größe\\",
        ] {
            assert_eq!(spell(key.as_bytes()).unwrap(), key);
            assert_eq!(&unspell(key)[..], key.as_bytes());
        }
    }

    #[test]
    fn a_surrogate_is_spelled_as_python_shows_it() {
        assert_eq!(spell(b"a\xed\xa0\x80b").unwrap(), "a\\ud800b");
        assert_eq!(spell(b"\\\xed\xbf\xbf").unwrap(), "\\\\\\udfff");
        assert_eq!(spell(b"a\\ud800b").unwrap(), "a\\\\ud800b");
        assert_eq!(
            spell(b"\xed\xa0\xbd\xed\xb8\x80").unwrap(),
            "\\ud83d\\ude00"
        );
        assert_eq!(spell(b"\xff"), None);
        assert_eq!(spell(b"\xed\xa0"), None);
    }
}
