//! What ranks do in the demo, and what they tell of it; ranks may be threads or processes.

use super::model;
use crate::{error::Result, program::Program};
use indicatif::ProgressBar;
use reshard::{LoadReport, Phase, ProcessGroup, SaveReport, StateDict, ValueTree};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// What a rank tells of its save.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The whole call, on this rank.
    pub(super) time: Duration,
    /// Of all ranks.
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) plan: Duration,
    pub(super) write: Duration,
    pub(super) commit: Duration,
}

impl Saved {
    fn new(report: &SaveReport, time: Duration) -> Self {
        Self {
            time,
            files: report.files(),
            bytes: report.bytes(),
            plan: report.time(Phase::Plan),
            write: report.time(Phase::Write),
            commit: report.time(Phase::Commit),
        }
    }
}

/// What a rank tells of its load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Loaded {
    /// The whole call, on this rank.
    pub(super) time: Duration,
    /// The files that this rank opened, its bytes, and those that it needed.
    pub(super) opened: BTreeSet<String>,
    pub(super) read: u64,
    pub(super) needed: u64,
    /// Of all ranks.
    pub(super) bytes: u64,
    pub(super) imbalance: f64,
    pub(super) plan: Duration,
    pub(super) reading: Duration,
    pub(super) finish: Duration,
}

impl Loaded {
    fn new(report: &LoadReport, time: Duration) -> Self {
        Self {
            time,
            opened: report.opened.iter().cloned().collect(),
            read: report.totals.bytes,
            needed: report.totals.needed,
            bytes: report.bytes(),
            imbalance: report.imbalance(),
            plan: report.time(Phase::Plan),
            reading: report.time(Phase::Read),
            finish: report.time(Phase::Finish),
        }
    }
}

/// One rank saves.
pub(super) fn save(
    program: &Program,
    group: &dyn ProcessGroup,
    state: &StateDict,
    url: &str,
    bar: &ProgressBar,
) -> Result<Saved> {
    let told = bar.clone();
    let save = reshard::save(state, url)
        .group(group)
        .progress(move |n| told.inc(n));
    let save = save
        .registry(program.registry.clone())
        .stores(program.stores.clone());
    let (report, time) = timed(|| reshard::blocking::run(save));
    Ok(Saved::new(&report?, time))
}

/// One rank loads.
pub(super) fn load(
    program: &Program,
    group: &dyn ProcessGroup,
    template: StateDict,
    url: &str,
    bar: &ProgressBar,
) -> Result<(ValueTree, Loaded)> {
    let told = bar.clone();
    let load = reshard::load(template, url)
        .group(group)
        .progress(move |n| told.inc(n));
    let load = load
        .registry(program.registry.clone())
        .stores(program.stores.clone());
    let (loaded, time) = timed(|| reshard::storage::wait(load.with_report()));
    let (tree, report) = loaded?;
    Ok((tree, Loaded::new(&report, time)))
}

/// Bytes that these ranks hold.
pub(super) fn held_by(states: &[StateDict]) -> u64 {
    states.iter().map(model::held_by).sum()
}

/// Does it, and says how long it took.
pub(super) fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let out = f();
    (out, start.elapsed())
}
