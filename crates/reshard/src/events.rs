//! One event of `tracing` for each phase of a save, load or conversion, on each rank.

use reshard_storage::without_secrets;
use std::time::{SystemTime, UNIX_EPOCH};

/// The target of the events. A subscriber that wants only them filters by it.
pub const PHASE_EVENTS: &str = "reshard::phase";

/// A phase that has ended. Saves, loads and conversions emit one for each of their phases, on each rank, with the level `INFO` and the target
/// [`PHASE_EVENTS`]. The fields of the event have the names of the fields here; `start_us` and `end_us` are in microseconds since 1970.
#[derive(Clone, Debug)]
pub struct PhaseEvent<'a> {
    /// `save`, `load` or `convert`.
    pub act: &'a str,
    /// `plan`, `staging`, `write`, `commit`, `read`, `finish` or `check`.
    pub phase: &'a str,
    /// The rank, in the group of the save or load.
    pub rank: u32,
    /// The URL of the checkpoint.
    pub checkpoint: &'a str,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// The items that this rank has read or written in it: chunks of tensors, and objects. Known of `write` and `read`, and of a `check`.
    pub items: u64,
    /// The bytes that this rank has read or written in it.
    pub bytes: u64,
    /// The files that this rank has read or written in it.
    pub files: u64,
    /// The bytes of the rank that wrote or read the most, divided by the mean of all ranks. Known of the last phase of a save or load, on
    /// every rank.
    pub imbalance: Option<f64>,
    /// Why it failed, if it did.
    pub error: Option<&'a str>,
}

impl PhaseEvent<'_> {
    /// Tells the subscriber of this thread.
    pub fn emit(&self) {
        let us = |at: SystemTime| {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        };
        tracing::info!(
            target: "reshard::phase",
            act = self.act,
            phase = self.phase,
            rank = self.rank,
            checkpoint = &*without_secrets(self.checkpoint),
            start_us = us(self.start),
            end_us = us(self.end),
            items = self.items,
            bytes = self.bytes,
            files = self.files,
            imbalance = self.imbalance,
            error = self.error.map(without_secrets).as_deref(),
        );
    }
}
