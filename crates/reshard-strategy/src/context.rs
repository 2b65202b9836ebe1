use crate::{Declares, KeptLoadPlan, KeptPlan, LoadReporter, ReadLimits};
use reshard_comm::{Comm, ProcessGroup};
use reshard_model::{Dialect, Path};
use reshard_plan::{Elsewhere, LoadPlanner, PlannerData, SavePlanner};
use reshard_policy::{Limits, ShardingPolicy};
use reshard_storage::{Durability, PlaceKind, Progress, Store, Transaction};
use std::{collections::BTreeMap, sync::Arc};

/// The options of a save that every part of it sees as its caller has set them.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// The dialect: where common state goes, and how objects are wrapped.
    pub dialect: Dialect,
    /// What a finished save survives.
    pub durability: Durability,
    /// Whether every rank writes its items with its own metadata, and ranks exchange no plans (DCP's `use_collectives=False`).
    pub rank_local: bool,
    /// Whether the save is only planned and laid out: no tensor data is read, ranks exchange none, and the format makes no records.
    /// The [`transaction`](SaveCx::transaction) writes nothing then.
    pub dry_run: bool,
    /// Whether a planner that validates what all ranks declare is asked to. Give all ranks the same.
    pub validate_access_integrity: bool,
    /// Limits on the policy's answer.
    pub policy_limits: Limits,
    /// How many bytes this rank may hold for an exchange. The default is [`DEFAULT_EXCHANGE_MEMORY`]. At most a quarter is sent in a
    /// round and a quarter received. The rest holds what came and is not written yet. If ranks have different values, the smallest one
    /// is used.
    pub exchange_memory: u64,
    /// How many bytes of one item may be copied from a device to host memory before they are written, for each thread that writes: DCP's
    /// `per_thread_copy_ahead`. The default is [`DEFAULT_COPY_AHEAD`]. With 0 each block is copied when it is needed.
    pub copy_ahead: u64,
    /// Called with the number of bytes written.
    pub progress: Progress,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            durability: Durability::default(),
            rank_local: false,
            dry_run: false,
            validate_access_integrity: true,
            policy_limits: Limits::default(),
            exchange_memory: DEFAULT_EXCHANGE_MEMORY,
            copy_ahead: DEFAULT_COPY_AHEAD,
            progress: Progress::default(),
        }
    }
}

/// The runtime objects of one save. A configuration never holds them. A configuration of a third party may name groups, which are found
/// here.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveCx<'a> {
    /// What the caller has set.
    pub options: &'a PipelineOptions,
    /// All ranks of the save.
    pub comm: Comm<'a>,
    /// Sub-groups by name, for strategies whose settings name them.
    pub groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
    /// Where the new version is built.
    pub transaction: Arc<dyn Transaction>,
    /// Where the checkpoint will be, for messages and metadata.
    pub url: &'a str,
    /// DCP's planner.
    pub planner: Arc<dyn SavePlanner>,
    /// The policy that decides which item, or which part of it, goes into which file. Every rank has the same policy, and only the
    /// coordinator calls it. In a rank-local save each rank calls it for its own items. Without a policy the format decides.
    pub policy: Option<Arc<dyn ShardingPolicy>>,
    /// The path of each key of this rank, for formats that store it (DCP's `planner_data`). A planner that makes its own paths overrides
    /// them.
    pub planner_data: Option<PlannerData>,
    /// The paths of empty dicts, which no key has, for formats that have a place for them.
    pub empty_dicts: Vec<Path>,
    /// What the save before has planned, if the caller keeps it.
    pub kept_plan: Option<Arc<KeptPlan>>,
    /// What this rank declares that its state does not show: leaves that the common strategy stores, and the replica ids before
    /// [layers](crate::SaveLayer) replaced them. The planner validates both.
    pub declares: Arc<Declares>,
}

impl<'a> SaveCx<'a> {
    /// Makes a context. Fields that are no arguments get their defaults.
    pub fn new(
        options: &'a PipelineOptions,
        comm: Comm<'a>,
        groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
        transaction: Arc<dyn Transaction>,
        url: &'a str,
        planner: Arc<dyn SavePlanner>,
    ) -> Self {
        Self {
            options,
            comm,
            groups,
            transaction,
            url,
            planner,
            policy: None,
            planner_data: None,
            empty_dicts: Vec::new(),
            kept_plan: None,
            declares: Arc::default(),
        }
    }

    /// Whether ranks tell what they declare.
    pub(crate) fn validates(&self) -> bool {
        self.options.validate_access_integrity && self.planner.validates()
    }
}

/// What a format needs to open a checkpoint.
#[derive(Clone, Debug, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
#[non_exhaustive]
pub struct OpenCx {
    /// Where the checkpoint lies.
    pub store: Arc<dyn Store>,
    /// Limits on what the checkpoint may ask for. The opened reader must keep to them in all its reads.
    #[setters(generate)]
    pub limits: ReadLimits,
    /// The dialect, as far as files outside the format tell it: [`Dialect::Megatron`] if there is a `metadata.json` of Megatron Core.
    #[setters(generate)]
    pub dialect: Dialect,
    /// Whether the place is a folder, or one file that its user has named. The default is a folder.
    #[setters(generate)]
    pub kind: PlaceKind,
    /// Whether another program has saved over the checkpoint, so that records of the format that only reshard writes are of an earlier version, and are
    /// ignored. The default is no.
    pub saved_over: bool,
}

impl OpenCx {
    /// A context with the default limits, for a checkpoint without anything of Megatron Core's.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            limits: ReadLimits::default(),
            dialect: Dialect::Dcp,
            kind: PlaceKind::Folder,
            saved_over: false,
        }
    }
}

/// The options of a load that every part of it sees as its caller, or a [layer](crate::LoadLayer), has set them.
#[derive(Clone, Debug)]
pub struct LoadPipelineOptions {
    /// Whether to check the checksum of each item that is read as a whole. The default is yes.
    pub verify: bool,
    /// How many bytes this rank may hold for an exchange. The default is [`DEFAULT_EXCHANGE_MEMORY`]. At most a quarter is sent in a
    /// round and a quarter received. The rest holds data that are read and wait; only a single item that is larger exceeds it. If
    /// ranks have different values, the smallest one is used.
    pub exchange_memory: u64,
    /// How many bytes may be on their way from host memory to devices: DCP's `per_thread_copy_ahead`. The default is
    /// [`DEFAULT_COPY_AHEAD`]. What waits for that in an exchange is a fifth of `exchange_memory`.
    pub copy_ahead: u64,
    /// Called when elements have come.
    pub progress: LoadReporter,
}

impl Default for LoadPipelineOptions {
    fn default() -> Self {
        Self {
            verify: true,
            exchange_memory: DEFAULT_EXCHANGE_MEMORY,
            copy_ahead: DEFAULT_COPY_AHEAD,
            progress: LoadReporter::default(),
        }
    }
}

/// The runtime objects of one load.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadCx<'a> {
    /// What the caller or a layer has set.
    pub options: &'a LoadPipelineOptions,
    /// All ranks of the load.
    pub comm: Comm<'a>,
    /// Sub-groups by name, for strategies whose settings name them.
    pub groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
    /// Where the checkpoint lies.
    pub store: Arc<dyn Store>,
    /// DCP's planner.
    pub planner: Arc<dyn LoadPlanner>,
    /// What of the checkpoint this load need not ask for, because somebody else reads it: the common state, for example.
    pub elsewhere: Elsewhere,
    /// What lies in the common state, by key: `a plain tensor of shape [4]`. The error for a sharded leaf of such a key says so.
    pub in_common: Arc<BTreeMap<String, String>>,
    /// What the load before has planned, if the caller keeps it.
    pub kept_plan: Option<Arc<KeptLoadPlan>>,
}

/// How many bytes a rank holds for an exchange by default: 256 MiB.
pub const DEFAULT_EXCHANGE_MEMORY: u64 = 256 << 20;

/// How many bytes are on their way to devices by default: 10 MB, as in DCP.
pub const DEFAULT_COPY_AHEAD: u64 = 10_000_000;

impl<'a> LoadCx<'a> {
    /// Makes a context. Fields that are no arguments get their defaults.
    pub fn new(
        options: &'a LoadPipelineOptions,
        comm: Comm<'a>,
        groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
        store: Arc<dyn Store>,
        planner: Arc<dyn LoadPlanner>,
    ) -> Self {
        Self {
            options,
            comm,
            groups,
            store,
            planner,
            elsewhere: Elsewhere::default(),
            in_common: Arc::default(),
            kept_plan: None,
        }
    }
}
