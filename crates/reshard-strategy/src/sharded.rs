use crate::{
    AsyncStager, BackendVersion, LoadCx, LoadNotes, OpenCx, RankTotals, ReadTotals, Records, Result, SaveCx,
    SaveTotals, StorageReader, StrategyError,
    common::{compatible, unsupported},
};
use async_trait::async_trait;
use reshard_comm::Comm;
use reshard_model::FlatStateDict;
use reshard_plan::Metadata;
use reshard_policy::PolicyMetrics;
use reshard_storage::{Listing, PlaceKind, Store};
use std::{any::Any, fmt, sync::Arc, time::Duration};

/// Saves sharded leaves in phases that can be parted. A plain save awaits `prepare`, `write` and `finish` in a row; an
/// asynchronous one stages after `prepare`, and runs `write` elsewhere.
#[async_trait]
pub trait SaveShardedStrategy: Any + fmt::Debug + Send + Sync {
    /// Its name.
    fn key(&self) -> BackendVersion;

    /// Decides what each rank writes; no byte has moved when it returns. Which files that makes is the head of
    /// [`write`](PreparedSave::write).
    ///
    /// # Collective
    /// Every rank calls it. If one fails, all of them get an error that names it.
    async fn prepare(&self, state: FlatStateDict, cx: &SaveCx<'_>) -> Result<Box<dyn PreparedSave>>;

    /// Whether it stores sharded objects; if not, it is never given any, and the common strategy stores them.
    fn can_handle_sharded_objects(&self) -> bool {
        true
    }
}

/// A save that is planned. It owns its plan and handles on the caller's buffers, and borrows nothing: any thread can go on with
/// it.
#[async_trait]
pub trait PreparedSave: Send + 'static {
    /// Puts copies in the place of what the caller may change. When it returns, nothing of the caller's is held. A save that
    /// is awaited to its end needs no copies.
    ///
    /// What a planner brings from elsewhere than the state is not copied.
    ///
    /// # Errors
    /// No memory, or a device that fails. To be handed to [`finish`](Self::finish) instead of the outcome of a write.
    async fn stage(&mut self, stager: &dyn AsyncStager) -> Result<()>;

    /// Lays out this rank's files, and writes them; once. Local: no collectives, any thread.
    ///
    /// # Errors
    /// Items that the format can't store; what the store says. To be handed to [`finish`](Self::finish).
    async fn write(&mut self) -> Result<()>;

    /// Takes the outcome of [`write`](Self::write), so that no failure is kept from the others; makes the commit record and
    /// commits nothing.
    ///
    /// # Collective
    /// Every rank calls it, also after a failed write. If one failed, all of them get an error that names it, and the step in
    /// which it failed.
    async fn finish(self: Box<Self>, written: Result<()>, comm: &Comm<'_>) -> Result<Saved>;
}

/// What a finished sharded save leaves to do and to tell.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Saved {
    /// Files that this rank has yet to write (on the coordinator, or on every rank of a rank-local save; nothing elsewhere).
    pub records: Records,
    /// What was stored (on the coordinator).
    pub metadata: Option<Arc<Metadata>>,
    /// Per rank, what it wrote (on the coordinator: a list on every rank would be as long as all ranks times all ranks).
    pub ranks: Vec<RankTotals>,
    /// What all ranks wrote.
    pub totals: SaveTotals,
    /// What a sharding policy did (on the coordinator; on every rank of a rank-local save).
    pub policy: Option<PolicyMetrics>,
}

/// How sure a format is that a place holds a checkpoint of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detection {
    /// Nothing there looks like it.
    No,
    /// The files look like it, but what makes a checkpoint of them is missing; or another format may know better.
    Likely,
    /// It is one, whole or damaged.
    Yes,
}

/// What a file is by its name alone, to a format whose programs call files so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnFile {
    /// It is written last: where it lies, there is a checkpoint.
    Record,
    /// It holds items, or describes them.
    Data,
    /// A record that was not renamed yet, or what else a save leaves that did not end.
    Unfinished,
}

impl OwnFile {
    /// What lies in a place in which such a file does.
    pub fn detected(self) -> Detection {
        match self {
            Self::Record => Detection::Yes,
            Self::Data | Self::Unfinished => Detection::Likely,
        }
    }
}

/// Loads sharded leaves into a template's buffers.
#[async_trait]
pub trait LoadShardedStrategy: Any + fmt::Debug + Send + Sync {
    /// Its name.
    fn key(&self) -> BackendVersion;

    /// Reads what is stored and where; no tensor.
    ///
    /// # Errors
    /// When it is not a checkpoint of this format, or damaged.
    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>>;

    /// Fills the template.
    ///
    /// # Collective
    /// Every rank calls it. If one fails, all of them get an error that names it.
    ///
    /// # Errors
    /// The template comes back with the error, its buffers unharmed or partly filled.
    async fn load(
        &self,
        template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>>;

    /// Whether a place holds a checkpoint of this format, as [`OpenFormat::detect`](crate::OpenFormat::detect) tells.
    fn detect(&self, _top: &Listing) -> Detection {
        Detection::No
    }

    /// Names of files to look for first, as [`OpenFormat::probes`](crate::OpenFormat::probes) tells them.
    fn probes(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a file is by its name, as [`OpenFormat::own_file`](crate::OpenFormat::own_file) tells it.
    fn own_file(&self, _name: &str) -> Option<OwnFile> {
        None
    }

    /// Whether its checkpoints can be places of such a kind, as [`OpenFormat::lives_in`](crate::OpenFormat::lives_in) tells it.
    fn lives_in(&self, kind: PlaceKind) -> bool {
        kind == PlaceKind::Folder
    }

    /// Whether it can load what was stored under another name or version; an error that says why not.
    ///
    /// # Errors
    /// By default: when the name differs, or the version is newer.
    fn check_compatibility(&self, stored: &BackendVersion) -> Result<()> {
        compatible(&self.key(), stored)
    }

    /// Whether it loads sharded objects; if not, the common strategy does.
    fn can_handle_sharded_objects(&self) -> bool {
        true
    }

    /// Takes all tensors and objects whose key starts with `prefix` out of a checkpoint.
    ///
    /// # Errors
    /// By default: not supported.
    async fn remove_sharded_tensors(&self, _store: &Arc<dyn Store>, _prefix: &str) -> Result<()> {
        Err(unsupported(&self.key(), "removing sharded tensors"))
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
    pub totals: ReadTotals,
    /// How long planning took; what is neither planning nor moving was spent on agreeing.
    pub decided: Duration,
    /// How long moving bytes took.
    pub moved: Duration,
}

impl Loaded {
    /// A result that tells nothing besides.
    pub fn new(state: FlatStateDict) -> Self {
        let (notes, totals) = (LoadNotes::default(), ReadTotals::default());
        Self { state, notes, totals, decided: Duration::ZERO, moved: Duration::ZERO }
    }
}

/// A load that failed, with the template's buffers.
#[derive(Debug)]
pub struct LoadFailure {
    /// Why.
    pub error: StrategyError,
    /// The template; a leaf whose buffer could not be taken back yet has no data.
    pub template: FlatStateDict,
}
