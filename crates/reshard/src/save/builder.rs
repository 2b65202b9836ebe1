//! What a save may be told before it begins.

use crate::{
    CommonForm, StoredCommon,
    ranks::{self, Ranks},
};
use reshard_comm::{ProcessGroup, Rank};
use reshard_model::{Dialect, Path, StateDict, Value};
use reshard_plan::SavePlanner;
use reshard_policy::{Limits, ShardingPolicy};
use reshard_storage::{Durability, Progress, Store, Stores};
use reshard_strategy::{Registry, SaveCommonStrategy, SaveShardedConfig};
use std::{sync::Arc, time::Duration};

/// Saves a state dict to a directory or URL; await it, or set options first.
///
/// # Collective
/// Every rank of the group must await it, in the same order as other collectives. If any rank fails, all of them get the step,
/// the ranks and the causes, and nothing is committed.
///
/// # Cancellation
/// Dropping the future on one rank counts as a failure of that rank. What was written so far stays in a hidden directory beside
/// the checkpoint, or under unpublished names.
///
/// # Errors
/// Something exists there already ([`reshard_model::ErrorKind::Exists`], unless [`Save::overwrite`]); pieces of the ranks that
/// do not make up their tensors; tensors that are not declared and differ between ranks
/// ([`Save::coordinators_plain_tensors`]); I/O.
pub fn save<'a>(state: &'a StateDict, url: &'a str) -> Save<'a> {
    Save {
        state,
        url,
        ranks: Ranks::default(),
        dialect: Dialect::default(),
        common_form: CommonForm::File,
        content_metadata: None,
        stored_common: None,
        empty_dicts: Vec::new(),
        config: None,
        common: None,
        planner: None,
        policy: None,
        policy_limits: Limits::default(),
        overwrite: false,
        durability: Durability::default(),
        rank_local: false,
        coordinators_plain_tensors: false,
        progress: Progress::default(),
        registry: None,
        stores: None,
    }
}

/// A save that is being set up; made by [`save`].
#[derive(Debug)]
#[must_use = "a save does nothing until it is awaited"]
pub struct Save<'a> {
    pub(super) state: &'a StateDict,
    pub(super) url: &'a str,
    pub(super) ranks: Ranks<'a>,
    pub(super) dialect: Dialect,
    pub(super) common_form: CommonForm,
    pub(super) content_metadata: Option<Value>,
    pub(super) stored_common: Option<StoredCommon>,
    pub(super) empty_dicts: Vec<Path>,
    pub(super) config: Option<Box<dyn SaveShardedConfig>>,
    pub(super) common: Option<Arc<dyn SaveCommonStrategy>>,
    pub(super) planner: Option<Arc<dyn SavePlanner>>,
    pub(super) policy: Option<Arc<dyn ShardingPolicy>>,
    pub(super) policy_limits: Limits,
    pub(super) overwrite: bool,
    pub(super) durability: Durability,
    pub(super) rank_local: bool,
    pub(super) coordinators_plain_tensors: bool,
    pub(super) progress: Progress,
    pub(super) registry: Option<Registry>,
    pub(super) stores: Option<Stores>,
}

impl<'a> Save<'a> {
    ranks::options!();

    /// Whose conventions to follow: by default Megatron Core's, where leaves that are not sharded are common state; with
    /// [`Dialect::Dcp`] every leaf is an item, as `dcp.save` makes it.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Where common state goes in Megatron Core's dialect.
    pub fn common_form(mut self, form: CommonForm) -> Self {
        self.common_form = form;
        self
    }

    /// What the checkpoint holds, in Megatron Core's words: kept as `content_metadata` in the common state.
    pub fn content_metadata(mut self, content: impl Into<Value>) -> Self {
        self.content_metadata = Some(content.into());
        self
    }

    /// Common state of another checkpoint, written as it was stored there, where it was; for who rewrites a checkpoint. The state
    /// itself then has sharded leaves only.
    pub fn stored_common(mut self, common: StoredCommon) -> Self {
        self.common_form = common.form();
        self.stored_common = Some(common);
        self
    }

    /// Paths of dicts without entries beside those of the state, in [`Dialect::Dcp`]: for who rewrites a checkpoint whose
    /// [`Sidecar`](crate::Sidecar) names them, and has no state of its form.
    pub fn empty_dicts(mut self, paths: impl IntoIterator<Item = Path>) -> Self {
        self.empty_dicts.extend(paths);
        self
    }

    /// Another strategy, or other settings, than `torch_dist` version 1 has by default.
    pub fn strategy(mut self, config: impl SaveShardedConfig + 'static) -> Self {
        self.config = Some(Box::new(config));
        self
    }

    /// A strategy out of configuration.
    pub fn boxed_strategy(mut self, config: Box<dyn SaveShardedConfig>) -> Self {
        self.config = Some(config);
        self
    }

    /// Another strategy of common state than `torch` version 1. It stores sharded objects, too, where the other strategy stores
    /// none. A load finds it by its name in [`registry`](crate::Load::registry).
    pub fn common_strategy(mut self, strategy: impl SaveCommonStrategy) -> Self {
        self.common = Some(Arc::new(strategy));
        self
    }

    /// A planner of your own.
    pub fn planner(mut self, planner: impl SavePlanner + 'static) -> Self {
        self.planner = Some(Arc::new(planner));
        self
    }

    /// Which tensor, or which part of it, goes into which file: RFC 454's sharding callback. A shard is a file, a tensor that is cut
    /// becomes several chunks. Every rank gives the same; the coordinator's is asked once, with the pieces of all ranks, and its
    /// answer is checked. Without a policy each rank writes one file.
    ///
    /// ```
    /// use reshard::policy::{MIB, MaxShardSize};
    /// # use reshard::{ShardedTensor, StateDict, Tensor};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = dir.path().join("ckpt").display().to_string();
    /// let mut state = StateDict::new();
    /// let table = Tensor::from_vec(&[1 << 18, 4], vec![0f32; 1 << 20])?; // 4 MiB
    /// state.insert("table", ShardedTensor::full("table", table));
    /// let saved = reshard::save(&state, &url).policy(MaxShardSize::new(MIB)); // .await
    /// let saved = reshard::blocking::run(saved)?;
    /// assert_eq!(saved.files(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn policy(self, policy: impl ShardingPolicy) -> Self {
        self.boxed_policy(Box::new(policy) as Box<dyn ShardingPolicy>)
    }

    /// A sharding policy out of configuration, in a `Box` or an `Arc`.
    pub fn boxed_policy(mut self, policy: impl Into<Arc<dyn ShardingPolicy>>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// How many slices the policy's answer may have; 4 for each piece and a million more by default.
    pub fn max_slices(mut self, max_slices: usize) -> Self {
        self.policy_limits = self.policy_limits.with_max_slices(max_slices);
        self
    }

    /// Whether a checkpoint that is there already may be replaced. It stays whole until the new one is; then its files are
    /// gone. What else lies in its directory stays: a README, logs, also what came while the save ran.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// What a finished save survives; by default a crash of the machine.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Every rank writes metadata of its own items, and no plans are exchanged: DCP's `use_collectives=False`. Such a
    /// checkpoint is loaded by as many ranks with the same layout, or opened as a whole by one process.
    pub fn rank_local(mut self, rank_local: bool) -> Self {
        self.rank_local = rank_local;
        self
    }

    /// Says that of plain tensors which differ between ranks the coordinator's is meant; every rank must give the same.
    ///
    /// A plain tensor is a leaf, or lies in one, that is not declared as a [`ShardedTensor`](crate::ShardedTensor). The
    /// checkpoint holds it once, so by default it must have the same type, shape and bytes on all ranks, or the save fails on
    /// all of them. For that each rank computes a CRC-32 of its plain tensors; those in device memory are copied to the host
    /// once more. A rank that is alone computes nothing. Values other than tensors are not compared.
    ///
    /// - In [`Dialect::Megatron`] plain tensors are common state, of which the coordinator's is saved. A tensor that the
    ///   coordinator lacks and another rank has would be lost, so that it fails the save, too. With this option nothing is
    ///   compared.
    /// - In [`Dialect::Dcp`] a tensor that only some ranks have is saved, and these must agree. With this option the others
    ///   leave those that differ to the coordinator; one that the coordinator lacks fails the save all the same.
    /// - With [`rank_local`](Self::rank_local) the rules are the same, since reshard opens the files of all ranks as one
    ///   checkpoint. PyTorch reads what a rank itself has written, so it misses what was left to the coordinator.
    ///
    /// ```
    /// use futures::{executor::block_on, future::join_all};
    /// use reshard::{LocalGroup, StateDict, Tensor};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = dir.path().join("ckpt").display().to_string();
    /// let mut states = vec![StateDict::new(), StateDict::new()];
    /// for (rank, state) in states.iter_mut().enumerate() {
    ///     state.insert("seed", Tensor::from_vec(&[1], vec![rank as i64])?);
    /// }
    /// let groups = LocalGroup::new(2);
    /// let save = |meant: bool| {
    ///     let ranks = groups.iter().zip(&states);
    ///     let each = ranks.map(|(group, state)| {
    ///         let save = reshard::save(state, &url).group(group).coordinators_plain_tensors(meant);
    ///         async { save.await }
    ///     });
    ///     block_on(join_all(each))
    /// };
    /// assert!(save(false).iter().all(|saved| saved.is_err()));
    /// assert!(save(true).iter().all(|saved| saved.is_ok()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn coordinators_plain_tensors(mut self, meant: bool) -> Self {
        self.coordinators_plain_tensors = meant;
        self
    }

    /// Told of written bytes, from any thread.
    pub fn progress(mut self, f: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.progress = Progress::new(f);
        self
    }

    /// Strategies to find common state's in; those that are linked by default.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Stores to find the URL's in; those that are linked by default.
    pub fn stores(mut self, stores: Stores) -> Self {
        self.stores = Some(stores);
        self
    }

    /// The place itself, open already, instead of one found by the URL, which then is only its name in messages. It brings its
    /// client, credentials and runtime.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.stores = Some(Stores::only(store));
        self
    }
}
