use crate::ReadLimits;
use reshard_comm::{Comm, ProcessGroup};
use reshard_model::Dialect;
use reshard_plan::{LoadPlanner, PlannerData, SavePlanner};
use reshard_policy::{Limits, ShardingPolicy};
use reshard_storage::{Durability, Progress, Store, Transaction};
use std::{collections::BTreeMap, sync::Arc};

/// The live things of one save. Configuration never holds them; it names groups, which are found here.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveCx<'a> {
    /// All ranks of the save.
    pub comm: Comm<'a>,
    /// Sub-groups by name, for strategies that want them.
    pub groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
    /// Where the new version is built.
    pub transaction: Arc<dyn Transaction>,
    /// Where the checkpoint will be, for messages and metadata.
    pub url: &'a str,
    /// DCP's planner.
    pub planner: Arc<dyn SavePlanner>,
    /// Which item, or which part of it, goes into which file; every rank has the same, and only the coordinator asks it.
    /// Without one the format decides.
    pub policy: Option<Arc<dyn ShardingPolicy>>,
    /// How much the policy may answer.
    pub policy_limits: Limits,
    /// What a finished save survives.
    pub durability: Durability,
    /// Whose conventions: where common state goes, how objects are wrapped.
    pub dialect: Dialect,
    /// Every rank writes its items with metadata of its own, and no plan is exchanged (DCP's `use_collectives=False`).
    pub rank_local: bool,
    /// Under which path each key of this rank was, for formats that keep it (DCP's `planner_data`); a planner that makes its
    /// own overrides it.
    pub planner_data: Option<PlannerData>,
    /// Told of written bytes.
    pub progress: Progress,
}

impl<'a> SaveCx<'a> {
    /// A context with defaults for all but what has none.
    pub fn new(
        comm: Comm<'a>,
        groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
        transaction: Arc<dyn Transaction>,
        url: &'a str,
        planner: Arc<dyn SavePlanner>,
    ) -> Self {
        let (durability, dialect, progress) =
            (Durability::default(), Dialect::default(), Progress::default());
        Self {
            comm,
            groups,
            transaction,
            url,
            planner,
            policy: None,
            policy_limits: Limits::default(),
            durability,
            dialect,
            rank_local: false,
            planner_data: None,
            progress,
        }
    }
}

/// What a checkpoint is opened with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenCx {
    /// Where the checkpoint lies.
    pub store: Arc<dyn Store>,
    /// How much it may ask for. What is opened keeps to them in all that it reads.
    pub limits: ReadLimits,
    /// Whose conventions it follows, as far as files tell that are not of its format: [`Dialect::Megatron`] where Megatron
    /// Core's `metadata.json` lies.
    pub dialect: Dialect,
}

impl OpenCx {
    /// A context with the default limits, for a checkpoint without anything of Megatron Core's.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, limits: ReadLimits::default(), dialect: Dialect::Dcp }
    }

    /// In another dialect.
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// With other limits.
    pub fn with_limits(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }
}

/// The live things of one load.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadCx<'a> {
    /// All ranks of the load.
    pub comm: Comm<'a>,
    /// Sub-groups by name, for strategies that want them.
    pub groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
    /// Where the checkpoint lies.
    pub store: Arc<dyn Store>,
    /// DCP's planner.
    pub planner: Arc<dyn LoadPlanner>,
    /// Whether checksums of wholly read items are checked.
    pub verify: bool,
    /// Told of read bytes.
    pub progress: Progress,
    /// How many bytes this rank may hold for an exchange: [`DEFAULT_EXCHANGE_MEMORY`] unless set. A quarter is sent at once, a
    /// quarter received; the rest was read and waits, and is more only for one item that is larger. Of ranks that differ the least
    /// counts.
    pub exchange_memory: u64,
}

/// How many bytes a rank holds for an exchange of a load unless told otherwise: 256 MiB.
pub const DEFAULT_EXCHANGE_MEMORY: u64 = 256 << 20;

impl<'a> LoadCx<'a> {
    /// A context with defaults for all but what has none: checksums are verified.
    pub fn new(
        comm: Comm<'a>,
        groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
        store: Arc<dyn Store>,
        planner: Arc<dyn LoadPlanner>,
    ) -> Self {
        let (progress, exchange_memory) = (Progress::default(), DEFAULT_EXCHANGE_MEMORY);
        Self { comm, groups, store, planner, verify: true, progress, exchange_memory }
    }

    /// With another limit of memory for exchanges, in bytes.
    #[must_use]
    pub fn with_exchange_memory(self, exchange_memory: u64) -> Self {
        Self { exchange_memory, ..self }
    }
}
