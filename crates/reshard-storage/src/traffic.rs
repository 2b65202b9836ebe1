use serde::{Deserialize, Serialize};
use std::{iter::Sum, ops::AddAssign};

/// How much was read or written, and why. What was not counted is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Traffic {
    /// Items: chunks of tensors, and objects.
    pub items: u64,
    /// Bytes of the elements that were wanted.
    pub needed: u64,
    /// Bytes that were read for them, or bytes that were written. Those that only a check needed, and short gaps within a record, count too.
    pub bytes: u64,
    /// Bytes that were read beside: descriptions of items, and short gaps between neighbouring records.
    pub beside: u64,
    /// Calls to the operating system, or requests to the store.
    pub requests: u64,
    /// Files.
    pub files: u64,
    /// Items whose checksum was checked.
    pub verified: u64,
}

impl Traffic {
    /// Items that were written, their bytes as stored, and the files in which they lie.
    pub fn written(items: u64, bytes: u64, files: u64) -> Self {
        Self {
            items,
            bytes,
            files,
            ..Self::default()
        }
    }

    /// Bytes that were read from files.
    pub fn read(bytes: u64, files: u64) -> Self {
        Self {
            bytes,
            files,
            ..Self::default()
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        // All of them, so that a new one is not forgotten.
        let Self {
            items,
            needed,
            bytes,
            beside,
            requests,
            files,
            verified,
        } = other;
        self.items += items;
        self.needed += needed;
        self.bytes += bytes;
        self.beside += beside;
        self.requests += requests;
        self.files += files;
        self.verified += verified;
    }
}

impl Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|traffic| sum += traffic);
        sum
    }
}
