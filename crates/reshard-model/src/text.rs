//! Names from files, as messages show them.

use std::{borrow::Cow, ops::Range};

/// Names of more bytes are shortened.
const LONG: usize = 1_000;

/// Returns a name from a file as messages show it. A name of more than 1,000 bytes is reduced to its ends and its length, because there may be
/// a message for each of a million chunks.
///
/// ```
/// use reshard_model::shortened;
/// assert_eq!(shortened("decoder.weight"), "decoder.weight");
/// assert!(shortened(&"k".repeat(100_000)).ends_with("kkk (100000 bytes)"));
/// ```
pub fn shortened(name: &str) -> Cow<'_, str> {
    if name.len() <= LONG {
        return name.into();
    }
    let cut = |around: Range<usize>| around.rev().find(|i| name.is_char_boundary(*i));
    let head = cut(0..LONG / 2).unwrap_or(0);
    let tail = cut(head..name.len() - LONG / 4).unwrap_or(name.len());
    format!("{}…{} ({} bytes)", &name[..head], &name[tail..], name.len()).into()
}

/// A number of things: `3 files`, `1 file`.
pub fn some(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_told_by_its_ends_and_its_length() {
        let fits = "k".repeat(LONG);
        assert_eq!(shortened(&fits), fits);
        for letter in ["k", "é", "データ"] {
            let name = format!("first.{}.last", letter.repeat(100_000));
            let said = shortened(&name);
            assert!(said.len() < LONG, "{}", said.len());
            let end = format!(".last ({} bytes)", name.len());
            assert!(said.starts_with("first.") && said.ends_with(&end), "{said}");
        }
    }
}
