//! What items are called in messages.

use reshard_plan::{ChunkId, Metadata};
use std::borrow::Cow;

/// A chunk's name for messages.
pub(super) fn name_of(metadata: &Metadata, chunk: ChunkId) -> String {
    match metadata.chunk(chunk) {
        Some((t, region)) => format!("{}chunk {region}", named(t.key())),
        None => "an unknown chunk".into(),
    }
}

/// How the name of a tensor's chunk begins.
pub(super) fn named(key: &str) -> String {
    format!("tensor {} ", short(key))
}

/// A key as messages have it. Of a long one only its ends are there, because there may be a message for each of a million chunks.
pub(super) fn short(key: &str) -> Cow<'_, str> {
    if key.len() <= LONG {
        return key.into();
    }
    let cut = |around: std::ops::Range<usize>| around.rev().find(|i| key.is_char_boundary(*i));
    let head = cut(0..LONG / 2).unwrap_or(0);
    let tail = cut(head..key.len() - LONG / 4).unwrap_or(key.len());
    format!("{}…{} ({} bytes)", &key[..head], &key[tail..], key.len()).into()
}

/// Keys of more bytes are shortened.
const LONG: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_told_by_its_ends_and_its_length() {
        let fits = "k".repeat(LONG);
        assert_eq!(short(&fits), fits);
        for letter in ["k", "é", "データ"] {
            let key = format!("first.{}.last", letter.repeat(100_000));
            let said = short(&key);
            assert!(said.len() < LONG, "{}", said.len());
            let end = format!(".last ({} bytes)", key.len());
            assert!(said.starts_with("first.") && said.ends_with(&end), "{said}");
        }
    }
}
