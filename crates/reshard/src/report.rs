use reshard_plan::Metadata;
use reshard_policy::PolicyMetrics;
use reshard_strategy::{LoadNotes, RankTotals, ReadTotals};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A part of a save or load, in the order in which they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Act {
    /// Planning, on all ranks.
    Decide,
    /// Moving bytes, on this rank.
    Move,
    /// Agreeing on the outcome, and publishing.
    Agree,
}

/// Seconds of each act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acts([Duration; 3]);

/// Times acts one after the other.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
    acts: Acts,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { last: Instant::now(), acts: Acts::default() }
    }

    pub(crate) fn done(&mut self, act: Act) {
        let now = Instant::now();
        self.acts.0[act as usize] += now - self.last;
        self.last = now;
    }

    pub(crate) fn acts(&self) -> Acts {
        self.acts
    }
}

/// What a save did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveReport {
    /// What is stored; on the coordinator (on every rank of a rank-local save).
    pub metadata: Option<Arc<Metadata>>,
    /// What each rank wrote, by rank.
    pub ranks: Vec<RankTotals>,
    /// What a sharding policy did, if there was one; on the coordinator (on every rank of a rank-local save).
    pub policy: Option<PolicyMetrics>,
    /// Dicts without entries that the format can't hold; they are kept in `reshard.json`.
    pub empty_dicts: usize,
    pub(crate) acts: Acts,
}

impl SaveReport {
    /// How long an act took on this rank.
    pub fn time(&self, act: Act) -> Duration {
        self.acts.0[act as usize]
    }

    /// Bytes that all ranks wrote.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|r| r.bytes).sum()
    }

    /// Files that all ranks wrote.
    pub fn files(&self) -> u64 {
        self.ranks.iter().map(|r| r.files).sum()
    }

    /// Bytes of the rank that wrote most, as a multiple of what each would have written if all had written equally much.
    pub fn imbalance(&self) -> f64 {
        let most = self.ranks.iter().map(|r| r.bytes).max().unwrap_or(0);
        if most == 0 { 1.0 } else { most as f64 * self.ranks.len() as f64 / self.bytes() as f64 }
    }
}

/// What a load did on this rank.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadReport {
    /// What is stored.
    pub metadata: Arc<Metadata>,
    /// Bytes that were needed and read.
    pub totals: ReadTotals,
    /// Unexpected and missing keys, casts.
    pub notes: LoadNotes,
    pub(crate) acts: Acts,
}

impl LoadReport {
    /// How long an act took on this rank. Planning is counted with moving: a strategy does both in one go.
    pub fn time(&self, act: Act) -> Duration {
        self.acts.0[act as usize]
    }
}
