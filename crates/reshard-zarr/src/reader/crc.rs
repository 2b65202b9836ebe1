//! Compares the CRC-32 of a chunk's file with the one that was written down.

use crate::receipt::combined;
use reshard_model::BoxError;
use reshard_storage::Checksum;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A check, or a part of one.
pub(super) struct Crc {
    hasher: crc32fast::Hasher,
    /// Where the bytes that it sees begin.
    at: u64,
    seen: u64,
    whole: Arc<Whole>,
}

struct Whole {
    bytes: u64,
    written: u32,
    key: Box<str>,
    /// The length and checksum of each part that was seen, by its start.
    parts: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl Crc {
    pub(super) fn new(bytes: u64, written: u32, key: &str) -> Self {
        Self {
            hasher: crc32fast::Hasher::new(),
            at: 0,
            seen: 0,
            whole: Arc::new(Whole {
                bytes,
                written,
                key: key.into(),
                parts: Mutex::default(),
            }),
        }
    }
}

/// What is wrong with a chunk that has another checksum.
pub(super) fn differs(key: &str, found: u32, written: u32) -> String {
    format!(
        "a chunk of {key} is damaged, or another program has changed it: its CRC-32 is {found:08x}, and {written:08x} was written"
    )
}

impl Checksum for Crc {
    fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        self.hasher.update(bytes);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        let Whole {
            bytes,
            written,
            key,
            parts,
        } = &*self.whole;
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(self.at, (self.seen, self.hasher.finalize()));
        if parts.values().map(|(seen, _)| *seen).sum::<u64>() < *bytes {
            // The part that finishes last knows.
            return Ok(());
        }
        match combined(parts.values().copied()) {
            found if found == *written => Ok(()),
            found => Err(differs(key, found, *written).into()),
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
