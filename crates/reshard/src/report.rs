use crate::CommonDifference;
use reshard_plan::Metadata;
use reshard_policy::PolicyMetrics;
use reshard_storage::{Name, Traffic};
use reshard_strategy::{ExchangeTimes, LoadNotes, SaveTotals};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// A phase of a save or load. The variants are in the order in which the phases run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Planning, on all ranks; for a load, opening the checkpoint too.
    Plan,
    /// Copying what the caller may change, on this rank. Only an asynchronous save has it.
    Staging,
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
pub(crate) struct Phases([Duration; 6]);

/// Times phases one after the other.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
    phases: Phases,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            last: Instant::now(),
            phases: Phases::default(),
        }
    }

    pub(crate) fn done(&mut self, phase: Phase) {
        self.done_but(phase, []);
    }

    /// Counts the time since the last phase as this phase, except parts that were timed separately.
    pub(crate) fn done_but(
        &mut self,
        phase: Phase,
        parts: impl IntoIterator<Item = (Phase, Duration)>,
    ) {
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
    /// What is stored. Only on the coordinator (in a rank-local save on every rank).
    pub metadata: Option<Arc<Metadata>>,
    /// What each rank wrote, by rank: items, their bytes as stored, and files. Neither common state nor records are in it. Only on the coordinator.
    pub ranks: Vec<Traffic>,
    /// What all ranks wrote. On every rank.
    pub totals: SaveTotals,
    /// What a sharding policy did, if there was one. Only on the coordinator (in a rank-local save on every rank).
    pub policy: Option<PolicyMetrics>,
    /// Empty dicts, which the format can't hold. `reshard.json` lists them.
    pub empty_dicts: usize,
    /// Files that the replaced checkpoint names as its own, but that stay because no program of its format gives such
    /// names. Only on the coordinator. Remove them yourself if nobody needs them.
    pub stays: Vec<Name>,
    /// How the common state of this rank differs from the coordinator's, which is saved. A warning of `tracing` says it, too.
    pub common_differs: Option<CommonDifference>,
    pub(crate) phases: Phases,
}

impl SaveReport {
    /// How long a phase took on this rank.
    pub fn time(&self, phase: Phase) -> Duration {
        self.phases.0[phase as usize]
    }

    /// Bytes that all ranks wrote.
    pub fn bytes(&self) -> u64 {
        self.totals.all.bytes
    }

    /// Files that all ranks wrote.
    pub fn files(&self) -> u64 {
        self.totals.all.files
    }

    /// The bytes of the rank that wrote the most, divided by the mean of all ranks.
    pub fn imbalance(&self) -> f64 {
        self.totals.imbalance()
    }
}

fn imbalance(of_ranks: impl ExactSizeIterator<Item = u64> + Clone) -> f64 {
    let (ranks, most) = (of_ranks.len() as f64, of_ranks.clone().max().unwrap_or(0));
    if most == 0 {
        1.0
    } else {
        most as f64 * ranks / of_ranks.sum::<u64>() as f64
    }
}

/// What a load did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadReport {
    /// What is stored.
    pub metadata: Arc<Metadata>,
    /// The bytes and files that each rank read, by rank, including metadata, common state and objects. On every rank.
    pub ranks: Vec<Traffic>,
    /// Names of the files that this rank opened.
    pub opened: BTreeSet<String>,
    /// The bytes of tensors that this rank needed, and the bytes that were read for them.
    pub totals: Traffic,
    /// How long ranks read for each other, if they did.
    pub exchange: ExchangeTimes,
    /// Keys that only one side has, and casts.
    pub notes: LoadNotes,
    pub(crate) phases: Phases,
}

impl LoadReport {
    /// How long a phase took on this rank. Reading metadata and common state is part of planning.
    pub fn time(&self, phase: Phase) -> Duration {
        self.phases.0[phase as usize]
    }

    /// Bytes that all ranks read.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|r| r.bytes).sum()
    }

    /// Files that the ranks opened. A file that several ranks opened counts once per rank.
    pub fn files(&self) -> u64 {
        self.ranks.iter().map(|r| r.files).sum()
    }

    /// The bytes of the rank that read the most, divided by the mean of all ranks.
    pub fn imbalance(&self) -> f64 {
        imbalance(self.ranks.iter().map(|r| r.bytes))
    }
}
