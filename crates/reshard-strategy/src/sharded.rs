use crate::{LoadNotes, Records, SaveTotals, StrategyError, Traffic};
use reshard_model::FlatStateDict;
use reshard_plan::Metadata;
use reshard_policy::PolicyMetrics;
use reshard_storage::Name;
use std::{ops::Add, sync::Arc, time::Duration};

/// The result of a finished sharded save: files that are still to be written, and figures.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Saved {
    /// Files that this rank still has to write (on the coordinator, or on every rank of a rank-local save; otherwise empty).
    pub records: Records,
    /// What was stored (on the coordinator).
    pub metadata: Option<Arc<Metadata>>,
    /// How many items this rank wrote.
    pub items: u64,
    /// Per rank, what it wrote (on the coordinator: a list on every rank would be as long as all ranks times all ranks).
    pub ranks: Vec<Traffic>,
    /// What all ranks wrote.
    pub totals: SaveTotals,
    /// What a sharding policy did (on the coordinator; on every rank of a rank-local save).
    pub policy: Option<PolicyMetrics>,
}

/// A version of a checkpoint that lacks some keys.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Removal {
    /// The keys of what is removed; unique keys of objects.
    pub keys: Vec<String>,
    /// The files of items that stay, which are not written again.
    pub keeps: Vec<Name>,
    /// Files in which no item lies, and that go: the description of an array, the file of an object. All other such files stay.
    pub goes: Vec<Name>,
    /// The files that describe the rest, with the format record.
    pub records: Records,
}

impl Removal {
    /// These keys, files that stay, and new records.
    pub fn new(keys: Vec<String>, keeps: Vec<Name>, records: Records) -> Self {
        Self {
            keys,
            keeps,
            goes: Vec::new(),
            records,
        }
    }
}

/// A filled template.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The leaves, with data.
    pub state: FlatStateDict,
    /// What the caller should know.
    pub notes: LoadNotes,
    /// What was read.
    pub totals: Traffic,
    /// How long planning took, with its collective steps. The rest of the time, neither planning nor moving, is time in later collective
    /// steps.
    pub decided: Duration,
    /// How long moving bytes took.
    pub moved: Duration,
    /// How long ranks read for each other, which is a part of the time of moving bytes.
    pub exchange: ExchangeTimes,
}

/// What a rank did while ranks of a load read for each other. The times overlap: the next part is read while one is handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExchangeTimes {
    /// In how many rounds data were handed on.
    pub rounds: u64,
    /// How long this rank read for others.
    pub reading: Duration,
    /// How long this rank handed data on and waited for those of others.
    pub handing: Duration,
    /// How long it put what came into its leaves.
    pub filling: Duration,
    /// How long copies to devices took, in all threads together. They go on beside reads and rounds. It is counted without an exchange, too.
    pub devices: Duration,
}

impl Loaded {
    /// A result without further information.
    pub fn new(state: FlatStateDict) -> Self {
        let (notes, totals) = (LoadNotes::default(), Traffic::default());
        Self {
            state,
            notes,
            totals,
            decided: Duration::ZERO,
            moved: Duration::ZERO,
            exchange: ExchangeTimes::default(),
        }
    }
}

impl Add for ExchangeTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            reading: self.reading + other.reading,
            handing: self.handing + other.handing,
            filling: self.filling + other.filling,
            devices: self.devices + other.devices,
        }
    }
}

/// A failed load, with the template's buffers.
#[derive(Debug)]
pub struct LoadFailure {
    /// The error.
    pub error: StrategyError,
    /// The template. If the buffer of a leaf could not be taken back yet, the leaf has no data.
    pub template: FlatStateDict,
    /// How long planning took, with its collective steps. `None` if there is no plan, because planning has failed.
    pub decided: Option<Duration>,
}

impl LoadFailure {
    /// A failure before there was a plan.
    pub fn of_plan(error: StrategyError, template: FlatStateDict) -> Self {
        Self {
            error,
            template,
            decided: None,
        }
    }
}
