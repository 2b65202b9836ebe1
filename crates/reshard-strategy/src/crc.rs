//! CRC-32 of what is written and read in parts, for formats that write down the checksum of each item.

use reshard_model::BoxError;
use reshard_storage::Checksum;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Compares the CRC-32 of a record with the one that was written down. Parts of the record may be read at the same time.
#[derive(Debug)]
pub struct Crc32Check {
    hasher: crc32fast::Hasher,
    /// Where the bytes that it sees begin.
    at: u64,
    seen: u64,
    whole: Arc<Whole>,
}

#[derive(Debug)]
struct Whole {
    bytes: u64,
    written: u32,
    what: Box<str>,
    /// The length and checksum of each part that was seen, by its start.
    parts: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl Crc32Check {
    /// For a record of so many bytes. `what` names it in an error.
    pub fn new(bytes: u64, written: u32, what: &str) -> Self {
        Self {
            hasher: crc32fast::Hasher::new(),
            at: 0,
            seen: 0,
            whole: Arc::new(Whole {
                bytes,
                written,
                what: what.into(),
                parts: Mutex::default(),
            }),
        }
    }
}

/// What is wrong with a record that has another checksum than the one that was written down.
pub fn crc32_differs(what: &str, found: u32, written: u32) -> String {
    format!(
        "{what} is damaged, or another program has changed it: its CRC-32 is {found:08x}, and {written:08x} was written"
    )
}

/// The checksum of parts that follow each other, from their lengths and checksums.
pub fn crc32_combined(parts: impl Iterator<Item = (u64, u32)>) -> u32 {
    let mut all = crc32fast::Hasher::new();
    for (length, crc) in parts {
        all.combine(&crc32fast::Hasher::new_with_initial_len(crc, length));
    }
    all.finalize()
}

impl Checksum for Crc32Check {
    fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        self.hasher.update(bytes);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        let Whole {
            bytes,
            written,
            what,
            parts,
        } = &*self.whole;
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(self.at, (self.seen, self.hasher.finalize()));
        if parts.values().map(|(seen, _)| *seen).sum::<u64>() < *bytes {
            // The part that finishes last knows.
            return Ok(());
        }
        match crc32_combined(parts.values().copied()) {
            found if found == *written => Ok(()),
            found => Err(crc32_differs(what, found, *written).into()),
        }
    }

    fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
        Some(Box::new(Self {
            hasher: crc32fast::Hasher::new(),
            at: self.at.checked_add(at)?,
            seen: 0,
            whole: Arc::clone(&self.whole),
        }))
    }
}
