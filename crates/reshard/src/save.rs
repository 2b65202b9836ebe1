use crate::{
    CommonForm, Error, Result, SaveReport, StoredCommon,
    alike::{self, Rule},
    attempt::attempt,
    error::Context,
    ranks::{self, Ranks},
    replace::{Replaced, no_checkpoint, replace},
    report::{Clock, Phase},
    sidecar::{SIDECAR, Sidecar},
    tally::{Tally, gather},
};
use bytes::Bytes;
use reshard_comm::{Comm, ProcessGroup, Rank};
use reshard_megatron::{COMMON_STATE, METADATA_JSON, MetadataJson, RESERVED};
use reshard_model::{
    Dialect, Parts, Path, PlainTensor, Sharded, ShardedObject, StateDict, Value, ValueTree, split,
};
use reshard_plan::{DefaultSavePlanner, PlannerData, SavePlanner};
use reshard_policy::{Limits, ShardingPolicy};
use reshard_storage::{
    Durability, FileBody, Name, Progress, StorageError, Store, StoreExt, Stores, Transaction,
};
use reshard_strategy::{
    BackendVersion, PreparedSave, Records, Registry, SaveCommonStrategy, SaveCx, SaveShardedConfig,
    SaveShardedStrategy, Saved, StrategyError, agree, cause, save_with_objects,
};
use reshard_torch_dist::NAME;
use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

const ACT: &str = "saving to";

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
    state: &'a StateDict,
    url: &'a str,
    ranks: Ranks<'a>,
    dialect: Dialect,
    common_form: CommonForm,
    content_metadata: Option<Value>,
    stored_common: Option<StoredCommon>,
    empty_dicts: Vec<Path>,
    config: Option<Box<dyn SaveShardedConfig>>,
    common: Option<Arc<dyn SaveCommonStrategy>>,
    planner: Option<Arc<dyn SavePlanner>>,
    policy: Option<Arc<dyn ShardingPolicy>>,
    policy_limits: Limits,
    overwrite: bool,
    durability: Durability,
    rank_local: bool,
    coordinators_plain_tensors: bool,
    progress: Progress,
    registry: Option<Registry>,
    stores: Option<Stores>,
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
    /// [`Sidecar`] names them, and has no state of its form.
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

    async fn run(mut self) -> Result<SaveReport> {
        let mut clock = Clock::start();
        let url = self.url;
        let comm = self.ranks.comm();
        let guard = comm.guard("a save");
        let prepared = self.set_up();
        let begun = begin(&comm, &prepared, url, self.overwrite, self.rule()).await;
        let (Begun { transaction, stays }, coordinators) = match begun {
            Ok(begun) => begun,
            Err(e) => {
                guard.done();
                let own = prepared.err().filter(|_| comm.size() == 1);
                return Err(Error::new(ACT, url, own.unwrap_or(e)));
            }
        };
        let mut setup = prepared.during(ACT, url)?;
        if !comm.is_coordinator() {
            alike::leave_to_coordinator(&coordinators, &setup.plain, &mut setup.parts.flat);
        }
        let transaction = Arc::new(Tally::new(transaction));
        let saved = self.write(&comm, setup, &transaction, &mut clock).await;
        if saved.is_err() && comm.is_coordinator() {
            // Nothing was committed; what was written is of no use to anybody. A failure to remove it must not hide the cause.
            let cleared = transaction.rollback().await;
            if let Err(e) = cleared {
                tracing::warn!(error = %e, url, "what a failed save wrote could not be removed");
            }
        }
        guard.done();
        let (saved, empty_dicts) = saved.during(ACT, url)?;
        clock.done(Phase::Commit);
        Ok(SaveReport {
            metadata: saved.metadata,
            ranks: saved.ranks,
            totals: saved.totals,
            policy: saved.policy,
            empty_dicts,
            stays,
            phases: clock.phases(),
        })
    }

    /// Everything that one rank can find wrong on its own.
    fn set_up(&mut self) -> Result<SetUp, StrategyError> {
        let registry = match self.registry.take() {
            Some(r) => r,
            None => Registry::linked()?,
        };
        let stores = match self.stores.take() {
            Some(s) => s,
            None => Stores::linked()?,
        };
        let default = BackendVersion::new(NAME, 1);
        let sharded = match self.config.take() {
            Some(c) => c.build()?,
            None => registry.save_sharded(&default)?.build()?,
        };
        if self.common.is_some() && (self.dialect != Dialect::Megatron || self.stored_common.is_some()) {
            let what = "a common strategy of your own stores common state of Megatron's dialect: others have none, and common \
                        state that is carried over stays as another strategy has stored it";
            return Err(StrategyError::Invalid(what.into()));
        }
        let common = match self.common.take() {
            Some(c) => c,
            None => registry.save_common(&BackendVersion::new("torch", 1))?,
        };
        if self.common_form == CommonForm::Object && !sharded.can_handle_sharded_objects() {
            let what = "common state in a sharded object; take the form of a file".into();
            return Err(StrategyError::Unsupported { strategy: sharded.key().to_string(), what });
        }
        // No other dialect has a common strategy.
        let of_dialect = (self.dialect == Dialect::Megatron).then(|| Arc::clone(&common));
        let sharded = save_with_objects(sharded, of_dialect);
        let mut parts = split(self.state.clone(), self.dialect)?;
        parts.dropped_empty.append(&mut self.empty_dicts);
        let alone = self.ranks.group.size() == 1;
        let plain = if alone { Vec::new() } else { parts.plain_tensors() };
        match (&self.stored_common, self.dialect) {
            (Some(stored), Dialect::Megatron) => self.add_stored(stored, &mut parts)?,
            (Some(_), dialect) => {
                let what =
                    format!("the dialect {dialect} has no common state; save it as a part of the state");
                return Err(StrategyError::Invalid(what));
            }
            (None, Dialect::Megatron) => self.add_reserved(&mut parts)?,
            (None, _) => {}
        }
        let store = stores.open(self.url)?;
        Ok(SetUp { store, registry, sharded, common, parts, plain })
    }

    fn rule(&self) -> Rule {
        Rule { dialect: self.dialect, coordinators: self.coordinators_plain_tensors }
    }

    /// Puts common state that is stored as an object into the state.
    fn add_stored(&self, stored: &StoredCommon, parts: &mut Parts) -> Result<(), StrategyError> {
        if self.content_metadata.is_some() || parts.common != ValueTree::new() {
            let what = "common state is to be written as it was stored, and the state has more of it; \
                        take the leaves that are not sharded out of the state";
            return Err(StrategyError::Invalid(what.into()));
        }
        if let (Some(object), true) = (stored.leaf(), self.ranks.group.rank() == self.ranks.coordinator) {
            parts.flat.insert(Path(vec![(&*object.key).into()]), Sharded::Object(object));
        }
        Ok(())
    }

    /// Puts what has a reserved key into the state, after a look that the caller's state has no such key.
    fn add_reserved(&mut self, parts: &mut Parts) -> Result<(), StrategyError> {
        let taken = RESERVED.into_iter().find(|k| self.state.get(k).is_some());
        if let Some(key) = taken {
            let what =
                format!("the key {key} at the top of a state dict is Megatron Core's own; take another one");
            return Err(StrategyError::Invalid(what));
        }
        let is_common = |leaf: &Sharded| matches!(leaf, Sharded::Object(o) if &*o.key == COMMON_STATE);
        if let Some((path, _)) = parts.flat.iter().find(|(_, leaf)| is_common(leaf)) {
            let what = format!(
                "the sharded object at {path} has the key {COMMON_STATE}, under which Megatron Core keeps common state; take another one"
            );
            return Err(StrategyError::Invalid(what));
        }
        if let Some(content) = self.content_metadata.take() {
            parts.common.insert_tree("content_metadata", ValueTree::from(content));
        }
        if self.common_form == CommonForm::Object {
            let common = Value::from(std::mem::take(&mut parts.common));
            // Every rank has a copy; the coordinator's is the main one.
            let replica = u32::from(self.ranks.group.rank() != self.ranks.coordinator);
            let object = ShardedObject::new(COMMON_STATE, common, &[1], &[0], replica)?;
            parts.flat.insert(Path(vec![COMMON_STATE.into()]), Sharded::Object(object));
        }
        Ok(())
    }

    async fn write(
        &mut self,
        comm: &Comm<'_>,
        setup: SetUp,
        transaction: &Arc<Tally>,
        clock: &mut Clock,
    ) -> Result<(Saved, usize), StrategyError> {
        let SetUp { sharded, common, parts, .. } = setup;
        let planner = self
            .planner
            .take()
            .unwrap_or_else(|| Arc::new(default_planner(self.dialect).with_allow_holes(self.rank_local)));
        let groups = std::mem::take(&mut self.ranks.groups);
        let mut cx = SaveCx::new(*comm, &groups, Arc::<Tally>::clone(transaction), self.url, planner);
        (cx.durability, cx.dialect, cx.rank_local) = (self.durability, self.dialect, self.rank_local);
        cx.progress = self.progress.clone();
        (cx.policy, cx.policy_limits) = (self.policy.take(), self.policy_limits);
        if self.dialect == Dialect::Dcp {
            cx.planner_data = Some(PlannerData::Paths(parts.paths));
        }
        let mut prepared = sharded.prepare(parts.flat, &cx).await?;
        clock.done(Phase::Plan);
        let written = self.write_files(&*common, &parts.common, &mut *prepared, &cx).await;
        clock.done(Phase::Write);
        let saved = prepared.finish(written, comm).await?;
        let last = self.write_records(&saved, &*sharded, &*common, &parts.dropped_empty, &cx).await;
        // Every rank's records lie there before the coordinator commits, and it knows of every file of every rank.
        let (last, written) = match last {
            Ok(last) => (last, Ok(transaction.take())),
            Err(e) => (None, Err(e)),
        };
        let files = gather(comm, written).await?;
        let committed = if comm.is_coordinator() {
            transaction.commit(last, &files, self.durability).await.map_err(StrategyError::from)
        } else {
            Ok(())
        };
        agree(comm, "commit", committed).await?;
        Ok((saved, parts.dropped_empty.len()))
    }

    /// Common state first, as Megatron Core does.
    async fn write_files(
        &self,
        strategy: &dyn SaveCommonStrategy,
        common: &ValueTree,
        prepared: &mut dyn PreparedSave,
        cx: &SaveCx<'_>,
    ) -> Result<(), StrategyError> {
        let has_file = self.dialect == Dialect::Megatron && self.common_form == CommonForm::File;
        if has_file && cx.comm.is_coordinator() {
            let files = match &self.stored_common {
                Some(stored) => stored.layout()?,
                None => strategy.layout_common(common)?,
            };
            cx.transaction.write(files, cx.durability, cx.progress.clone()).await?;
        }
        prepared.write().await
    }

    /// Writes the records that describe what was written, but for the one that commits all, which the coordinator gets back.
    async fn write_records(
        &self,
        saved: &Saved,
        sharded: &dyn SaveShardedStrategy,
        common: &dyn SaveCommonStrategy,
        empty: &[Path],
        cx: &SaveCx<'_>,
    ) -> Result<Option<(Name, Bytes)>, StrategyError> {
        let Records { mut files, mut commit } = saved.records.clone();
        let me = cx.comm.is_coordinator();
        if me && let Some((name, bytes)) = &commit {
            let named = self.dialect == Dialect::Megatron || sharded.key() == BackendVersion::new(NAME, 1);
            let mut sidecar = Sidecar::new(name, bytes);
            sidecar.empty_dicts = empty.to_vec();
            sidecar.strategy = (!named).then(|| sharded.key());
            sidecar.policy = saved.policy.as_ref().map(|p| p.description.clone());
            files.insert(0, (Name::new(SIDECAR)?, sidecar.to_bytes()));
        }
        if me && self.dialect == Dialect::Megatron {
            let json = MetadataJson::new(&sharded.key(), &common.key());
            let bytes =
                if self.common_form == CommonForm::File { json.to_bytes() } else { json.to_short_bytes() };
            files.extend(commit.replace((Name::new(METADATA_JSON)?, bytes)));
        }
        if !me {
            files.extend(commit.take());
        }
        let files: Vec<FileBody> = files.into_iter().map(|(n, b)| FileBody::from_bytes(n, b)).collect();
        if !files.is_empty() {
            cx.transaction.write(files, self.durability, Progress::default()).await?;
        }
        Ok(commit)
    }
}

struct SetUp {
    store: Arc<dyn Store>,
    registry: Registry,
    sharded: Arc<dyn SaveShardedStrategy>,
    common: Arc<dyn SaveCommonStrategy>,
    parts: Parts,
    /// What all ranks must have alike; nothing where a rank is alone.
    plain: Vec<PlainTensor>,
}

/// A new version that nothing is written to yet.
struct Begun {
    transaction: Arc<dyn Transaction>,
    /// What stays though the checkpoint that is replaced says that it is its own; on the coordinator.
    stays: Vec<Name>,
}

impl SetUp {
    /// Begins a new version. What the place is, is found out here, once for all ranks.
    async fn begin(&self, attempt: &str, overwrite: bool) -> Result<Begun, StrategyError> {
        let store = self.store.resolved().await?.unwrap_or_else(|| Arc::clone(&self.store));
        let Replaced { if_exists, stays } =
            if overwrite { replace(&store, &self.registry).await? } else { Replaced::default() };
        match store.begin(attempt, if_exists).await {
            Ok(transaction) => Ok(Begun { transaction, stays }),
            Err(e) => {
                // Perhaps it was begun all the same, and only the answer is lost.
                if let Err(e) = store.remove_leftover(attempt).await {
                    tracing::debug!(error = %e, "what a failed save may have left could not be removed");
                }
                let exists = matches!(e, StorageError::Exists { .. });
                Err(if exists && overwrite { no_checkpoint() } else { e.into() })
            }
        }
    }

    /// Joins the version that the coordinator has begun.
    async fn join(&self, (attempt, place): (String, Option<String>)) -> Result<Begun, StrategyError> {
        let transaction = self.store.join(&attempt, place.as_deref()).await?;
        Ok(Begun { transaction, stays: Vec::new() })
    }
}

fn default_planner(dialect: Dialect) -> DefaultSavePlanner {
    match dialect {
        Dialect::Megatron => DefaultSavePlanner::DEFAULT,
        _ => DefaultSavePlanner::DCP,
    }
}

/// The coordinator begins a new version, then the others join it where it is, under the same name. With it come the keys of plain
/// tensors that are left to the coordinator.
async fn begin(
    comm: &Comm<'_>,
    setup: &Result<SetUp, StrategyError>,
    url: &str,
    overwrite: bool,
    rule: Rule,
) -> Result<(Begun, Vec<String>), StrategyError> {
    let mut mine = None;
    let mut own = None;
    let part = match setup {
        Err(e) => Some(Err(cause(e))),
        Ok(setup) if comm.is_coordinator() => {
            let attempt = attempt();
            Some(match setup.begin(&attempt, overwrite).await {
                Ok(begun) => {
                    let place = begun.transaction.place();
                    mine = Some(begun);
                    Ok((attempt, place))
                }
                Err(e) => {
                    let cause = cause(&e);
                    own = Some(e);
                    Err(cause)
                }
            })
        }
        Ok(_) => None,
    };
    let begun: Result<(String, Option<String>), _> = comm.broadcast("begin", part).await;
    let transaction = mine.as_ref().map(|b| Arc::clone(&b.transaction));
    let joined = match (begun, setup) {
        (Ok(theirs), Ok(setup)) => {
            let begun = match mine {
                Some(begun) => Ok(begun),
                None => setup.join(theirs).await,
            };
            alike::agree(comm, "begin", begun, &setup.plain, rule).await
        }
        (Err(e), _) => Err(own.filter(|_| comm.size() == 1).unwrap_or_else(|| e.into())),
        (Ok(_), Err(_)) => Err(StrategyError::Invalid("a rank that failed was not heard".into())),
    };
    if let (Some(transaction), Err(_)) = (transaction, &joined)
        && let Err(e) = transaction.rollback().await
    {
        tracing::warn!(error = %e, url, "what a failed save left could not be removed");
    }
    joined
}

impl<'a> IntoFuture for Save<'a> {
    type Output = Result<SaveReport>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
