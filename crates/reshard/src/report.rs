use reshard_plan::Metadata;
use reshard_policy::PolicyMetrics;
use reshard_storage::Name;
use reshard_strategy::{LoadNotes, RankTotals, ReadTotals, SaveTotals};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// A part of a save or load, in the order in which they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Planning, on all ranks; for a load, opening the checkpoint too.
    Plan,
    /// Writing bytes, on this rank. Only a save has it.
    Write,
    /// Agreeing that all ranks have written, and committing. Only a save has it.
    Commit,
    /// Reading bytes, on this rank. Only a load has it.
    Read,
    /// Agreeing that all ranks have read, and putting the state together. Only a load has it.
    Finish,
}

/// How long each phase took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phases([Duration; 5]);

/// Times phases one after the other.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
    phases: Phases,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { last: Instant::now(), phases: Phases::default() }
    }

    pub(crate) fn done(&mut self, phase: Phase) {
        self.done_but(phase, []);
    }

    /// All since the last phase was this one, but for parts that somebody else has timed.
    pub(crate) fn done_but(&mut self, phase: Phase, parts: impl IntoIterator<Item = (Phase, Duration)>) {
        let now = Instant::now();
        let mut left = now - self.last;
        for (part, time) in parts {
            let time = time.min(left);
            self.phases.0[part as usize] += time;
            left -= time;
        }
        self.phases.0[phase as usize] += left;
        self.last = now;
    }

    pub(crate) fn phases(&self) -> Phases {
        self.phases
    }
}

/// What a save did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveReport {
    /// What is stored; on the coordinator (on every rank of a rank-local save).
    pub metadata: Option<Arc<Metadata>>,
    /// What each rank wrote, by rank; on the coordinator.
    pub ranks: Vec<RankTotals>,
    /// What all ranks wrote; on every rank.
    pub totals: SaveTotals,
    /// What a sharding policy did, if there was one; on the coordinator (on every rank of a rank-local save).
    pub policy: Option<PolicyMetrics>,
    /// Dicts without entries that the format can't hold; they are kept in `reshard.json`.
    pub empty_dicts: usize,
    /// Files that stay though the checkpoint that was replaced says that it is made of them, because programs that write its
    /// format name none so; on the coordinator. Remove them yourself when nobody needs them.
    pub stays: Vec<Name>,
    pub(crate) phases: Phases,
}

impl SaveReport {
    /// How long an phase took on this rank.
    pub fn time(&self, phase: Phase) -> Duration {
        self.phases.0[phase as usize]
    }

    /// Bytes that all ranks wrote.
    pub fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Files that all ranks wrote.
    pub fn files(&self) -> u64 {
        self.totals.files
    }

    /// Bytes of the rank that wrote most, as a multiple of what each would have written if all had written equally much.
    pub fn imbalance(&self) -> f64 {
        self.totals.imbalance()
    }
}

fn imbalance(of_ranks: impl ExactSizeIterator<Item = u64> + Clone) -> f64 {
    let (ranks, most) = (of_ranks.len() as f64, of_ranks.clone().max().unwrap_or(0));
    if most == 0 { 1.0 } else { most as f64 * ranks / of_ranks.sum::<u64>() as f64 }
}

/// What one rank read: of metadata, common state and objects too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankReads {
    /// Bytes, with descriptions of items and short gaps between them.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

/// What a load did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadReport {
    /// What is stored.
    pub metadata: Arc<Metadata>,
    /// What each rank read, by rank; on every rank.
    pub ranks: Vec<RankReads>,
    /// Names of the files that this rank opened.
    pub opened: BTreeSet<String>,
    /// Bytes of tensors that this rank needed, and that were read for them.
    pub totals: ReadTotals,
    /// Unexpected and missing keys, casts.
    pub notes: LoadNotes,
    pub(crate) phases: Phases,
}

impl LoadReport {
    /// How long an phase took on this rank; reading metadata and common state is part of deciding.
    pub fn time(&self, phase: Phase) -> Duration {
        self.phases.0[phase as usize]
    }

    /// Bytes that all ranks read.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|r| r.bytes).sum()
    }

    /// Files that the ranks opened; one that several ranks opened counts for each.
    pub fn files(&self) -> u64 {
        self.ranks.iter().map(|r| r.files).sum()
    }

    /// Bytes of the rank that read most, as a multiple of what each would have read if all had read equally much.
    pub fn imbalance(&self) -> f64 {
        imbalance(self.ranks.iter().map(|r| r.bytes))
    }
}
