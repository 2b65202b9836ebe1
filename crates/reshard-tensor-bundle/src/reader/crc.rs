//! Compares the CRC-32C of an entry with the one in the index.

use crate::index::Place;
use reshard_model::BoxError;
use reshard_storage::Checksum;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A check, or a part of one.
pub(super) struct Crc {
    crc: u32,
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
    pub(super) fn new(place: &Place, key: &str) -> Self {
        Self {
            crc: 0,
            at: 0,
            seen: 0,
            whole: Arc::new(Whole {
                bytes: place.size,
                written: place.crc,
                key: key.into(),
                parts: Mutex::default(),
            }),
        }
    }
}

/// What is wrong with an entry that has another checksum.
pub(super) fn differs(key: &str, found: u32, written: u32) -> String {
    format!("a part of {key} is damaged: its CRC-32C is {found:08x}, and {written:08x} was written")
}

impl Checksum for Crc {
    fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        let Whole {
            bytes,
            written,
            key,
            parts,
        } = &*self.whole;
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(self.at, (self.seen, self.crc));
        if parts.values().map(|(seen, _)| *seen).sum::<u64>() < *bytes {
            // The part that finishes last knows.
            return Ok(());
        }
        let joined = parts.values().fold(0, |crc, (seen, part)| {
            crc32c::crc32c_combine(crc, *part, *seen as usize)
        });
        match joined {
            found if found == *written => Ok(()),
            found => Err(differs(key, found, *written).into()),
        }
    }

    fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
        Some(Box::new(Self {
            crc: 0,
            at: self.at.checked_add(at)?,
            seen: 0,
            whole: Arc::clone(&self.whole),
        }))
    }
}
