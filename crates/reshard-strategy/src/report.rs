use serde::{Deserialize, Serialize};

/// What one rank wrote: items only, neither common state nor records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTotals {
    /// Tensors' chunks and objects.
    pub items: u64,
    /// Bytes of them as stored.
    pub bytes: u64,
    /// Files that hold them.
    pub files: u64,
}

impl std::ops::AddAssign for RankTotals {
    fn add_assign(&mut self, other: Self) {
        let Self { items, bytes, files } = other;
        self.items += items;
        self.bytes += bytes;
        self.files += files;
    }
}

/// What all ranks wrote, as totals whose size does not depend on the number of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SaveTotals {
    /// Ranks.
    pub ranks: u32,
    /// Tensors' chunks and objects.
    pub items: u64,
    /// Bytes of them as stored.
    pub bytes: u64,
    /// Files that hold them.
    pub files: u64,
    /// The bytes of the rank that wrote the most.
    pub most: u64,
}

impl SaveTotals {
    /// Makes the totals of what each rank wrote.
    pub fn of(ranks: &[RankTotals]) -> Self {
        Self {
            ranks: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
            items: ranks.iter().map(|r| r.items).sum(),
            bytes: ranks.iter().map(|r| r.bytes).sum(),
            files: ranks.iter().map(|r| r.files).sum(),
            most: ranks.iter().map(|r| r.bytes).max().unwrap_or(0),
        }
    }

    /// The bytes of the rank that wrote the most, divided by the mean of all ranks.
    pub fn imbalance(&self) -> f64 {
        if self.bytes == 0 { 1.0 } else { self.most as f64 * f64::from(self.ranks) / self.bytes as f64 }
    }
}

/// What one rank read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadTotals {
    /// The payload bytes of the wanted regions.
    pub needed: u64,
    /// The payload bytes that were read for these regions.
    pub read: u64,
    /// The bytes of headers (pickles, zip directories) and of short gaps that were read too.
    pub headers: u64,
    /// Requests to the store.
    pub requests: u64,
    /// The number of stored items whose checksum was checked.
    pub verified: u64,
}

impl std::ops::AddAssign for ReadTotals {
    fn add_assign(&mut self, other: Self) {
        // All of them, so that a new one is not forgotten.
        let Self { needed, read, headers, requests, verified } = other;
        self.needed += needed;
        self.read += read;
        self.headers += headers;
        self.requests += requests;
        self.verified += verified;
    }
}

/// What a load reports in addition to its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadNotes {
    /// Keys of the checkpoint that the template did not ask for.
    pub unexpected: Vec<String>,
    /// Keys that the template asked for and that the checkpoint lacks (only if a partial load was allowed).
    pub missing: Vec<String>,
    /// Keys that were cast, with the stored and the wanted element type.
    pub casts: Vec<(String, reshard_model::DType, reshard_model::DType)>,
}
