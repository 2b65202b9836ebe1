use reshard_storage::Traffic;
use serde::{Deserialize, Serialize};

/// What all ranks wrote, as totals whose size does not depend on the number of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SaveTotals {
    /// Ranks.
    pub ranks: u32,
    /// The sum over all ranks: items, bytes as stored, and files. Neither common state nor records are in it.
    pub all: Traffic,
    /// The bytes of the rank that wrote the most.
    pub most: u64,
}

impl SaveTotals {
    /// Makes the totals of what each rank wrote.
    pub fn of(ranks: &[Traffic]) -> Self {
        Self {
            ranks: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
            all: ranks.iter().copied().sum(),
            most: ranks.iter().map(|r| r.bytes).max().unwrap_or(0),
        }
    }

    /// The bytes of the rank that wrote the most, divided by the mean of all ranks.
    pub fn imbalance(&self) -> f64 {
        let all = self.all.bytes;
        if all == 0 {
            1.0
        } else {
            self.most as f64 * f64::from(self.ranks) / all as f64
        }
    }
}

/// What a load reports in addition to its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadNotes {
    /// Keys that this rank's template asks for and that the checkpoint lacks, unless that makes the load fail. Megatron Core calls them
    /// unexpected.
    pub not_stored: Vec<String>,
    /// Keys of the checkpoint that no rank's template asks for, if the load looks for them. Megatron Core calls them missing.
    pub not_requested: Vec<String>,
    /// Keys that were cast, with the stored and the wanted element type.
    pub casts: Vec<(String, reshard_model::DType, reshard_model::DType)>,
}
