use serde::{Deserialize, Serialize};

/// What one rank wrote of items, in whatever files; neither common state nor records.
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

/// What all ranks wrote, in numbers that do not grow with them.
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
    /// Bytes of the rank that wrote most.
    pub most: u64,
}

impl SaveTotals {
    /// Of what each rank wrote.
    pub fn of(ranks: &[RankTotals]) -> Self {
        Self {
            ranks: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
            items: ranks.iter().map(|r| r.items).sum(),
            bytes: ranks.iter().map(|r| r.bytes).sum(),
            files: ranks.iter().map(|r| r.files).sum(),
            most: ranks.iter().map(|r| r.bytes).max().unwrap_or(0),
        }
    }

    /// Bytes of the rank that wrote most, as a multiple of what each would have written if all had written equally much.
    pub fn imbalance(&self) -> f64 {
        if self.bytes == 0 { 1.0 } else { self.most as f64 * f64::from(self.ranks) / self.bytes as f64 }
    }
}

/// What one rank read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadTotals {
    /// Payload bytes that the wanted regions have.
    pub needed: u64,
    /// Payload bytes that were read for them.
    pub read: u64,
    /// Bytes of headers (pickles, zip directories) and of short gaps that were read along.
    pub headers: u64,
    /// Requests to the store.
    pub requests: u64,
    /// Stored items whose checksum was checked.
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

/// What a load has to tell besides its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadNotes {
    /// Keys of the checkpoint that the template did not ask for.
    pub unexpected: Vec<String>,
    /// Keys that the template asked for and the checkpoint lacks (only where a partial load was allowed).
    pub missing: Vec<String>,
    /// Keys that were cast, with the stored and the wanted element type.
    pub casts: Vec<(String, reshard_model::DType, reshard_model::DType)>,
}
