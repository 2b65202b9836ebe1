//! The files that an attempt has finished, in a journal among its files.

use reshard::{
    storage::{Name, WrittenExtent},
    strategy::hex,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the names of journals begin.
pub(super) const PREFIX: &str = ".reshard-journal-";

/// A journal of more bytes is not read, and of all journals no more than so many.
pub(super) const MOST: u64 = 32 << 20;
pub(super) const MOST_OF_ALL: u64 = 256 << 20;

/// Journals that were written by others can't be read.
const VERSION: u64 = 2;

/// What is converted, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// A digest of the source: its items, and the lengths, times or tags of its files.
    pub(super) source: String,
    /// A digest of the inodes of the source's files and of the times at which their status changed. Empty for a source that is not on a file system.
    pub(super) inodes: String,
    /// A digest of all options that change what is written.
    pub(super) options: String,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) bytes: u64,
    pub(super) extents: Vec<WrittenExtent>,
}

/// Files by their names, without the folder of the attempt.
pub(super) type Files = BTreeMap<String, Finished>;

/// A journal, as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u64,
    #[serde(flatten)]
    identity: Identity,
    files: Vec<StoredFile>,
}

#[derive(Serialize, Deserialize)]
struct StoredFile {
    name: String,
    bytes: u64,
    /// Start, end, receipt and CRC-32 of each.
    extents: Vec<(u64, u64, String, Option<u32>)>,
}

/// The text of a journal.
pub(super) fn to_json(identity: &Identity, files: &Files) -> serde_json::Result<Vec<u8>> {
    let extent = |e: &WrittenExtent| (e.range.start, e.range.end, hex(&e.receipt), e.crc32);
    let file = |(name, f): (&String, &Finished)| StoredFile {
        name: name.clone(),
        bytes: f.bytes,
        extents: f.extents.iter().map(extent).collect(),
    };
    serde_json::to_vec(&Stored {
        version: VERSION,
        identity: identity.clone(),
        files: files.iter().map(file).collect(),
    })
}

/// A journal; `None` if it is cut, or of another version.
pub(super) fn from_json(bytes: &[u8]) -> Option<(Identity, Files)> {
    let stored: Stored = serde_json::from_slice(bytes).ok()?;
    if stored.version != VERSION {
        return None;
    }
    let mut files = Files::new();
    for file in stored.files {
        let name = Name::new(file.name).ok()?;
        let mut extents = Vec::with_capacity(file.extents.len());
        let mut at = 0;
        for (start, end, receipt, crc32) in file.extents {
            // They follow each other.
            if start != at || end < start {
                return None;
            }
            at = end;
            extents.push(WrittenExtent {
                range: start..end,
                receipt: unhex(&receipt)?.into(),
                crc32,
            });
        }
        if at != file.bytes {
            return None;
        }
        let bytes = file.bytes;
        files.insert(name.into(), Finished { bytes, extents });
    }
    Some((stored.identity, files))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks() else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    pairs.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_it_was_written_and_not_when_it_is_cut() {
        let identity = Identity {
            source: "s".into(),
            inodes: "i".into(),
            options: "o".into(),
        };
        let extent = |range, receipt: &'static [u8], crc32| WrittenExtent {
            range,
            receipt: receipt.into(),
            crc32: Some(crc32),
        };
        let files = Files::from([
            (
                "a/b".into(),
                Finished {
                    bytes: 10,
                    extents: vec![extent(0..4, b"", 1), extent(4..10, b"\x00\xff", u32::MAX)],
                },
            ),
            (
                "c".into(),
                Finished {
                    bytes: 0,
                    extents: Vec::new(),
                },
            ),
        ]);
        let text = to_json(&identity, &files).unwrap();
        assert_eq!(from_json(&text), Some((identity, files)));
        for cut in 0..text.len() {
            assert_eq!(from_json(&text[..cut]), None);
        }
        let text = String::from_utf8(text).unwrap();
        for (from, to) in [
            ("\"version\":2", "\"version\":1"),
            ("[4,10,", "[5,10,"),
            ("[4,10,", "[4,9,"),
            ("00ff", "00f"),
            ("00ff", "00fx"),
            ("4294967295", "4294967296"),
            ("a/b", "../b"),
        ] {
            assert!(text.contains(from), "{from}");
            assert_eq!(from_json(text.replace(from, to).as_bytes()), None, "{to}");
        }
    }
}
