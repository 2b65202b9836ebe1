//! The options of a save.

use super::options::SaveOptions;
use crate::{
    Stateful, StoredCommon,
    ranks::{self, Ranks},
};
use reshard_comm::{Comm, ProcessGroup, Rank};
use reshard_model::{Dialect, Flatten, Path, StateDict, ValueTree};
use reshard_open::place_text;
use reshard_plan::SavePlanner;
use reshard_policy::ShardingPolicy;
use reshard_storage::{Durability, Progress, Store, Stores};
use reshard_strategy::{KeptPlan, SaveCommonStrategy, StrategyError};
use std::{fmt, pin::Pin, sync::Arc, time::Duration};

/// Saves a state dict to a directory, given by its path, or to the place of a URL. Await the result, or set options on it first.
///
/// # Collective
/// Every rank of the group must await it, in the same order as other collectives. If a rank fails before the commit, all
/// ranks get an error with the step, the ranks and the causes, and nothing is committed.
///
/// The save can also fail after the commit. The error is then
/// [`NotDurable`](reshard_storage::StorageError::NotDurable) or
/// [`NotCarried`](reshard_storage::StorageError::NotCarried), or it says that a rank was lost or late in one of the last
/// steps (`write`, `commit`). After such an error the new checkpoint may be there, and it is whole. To find out, open the URL.
///
/// # Cancellation
/// If you drop the future on one rank, that counts as a failure of this rank. Data that are already written stay in a
/// hidden directory beside the checkpoint, or under unpublished names. A commit that has begun may still finish.
///
/// # Errors
/// - Something exists at the URL already ([`reshard_model::ErrorKind::Exists`], unless [`Save::overwrite`]).
/// - The pieces of the ranks do not make up their tensors.
/// - Plain tensors differ between ranks ([`Save::coordinators_plain_tensors`]).
/// - I/O.
pub fn save<'a>(state: &'a StateDict, place: impl AsRef<std::path::Path>) -> Save<'a> {
    Save {
        state,
        ranks: Ranks::default(),
        statefuls: Vec::new(),
        last_check: None,
        options: SaveOptions::of(place_text(place)),
    }
}

type Checked = Pin<Box<dyn Future<Output = Result<(), StrategyError>> + Send>>;

/// What is checked before the commit.
pub(super) type LastCheck = Box<dyn FnOnce() -> Checked + Send + Sync>;

/// A save that is being set up; made by [`save`].
#[must_use = "a save does nothing until it is awaited"]
pub struct Save<'a> {
    pub(super) state: &'a StateDict,
    pub(crate) ranks: Ranks<'a>,
    /// Values that make their own state, by key.
    pub(super) statefuls: Vec<(&'a str, &'a dyn Stateful)>,
    pub(super) last_check: Option<LastCheck>,
    pub(crate) options: SaveOptions,
}

impl fmt::Debug for Save<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Save")
            .field("url", &self.options.url)
            .field("ranks", &self.ranks)
            .field("dialect", &self.options.pipeline.dialect)
            .field("overwrite", &self.options.overwrite)
            .finish_non_exhaustive()
    }
}

impl<'a> Save<'a> {
    ranks::options!();

    /// Also saves the state that a value makes, under this key at the top of the state dict. It is called when the save begins.
    pub fn stateful(mut self, key: &'a str, value: &'a dyn Stateful) -> Self {
        self.statefuls.push((key, value));
        self
    }

    /// Whose conventions to follow. By default these are Megatron Core's, if the format can follow them: leaves that are not sharded are common
    /// state. With [`Dialect::Dcp`] every leaf is an item, as in `dcp.save`. A format that can't follow Megatron Core's has a default of its own
    /// ([`Capabilities::dialects`](reshard_strategy::Capabilities::dialects)).
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.options.pipeline.dialect = dialect;
        self.options.dialect_is_chosen = true;
        self
    }

    /// Common state of another checkpoint, which is written unchanged, in the form in which it was stored there. For
    /// tools that rewrite a checkpoint. The state itself must then have sharded leaves only.
    pub fn stored_common(mut self, common: StoredCommon) -> Self {
        self.options.common_form = common.form();
        self.options.stored_common = Some(common);
        self
    }

    /// Paths of empty dicts, in addition to those of the state, in [`Dialect::Dcp`]. For tools that rewrite a
    /// checkpoint whose [`Sidecar`](crate::Sidecar) names empty dicts, and that have no state with this nesting.
    pub fn empty_dicts(mut self, paths: impl IntoIterator<Item = Path>) -> Self {
        self.options.empty_dicts.extend(paths);
        self
    }

    /// Notes something beside the checkpoint, in the [`notes`](crate::Sidecar::notes) of `reshard.json`: for example, which program saved it. Other
    /// programs ignore it, and a conversion does not carry it over. The coordinator's notes count. All of a checkpoint have at most
    /// 64 KiB. A place that is no folder has no room for notes, so the save refuses them before it writes anything.
    ///
    /// ```
    /// use reshard::{StateDict, blocking};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let place = dir.path().join("step-1");
    /// let mut state = StateDict::new();
    /// state.insert("step", 1);
    /// blocking::run(reshard::save(&state, &place).note("run", "a7"))?;
    /// let (sidecar, _) = blocking::Checkpoint::open(&place)?.sidecar();
    /// assert_eq!(sidecar.unwrap().notes["run"], "a7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.notes.insert(key.into(), value.into());
        self
    }

    /// The ranks that take part, as the options say so far. For programs that take steps of their own before and after the save.
    pub fn comm(&self) -> Comm<'a> {
        self.ranks.comm()
    }

    /// Sets the strategy of common state; the default is `torch` version 1. If the sharded strategy stores no objects,
    /// this strategy stores them too, except in PyTorch's dialect, which has no common strategy. A load finds it by its name in [`registry`](crate::Load::registry).
    pub fn common_strategy(mut self, strategy: impl SaveCommonStrategy) -> Self {
        self.options.common = Some(Arc::new(strategy));
        self
    }

    /// Sets your own planner. By default its [`base`](SavePlanner::base) is Megatron Core's planner. With [`Dialect::Dcp`],
    /// return [`DefaultSavePlanner::DCP`](reshard_plan::DefaultSavePlanner::DCP) there.
    pub fn planner(mut self, planner: impl SavePlanner) -> Self {
        self.options.planner = Some(Arc::new(planner));
        self
    }

    /// Sets the policy that decides which tensor, or which part of it, goes into which file (RFC 454's sharding
    /// callback). A shard is a file. A tensor that is cut becomes several chunks. Give the same policy on every rank:
    /// the coordinator's is called once, with the pieces of all ranks, and its answer is checked. With
    /// [`rank_local`](Self::rank_local) each rank calls its own policy, with its own pieces. Without a policy each rank
    /// writes one file.
    ///
    /// ```
    /// use reshard::policy::{KIB, MIB, MaxShardSize};
    /// # use reshard::{ShardedTensor, StateDict, Tensor};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = dir.path().join("ckpt").display().to_string();
    /// let mut state = StateDict::new();
    /// let table = Tensor::from_vec(&[1 << 18, 4], vec![0f32; 1 << 20])?; // 4 MiB
    /// state.insert("table", ShardedTensor::full("table", table));
    /// let limit = MIB + 64 * KIB; // a quarter of the table, and a header
    /// let saved = reshard::save(&state, &url).policy(MaxShardSize::new(limit)); // .await
    /// let saved = reshard::blocking::run(saved)?;
    /// assert_eq!(saved.files(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn policy(self, policy: impl ShardingPolicy) -> Self {
        self.boxed_policy(Box::new(policy) as Box<dyn ShardingPolicy>)
    }

    /// Sets a sharding policy from configuration, in a `Box` or an `Arc`.
    pub fn boxed_policy(mut self, policy: impl Into<Arc<dyn ShardingPolicy>>) -> Self {
        self.options.policy = Some(policy.into());
        self
    }

    /// How many slices the policy's answer may have. The default is 4 per piece, plus a million.
    pub fn max_slices(mut self, max_slices: usize) -> Self {
        self.options.pipeline.policy_limits.max_slices = Some(max_slices);
        self
    }

    /// How many files all ranks together may write by a policy, or by settings of the format that say how to spread items over
    /// files. The default is one per slice, plus 16 million empty ones. Ranks that save without each other each have this limit.
    pub fn max_files(mut self, max_files: u64) -> Self {
        self.options.pipeline.policy_limits.max_files = Some(max_files);
        self
    }

    /// Whether to only check and plan the save, and to write nothing. All checks of a save run that need no tensor data, also those of the place, and the
    /// report contains what would be written; for data that are compressed on the way, that is their maximal length, and for objects that one rank
    /// writes for another, an estimate. Checks between ranks that compare
    /// tensors run, too. The format makes no records, because these have checksums of the data. The default is a real save.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.options.pipeline.dry_run = dry_run;
        self
    }

    /// What a finished save survives. By default it survives a crash of the machine.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.pipeline.durability = durability;
        self
    }

    /// Every rank writes the metadata of its own items, and ranks exchange no plans: DCP's `use_collectives=False`.
    /// reshard loads such a checkpoint on any number of ranks, because it merges the metadata of all ranks
    /// (`__{rank}.metadata`). PyTorch loads it only on the same number of ranks with the same split.
    ///
    /// The pieces of one rank do not make up their tensors. So a [`planner`](Self::planner) of your own needs a base with
    /// [`allow_holes`](reshard_plan::DefaultSavePlanner::with_allow_holes). Keep that base in a field of your planner.
    pub fn rank_local(mut self, rank_local: bool) -> Self {
        self.options.pipeline.rank_local = rank_local;
        self
    }

    /// Sets a callback that is called with the number of bytes written, from any thread.
    pub fn progress(mut self, f: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.options.pipeline.progress = Progress::new(f);
        self
    }

    /// Sets a last check. It runs on this rank when all ranks have written what they planned, and before anything is committed: what was read to
    /// be written is known then. If it fails, all ranks get an error, and nothing is committed.
    pub fn before_commit<F>(mut self, check: impl FnOnce() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), StrategyError>> + Send + 'static,
    {
        self.last_check = Some(Box::new(move || Box::pin(check())));
        self
    }

    /// How many bytes this rank may hold while it writes pieces of other ranks, or gives its own to them, because a planner
    /// or a policy that gathers says so. If ranks set different values, the smallest one is used. The default is
    /// [`DEFAULT_EXCHANGE_MEMORY`](reshard_strategy::DEFAULT_EXCHANGE_MEMORY), 256 MiB.
    pub fn exchange_memory(mut self, bytes: u64) -> Self {
        self.options.pipeline.exchange_memory = bytes;
        self
    }

    /// How many bytes of one leaf on a device may be copied to host memory before they are written, for each thread that writes: DCP's
    /// `per_thread_copy_ahead`. Leaves of more than 1 MiB are copied in blocks, and the next blocks while earlier ones are written. The
    /// default is [`DEFAULT_COPY_AHEAD`](reshard_strategy::DEFAULT_COPY_AHEAD), 10 MB. An asynchronous save that stages has host copies.
    pub fn copy_ahead(mut self, bytes: u64) -> Self {
        self.options.pipeline.copy_ahead = bytes;
        self
    }

    /// Keeps the plan for the next save that gets this. If nothing has changed on any rank but the data, that save is not
    /// planned again: see [`KeptPlan`]. Each rank passes one of its own. An [`AsyncSaver`](crate::AsyncSaver) and an
    /// [`AsyncCallsQueue`](crate::AsyncCallsQueue) have one, which this replaces.
    ///
    /// ```
    /// use reshard::{KeptPlan, ShardedTensor, StateDict, Tensor};
    /// use std::sync::Arc;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let kept = Arc::new(KeptPlan::new());
    /// for step in 0..3 {
    ///     let mut state = StateDict::new();
    ///     state.insert("w", ShardedTensor::full("w", Tensor::from_vec(&[2], vec![step as f32; 2])?));
    ///     let url = dir.path().join(format!("step-{step}")).display().to_string();
    ///     reshard::blocking::run(reshard::save(&state, &url).kept_plan(&kept))?;
    /// }
    /// assert_eq!(kept.reused(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn kept_plan(mut self, kept: &Arc<KeptPlan>) -> Self {
        self.options.kept_plan = Some(Arc::clone(kept));
        self
    }

    /// Whether the coordinator checks what all ranks declare, replicas too, with
    /// [`validate_sharding_integrity`](reshard_plan::validate_sharding_integrity): in [`Dialect::Megatron`], if ranks do not save
    /// [by themselves](Self::rank_local). The default is that it does. Without it, overlaps, holes and bounds of what is written are still
    /// checked, but not that replicas agree, nor that each key has a main replica. Set it to the same value on every rank.
    pub fn validate_access_integrity(mut self, validate: bool) -> Self {
        self.options.pipeline.validate_access_integrity = validate;
        self
    }

    /// Whether dicts and lists below the top are taken apart, in [`Dialect::Dcp`]. That is the default. Without it each of them is one
    /// object, with its tensors, and can't be loaded in parts: DCP's `flatten_state_dict=False`. A load finds out by itself how
    /// a state was saved.
    pub fn flatten(mut self, flatten: bool) -> Self {
        self.options.flatten = match flatten {
            true => Flatten::default(),
            false => Flatten::TopLevel,
        };
        self
    }

    /// Changes a copy of the common state before it is [compared](Self::compare_common): for example, removes what differs between ranks
    /// by intent. What is saved does not change.
    pub fn preprocess_common_before_consistency_check(
        mut self,
        preprocess: impl Fn(&mut ValueTree) + Send + Sync + 'static,
    ) -> Self {
        self.options.preprocess_common = Some(Arc::new(preprocess));
        self
    }

    /// Uses a place that is already open, with its client, credentials and runtime. The URL is then only its name in
    /// messages.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.options.stores = Some(Stores::only(store));
        self
    }
}
