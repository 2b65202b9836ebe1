//! Compares the CRC-32C of an entry with the one in the index.

use crate::index::Place;
use reshard_strategy::{CrcCheck, PartialCrc};

/// CRC-32C, that of TensorFlow.
#[derive(Debug, Default)]
pub(super) struct Crc32c(u32);

impl PartialCrc for Crc32c {
    fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    fn value(&self) -> u32 {
        self.0
    }

    fn combined(parts: impl Iterator<Item = (u64, u32)>) -> u32 {
        parts.fold(0, |crc, (seen, part)| {
            crc32c::crc32c_combine(crc, part, seen as usize)
        })
    }
}

/// The check of an entry.
pub(super) fn check(place: &Place, key: &str) -> CrcCheck<Crc32c> {
    CrcCheck::with(place.size, place.crc, key, differs)
}

/// What is wrong with an entry that has another checksum.
pub(super) fn differs(key: &str, found: u32, written: u32) -> String {
    format!("a part of {key} is damaged: its CRC-32C is {found:08x}, and {written:08x} was written")
}
