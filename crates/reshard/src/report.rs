use crate::{CommonDifference, PhaseEvent};
use reshard_comm::Rank;
use reshard_model::some;
use reshard_plan::Metadata;
use reshard_policy::PolicyMetrics;
use reshard_storage::{Entry, Name, Traffic};
use reshard_strategy::{ExchangeTimes, LoadNotes, SaveTotals};
use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
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

impl Phase {
    /// In the order of their numbers.
    const ALL: [Self; 6] = [
        Self::Plan,
        Self::Staging,
        Self::Write,
        Self::Commit,
        Self::Read,
        Self::Finish,
    ];

    /// Its name in events: `plan`, `staging`, `write`, `commit`, `read`, `finish`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Staging => "staging",
            Self::Write => "write",
            Self::Commit => "commit",
            Self::Read => "read",
            Self::Finish => "finish",
        }
    }
}

/// How long each phase took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phases([Duration; 6]);

/// The phases that took any time.
impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Phase::ALL.iter().zip(self.0);
        let all = all.filter(|(_, time)| !time.is_zero());
        for (at, (phase, time)) in all.enumerate() {
            let before = if at == 0 { ";" } else { "," };
            write!(f, "{before} {} {:.3} s", phase.name(), time.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Times phases one after the other, and tells of each when the next one ends, or when nothing follows.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
    phases: Phases,
    act: &'static str,
    rank: u32,
    url: String,
    /// One moment by both clocks.
    began: (Instant, SystemTime),
    /// What was not told yet.
    span: Option<Span>,
}

/// A phase that has ended.
#[derive(Debug)]
struct Span {
    phase: Phase,
    start: Instant,
    end: Instant,
    moved: Traffic,
    imbalance: Option<f64>,
    error: Option<String>,
}

impl Clock {
    /// For a rank's part in a `save` or `load`.
    pub(crate) fn start(act: &'static str, rank: Rank, url: &str) -> Self {
        let now = Instant::now();
        Self {
            last: now,
            phases: Phases::default(),
            act,
            rank: rank.0,
            url: url.to_owned(),
            began: (now, SystemTime::now()),
            span: None,
        }
    }

    pub(crate) fn done(&mut self, phase: Phase) {
        self.done_but(phase, []);
    }

    /// As [`done`](Self::done), if the phase has ended with an error.
    pub(crate) fn failed(&mut self, phase: Phase, error: &impl ToString) {
        self.done(phase);
        if let Some(span) = &mut self.span {
            span.error = Some(error.to_string());
        }
    }

    /// What this rank has read or written in the phase that was done last.
    pub(crate) fn moved(&mut self, moved: Traffic) {
        if let Some(span) = &mut self.span {
            span.moved = moved;
        }
    }

    /// How many items this rank has written, if writing is the phase that was done last.
    pub(crate) fn wrote(&mut self, items: u64) {
        if let Some(span) = &mut self.span
            && span.phase == Phase::Write
        {
            span.moved.items = items;
        }
    }

    /// How uneven the ranks are, as the phase that was done last has shown.
    pub(crate) fn uneven(&mut self, imbalance: f64) {
        if let Some(span) = &mut self.span {
            span.imbalance = Some(imbalance);
        }
    }

    /// Counts the time since the last phase as this phase, except parts that were timed separately, which came before it.
    pub(crate) fn done_but(
        &mut self,
        phase: Phase,
        parts: impl IntoIterator<Item = (Phase, Duration, Traffic)>,
    ) {
        let now = Instant::now();
        let mut left = now - self.last;
        for (part, time, moved) in parts {
            let time = time.min(left);
            self.count(part, time);
            self.moved(moved);
            left -= time;
        }
        self.count(phase, left);
        self.last = now;
    }

    fn count(&mut self, phase: Phase, time: Duration) {
        self.phases.0[phase as usize] += time;
        let start = self.last;
        self.last += time;
        match &mut self.span {
            Some(span) if span.phase == phase => span.end = self.last,
            _ => {
                self.tell();
                self.span = Some(Span {
                    phase,
                    start,
                    end: self.last,
                    moved: Traffic::default(),
                    imbalance: None,
                    error: None,
                });
            }
        }
    }

    /// Tells of the last phase.
    fn tell(&mut self) {
        let Some(span) = self.span.take() else { return };
        let at = |when: Instant| self.began.1 + (when - self.began.0);
        PhaseEvent {
            act: self.act,
            phase: span.phase.name(),
            rank: self.rank,
            checkpoint: &self.url,
            start: at(span.start),
            end: at(span.end),
            items: span.moved.items,
            bytes: span.moved.bytes,
            files: span.moved.files,
            imbalance: span.imbalance,
            error: span.error.as_deref(),
        }
        .emit();
    }

    pub(crate) fn phases(&self) -> Phases {
        self.phases
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.tell();
    }
}

/// What a save did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveReport {
    /// What is stored. Only on the coordinator, unless [`metadata_on_all_ranks`](crate::Save::metadata_on_all_ranks) is set; the other ranks
    /// then get it without annotations. In a rank-local save each rank has its own.
    pub metadata: Option<Arc<Metadata>>,
    /// What each rank wrote, by rank: items, their bytes as stored, and files. Neither common state nor records are in it. Only on the coordinator.
    pub ranks: Vec<Traffic>,
    /// What all ranks wrote, without common state and records. On every rank.
    pub totals: SaveTotals,
    /// The files of the common state: `common.pt` in Megatron Core's dialect. Plain tensors lie there as a whole. On every rank. Empty if the
    /// dialect has no common state, or if it is an object of the sharded part ([`CommonForm::Object`](crate::CommonForm::Object)), which `totals` counts.
    pub common: Vec<Entry>,
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

    /// Bytes that all ranks wrote, without [common state](Self::common_bytes) and records.
    pub fn bytes(&self) -> u64 {
        self.totals.all.bytes
    }

    /// Files that all ranks wrote, without those of [common state](Self::common) and records.
    pub fn files(&self) -> u64 {
        self.totals.all.files
    }

    /// Bytes of the files of the [common state](Self::common).
    pub fn common_bytes(&self) -> u64 {
        let bytes = self.common.iter().map(|file| file.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// The bytes of the rank that wrote the most, divided by the mean of all ranks.
    pub fn imbalance(&self) -> f64 {
        self.totals.imbalance()
    }
}

/// One line: `saved 1.52 GB in 4 files, and 1.21 kB of common state in common.pt; plan 0.003 s, write 0.750 s, commit 0.002 s`.
impl fmt::Display for SaveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = some(self.files(), "file");
        write!(f, "saved {} in {files}", Decimal(self.bytes()))?;
        let name = match &*self.common {
            [] => None,
            [only] => Some(only.name.to_string()),
            several => Some(some(several.len() as u64, "file")),
        };
        if let Some(name) = name {
            let bytes = Decimal(self.common_bytes());
            write!(f, ", and {bytes} of common state in {name}")?;
        }
        self.phases.fmt(f)?;
        match &self.common_differs {
            Some(_) => {
                f.write_str("; the common state of this rank differs from the one that is saved")
            }
            None => Ok(()),
        }
    }
}

/// A number of bytes, as `1.52 GB`.
struct Decimal(u64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"].into_iter();
        let mut unit = units.next().unwrap_or_default();
        // What would be printed as 1000.00 belongs to the next unit.
        while value >= 999.995 {
            let Some(next) = units.next() else { break };
            (value, unit) = (value / 1000.0, next);
        }
        match unit {
            "bytes" => write!(f, "{} {unit}", self.0),
            _ => write!(f, "{value:.2} {unit}"),
        }
    }
}

pub(crate) fn imbalance(of_ranks: impl ExactSizeIterator<Item = u64> + Clone) -> f64 {
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

/// One line: `loaded 1.52 GB, opened 4 files; plan 0.003 s, read 0.610 s, finish 0.001 s`.
impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = some(self.files(), "file");
        write!(f, "loaded {}, opened {files}", Decimal(self.bytes()))?;
        self.phases.fmt(f)?;
        let missing = self.notes.not_stored.len();
        match missing {
            0 => Ok(()),
            _ => write!(f, "; not stored: {}", some(missing as u64, "key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_in_decimal_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1_000, "1.00 kB"),
            (999_994, "999.99 kB"),
            (999_996, "1.00 MB"),
            (1_517_936_640, "1.52 GB"),
            (u64::MAX, "18.45 EB"),
        ] {
            assert_eq!(Decimal(bytes).to_string(), text);
        }
    }
}
