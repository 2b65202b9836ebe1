mod options;

use crate::{
    Error, ErrorWith, LoadReport, Stateful,
    ranks::{self, Ranks},
    report::{Clock, Phase, imbalance},
    stateful,
};
use indexmap::IndexMap;
use options::{LoadOptions, OptionalKeys};
use reshard_comm::{Comm, ProcessGroup, Rank};
use reshard_megatron::COMMON_STATE_CELL;
use reshard_model::{
    Data, Dialect, FlatStateDict, Flatten, Parts, Path, Payload, Sharded, Skeleton, StateDict,
    Value, ValueTree, split_as,
};
use reshard_open::{OPEN, explained, integrity, opened::Opened, place_text};
use reshard_plan::{
    Cast, Fault, LoadPlanner, Metadata, PlanError, Problem, Problems, StrictHandling,
};
use reshard_storage::{CountingStore, Store, Stores, Traffic};
use reshard_strategy::{
    BackendVersion, KeptLoadPlan, LoadCx, LoadFailure, LoadNotes, LoadProgress, LoadReporter,
    LoadShardedStrategy, Loaded, ReadLimits, Registry, StrategyError, agree, cause,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

const ACT: &str = "loading from";

/// The error of a failed load, with the template. Its buffers are unchanged if the load failed before it moved the first byte. Otherwise
/// they are partly filled.
pub type LoadError = ErrorWith<StateDict>;

/// Loads a checkpoint into the buffers of a template. Await the result, or set options on it first.
///
/// The sharded leaves of the template say which part of which tensor this rank wants. For a leaf without data the load
/// allocates memory. The result has the structure of the template.
///
/// - In Megatron's dialect the load reads all common state, and puts the sharded leaves on top of it. It ignores leaves of
///   the template that are not sharded, and does not fill their buffers.
/// - In PyTorch's dialect each leaf of the template is a key, and only these keys are loaded. So put `step` into the
///   template, too. Its stored value replaces the one in the template.
///
/// A leaf may have another name in the template than in the checkpoint: its key says what is read, and its path says where the result goes.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use reshard::{DType, ShardedTensor, StateDict, Tensor, blocking};
///
/// # let dir = tempfile::tempdir()?;
/// # let place = dir.path().join("step-1");
/// let mut state = StateDict::new();
/// state.insert_piece(ShardedTensor::full("module.weight", Tensor::from_vec(&[2], vec![1f32, 2.])?));
/// blocking::save(&state, &place)?;
///
/// let mut template = StateDict::new();
/// template.insert("weight", ShardedTensor::template("module.weight", DType::Float32, &[2]));
/// assert_eq!(blocking::load(template, &place)?.tensor("weight")?.to_vec::<f32>()?, [1., 2.]);
/// # Ok(())
/// # }
/// ```
///
/// The template must hold the only handles on its buffers. If there is a clone of a handle elsewhere, the load fails with
/// [`BufferShared`](reshard_model::ModelError::BufferShared).
///
/// # Collective
/// Every rank of the group must await it, in the same order as other collectives. If any rank fails, all ranks get an
/// error with the step, the ranks and the causes.
///
/// # Errors
/// Missing keys, wrong shapes or element types, holes, damage. The error names all keys at once. [`LoadError`] also
/// returns the template.
pub fn load<'a>(template: StateDict, place: impl AsRef<std::path::Path>) -> Load<'a> {
    Load {
        template,
        ranks: Ranks::default(),
        statefuls: Vec::new(),
        options: LoadOptions::of(place_text(place)),
    }
}

/// A load that is being set up; made by [`load`].
#[must_use = "a load does nothing until it is awaited"]
pub struct Load<'a> {
    template: StateDict,
    ranks: Ranks<'a>,
    /// Values that take their own state, by key.
    statefuls: Vec<(&'a str, &'a mut dyn Stateful)>,
    pub(crate) options: LoadOptions,
}

impl fmt::Debug for Load<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load")
            .field("url", &self.options.url)
            .field("ranks", &self.ranks)
            .field("verify", &self.options.open.load.verify)
            .finish_non_exhaustive()
    }
}

impl<'a> Load<'a> {
    ranks::options!();
    reshard_open::open_options!(options.open);

    /// Also loads the state of a value, stored under this key at the top of the state dict. The value says before the load what
    /// it wants, and takes it when all ranks have read. It is not in the result.
    pub fn stateful(mut self, key: &'a str, value: &'a mut dyn Stateful) -> Self {
        self.statefuls.push((key, value));
        self
    }

    /// Sets your own planner. Then [`cast`](Self::cast) and [`strict`](Self::strict) have no effect.
    pub fn planner(mut self, planner: impl LoadPlanner) -> Self {
        self.options.planner = Some(Arc::new(planner));
        self
    }

    /// Leaves of the keys for which this holds need not be stored, as if each were [optional](crate::ShardedTensor::optional): then they
    /// keep their contents, and `notes.not_stored` of the report has their keys. All other leaves stay [strict](Self::strict).
    ///
    /// ```
    /// # use reshard::prelude::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let place = dir.path().join("base");
    /// # let piece = |key: &str| ShardedTensor::full(key, Tensor::from_vec(&[1], vec![1f32]).unwrap());
    /// let mut state = StateDict::new();
    /// state.insert_piece(piece("layer.weight"));
    /// blocking::save(&state, &place)?;
    /// let mut template = StateDict::new();
    /// for key in ["layer.weight", "layer.lora_a"] {
    ///     template.insert_piece(piece(key));
    /// }
    /// let load = load(template, &place).optional(|key| key.contains(".lora_"));
    /// let (_, report) = blocking::run(load.with_report())?;
    /// assert_eq!(report.notes.not_stored, ["layer.lora_a"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn optional(mut self, keys: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.options.optional = Some(Box::new(keys));
        self
    }

    /// Which casts from the stored to the wanted element type are allowed. The default is none.
    pub fn cast(mut self, cast: Cast) -> Self {
        self.options.default = self.options.default.cast(cast);
        self
    }

    /// What happens to keys that only the template or only the checkpoint has. By default a key that is asked for but not
    /// stored is an error, and stored keys that no rank asks for are all right.
    ///
    /// With the other choices, leaves whose keys the checkpoint lacks can keep their contents; if such a leaf has no data,
    /// the result lacks it. The report lists both kinds of keys: `notes.not_stored` those of this rank,
    /// `notes.not_requested` those of all ranks together. This load writes what is logged as a warning of `tracing`; a
    /// planner of your own logs nothing.
    pub fn strict(mut self, strict: StrictHandling) -> Self {
        self.options.default = self.options.default.strict(strict);
        self
    }

    /// Whether to check the checksum of each item that is read as a whole. The default is yes.
    pub fn verify(mut self, verify: bool) -> Self {
        self.options.open.load.verify = verify;
        self
    }

    /// Whether the coordinator first checks all files by Megatron Core's `integrity.json`, for which it reads all of them. A file that is
    /// wrong, or a checkpoint without `integrity.json`, is an error on all ranks. The default is not to.
    pub fn verify_integrity(mut self, verify: bool) -> Self {
        self.options.verify_integrity = verify;
        self
    }

    /// How many bytes this rank may hold for reads that ranks share, if a planner shares reads. The default is
    /// [`DEFAULT_EXCHANGE_MEMORY`](reshard_strategy::DEFAULT_EXCHANGE_MEMORY), 256 MiB.
    pub fn exchange_memory(mut self, bytes: u64) -> Self {
        self.options.open.load.exchange_memory = bytes;
        self
    }

    /// Keeps the plan for the next load that gets this. If that load has a template of the same structure, and a checkpoint in
    /// which the same is stored, it is not planned again: see [`KeptLoadPlan`]. Each rank passes one of its own.
    pub fn kept_plan(mut self, kept: &Arc<KeptLoadPlan>) -> Self {
        self.options.kept_plan = Some(Arc::clone(kept));
        self
    }

    /// How many bytes may be on their way from host memory to devices: DCP's `per_thread_copy_ahead`, for all threads of the load together.
    /// The default is [`DEFAULT_COPY_AHEAD`](reshard_strategy::DEFAULT_COPY_AHEAD), 10 MB.
    ///
    /// A leaf on a device takes no other host memory, unless its elements are cast. If the load fails, such leaves may have a part of what was
    /// read, as leaves in host memory may.
    pub fn copy_ahead(mut self, bytes: u64) -> Self {
        self.options.open.load.copy_ahead = bytes;
        self
    }

    /// Sets a callback that is told how far the load is on this rank, from any thread: how many bytes of elements have come, and of how many.
    /// Its first call says how many there are. What other ranks read for this rank counts, too; objects don't.
    ///
    /// When a load succeeds, the last call has told that all have come.
    pub fn progress(mut self, f: impl Fn(LoadProgress) + Send + Sync + 'static) -> Self {
        self.options.open.load.progress = LoadReporter::new(f);
        self
    }

    /// Sets the load strategy: settings of a format, with or without layers around it.
    pub fn strategy(mut self, strategy: impl Into<LoadShardedStrategy>) -> Self {
        self.options.open.strategy = Some(strategy.into());
        self
    }

    /// Uses a place that is already open, with its client, credentials and runtime. The URL is then only its name in
    /// messages.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.options.open.stores = Some(Stores::only(store));
        self
    }

    /// Returns the loaded state together with a report of the load.
    ///
    /// # Errors
    /// As [`load`].
    pub async fn with_report(mut self) -> Result<(ValueTree, LoadReport), LoadError> {
        let url = self.options.url.clone();
        let url = &*url;
        let comm = self.ranks.comm();
        let mut clock = Clock::start("load", comm.rank(), url);
        let guard = comm.guard("a load");
        let mut template = std::mem::take(&mut self.template);
        let (added, stateful) = self.add_statefuls(&mut template);
        let begun = self.begin(&comm, template, stateful).await;
        let is_open = begun.is_ok();
        let out = match begun {
            Err((e, template)) => {
                clock.failed(Phase::Plan, &e);
                Err((e, template))
            }
            Ok(begun) => {
                clock.done(Phase::Plan);
                self.run(&comm, begun, &mut clock).await
            }
        };
        guard.done();
        let (e, mut template) = match out {
            Ok(loaded) => return Ok(loaded),
            Err(failed) => failed,
        };
        // The caller gets back what it gave.
        for key in added {
            template.remove(key);
        }
        let e = match (Error::new(ACT, url, e), is_open) {
            (e, true) => e,
            (e, false) => explained(&self.options.open, url, e).await,
        };
        Err(LoadError::new(e, template))
    }

    /// Adds what values say that they want. Also returns the keys that were added.
    fn add_statefuls(
        &mut self,
        template: &mut StateDict,
    ) -> (Vec<&'a str>, Result<(), StrategyError>) {
        let mut added = Vec::new();
        for (key, value) in &mut self.statefuls {
            if let Err(e) = stateful::insert(template, key, value.template()) {
                return (added, Err(e));
            }
            added.push(*key);
        }
        (added, Ok(()))
    }

    /// Gives values their state.
    fn load_statefuls(&mut self, loaded: &mut ValueTree) -> Result<(), StrategyError> {
        self.statefuls.iter_mut().try_for_each(|(key, value)| {
            let state = loaded.remove(key).unwrap_or_default();
            value
                .load_state_dict(state)
                .map_err(|e| stateful::failed(key, "load_state_dict", &*e))
        })
    }

    async fn open(
        &self,
        comm: &Comm<'_>,
        store: Result<Arc<dyn Store>, StrategyError>,
    ) -> Result<(CountingStore, Opened), StrategyError> {
        let mut counting = None;
        let count = |store| {
            let store = CountingStore::new(store);
            counting = Some(store.clone());
            Arc::new(store) as _
        };
        let opened = self
            .options
            .open
            .open_in(&self.options.url, store?, count)
            .await?;
        let store = counting.ok_or_else(|| {
            StrategyError::Internal("a place was opened without its store".into())
        })?;
        if self.options.verify_integrity && comm.is_coordinator() {
            integrity::require(&opened.store).await?;
        }
        Ok((store, opened))
    }

    /// Compares the options of all ranks, opens, splits the template and reads common state. Then all ranks learn whether every rank succeeded.
    async fn begin(
        &self,
        comm: &Comm<'_>,
        template: StateDict,
        added: Result<(), StrategyError>,
    ) -> Result<Begun, (StrategyError, StateDict)> {
        let store = self.options.open.store_at(&self.options.url);
        if let Err(e) = self.options.agree(comm, &store).await {
            return Err((e, template));
        }
        let opened = match added {
            Ok(()) => self.open(comm, store).await,
            Err(e) => Err(e),
        };
        let (mine, template) = match opened {
            Err(e) => (Err(e), Some(template)),
            Ok((store, opened)) => match opened.common().await {
                Err(e) => (Err(e), Some(template)),
                Ok(common) => {
                    // Handles to return if the template can't be split. They must be gone before buffers are lent.
                    let spare = template.clone();
                    let metadata = opened.reader.metadata();
                    match split_for(template, opened.reader.dialect(), metadata, &common) {
                        Ok((flat, skeleton, own)) => (
                            Ok(Begun {
                                store,
                                opened,
                                common,
                                flat,
                                skeleton,
                                own,
                            }),
                            None,
                        ),
                        Err(e) => (Err(e), Some(spare)),
                    }
                }
            },
        };
        let (outcome, begun) = match mine {
            Ok(begun) => (Ok(()), Some(begun)),
            Err(e) => (Err(e), None),
        };
        match (agree(comm, OPEN, outcome).await, begun) {
            (Ok(()), Some(begun)) => Ok(begun),
            (Err(e), Some(begun)) => Err((e, begun.give_back())),
            (Err(e), None) => Err((e, template.unwrap_or_default())),
            (Ok(()), None) => Err((
                StrategyError::Internal("a failure did not reach the other ranks".into()),
                template.unwrap_or_default(),
            )),
        }
    }

    async fn run(
        &mut self,
        comm: &Comm<'_>,
        begun: Begun,
        clock: &mut Clock,
    ) -> Result<(ValueTree, LoadReport), (StrategyError, StateDict)> {
        let Begun {
            store,
            opened,
            common,
            flat,
            skeleton,
            own,
        } = begun;

        let options = &self.options;
        let logs = options.planner.is_none() && options.default.strict.logs();
        let mut cx = LoadCx::new(
            &options.open.load,
            *comm,
            &self.ranks.groups,
            Arc::clone(&opened.store),
            options.planner(),
        );
        cx.kept_plan.clone_from(&options.kept_plan);
        let metadata = Arc::clone(opened.reader.metadata());
        if opened.reader.dialect() == Dialect::Megatron {
            // It has been read already, if it lies there.
            cx.elsewhere.keys.push(COMMON_STATE_CELL.into());
            cx.in_common = Arc::new(in_common(&common));
        }

        // The caller's buffers come back whatever happens: a failure carries the template with it.
        let Loaded {
            state,
            notes,
            totals,
            decided,
            moved,
            exchange,
            ..
        } = match fill(flat, &opened, options.optional.as_ref(), &cx).await {
            Ok(loaded) => loaded,
            Err(failure) => {
                let template = skeleton.restore(failure.template, own).unwrap_or_default();
                count_failure(clock, failure.decided, &failure.error);
                return Err((failure.error, template));
            }
        };
        clock.done_but(
            Phase::Finish,
            [
                (Phase::Plan, decided, Traffic::default()),
                (Phase::Read, moved, totals),
            ],
        );
        if logs {
            log(comm, &notes);
        }
        let not_stored: BTreeSet<&str> = notes.not_stored.iter().map(String::as_str).collect();
        // Handles to return if the loaded leaves don't fit onto the common state; dropped if they do.
        let (spare, handles) = (skeleton.clone(), state.clone());
        let joined = skeleton
            .join(values(state, &not_stored), common)
            .map_err(StrategyError::from);
        let counts = store.take();
        let reads = Traffic::read(counts.read(), counts.opened.len() as u64);

        // All ranks succeed or none does, so no rank goes on with a state that others lack.
        let word = (reads, !self.statefuls.is_empty());
        let joined = agree_all(comm, "join", joined, word).await;
        let taken = match joined {
            Ok((plain, words)) => self.hand_over(comm, plain, words).await,
            Err(e) => Err(e),
        };
        match taken {
            Ok((plain, ranks)) => {
                clock.done(Phase::Finish);
                clock.uneven(imbalance(ranks.iter().map(|r| r.bytes)));
                let phases = clock.phases();
                let opened = counts.opened.iter().map(ToString::to_string).collect();
                Ok((
                    plain,
                    LoadReport {
                        metadata,
                        ranks,
                        opened,
                        totals,
                        exchange,
                        notes,
                        phases,
                    },
                ))
            }
            Err(e) => {
                clock.failed(Phase::Finish, &e);
                Err((e, spare.restore(handles, own).unwrap_or_default()))
            }
        }
    }
}

impl Load<'_> {
    /// Gives values their state, if any rank has such values. Returns what each rank read.
    async fn hand_over(
        &mut self,
        comm: &Comm<'_>,
        mut plain: ValueTree,
        words: Vec<(Traffic, bool)>,
    ) -> Result<(ValueTree, Vec<Traffic>), StrategyError> {
        let (ranks, any): (Vec<Traffic>, Vec<bool>) = words.into_iter().unzip();
        if any.contains(&true) {
            let taken = self.load_statefuls(&mut plain);
            agree(comm, "load_state_dict", taken).await?;
        }
        Ok((plain, ranks))
    }
}

/// Fills the leaves. Those whose keys need not be stored are optional only meanwhile.
async fn fill(
    mut template: FlatStateDict,
    from: &Opened,
    optional: Option<&OptionalKeys>,
    cx: &LoadCx<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    let mut marked = Vec::new();
    for (path, leaf) in &mut template {
        if !leaf.is_optional() && optional.is_some_and(|optional| optional(leaf.key())) {
            *leaf.optional_mut() = true;
            marked.push(path.clone());
        }
    }
    let reader = Arc::clone(&from.reader);
    let mut loaded = from.sharded.load(template, reader, cx).await;
    let state = match &mut loaded {
        Ok(loaded) => &mut loaded.state,
        Err(failure) => &mut failure.template,
    };
    for path in marked {
        if let Some(leaf) = state.get_mut(&path) {
            *leaf.optional_mut() = false;
        }
    }
    loaded
}

/// As [`agree`]; all ranks also learn the `word` of each rank.
async fn agree_all<T, W: Serialize + DeserializeOwned + Send>(
    comm: &Comm<'_>,
    step: &'static str,
    outcome: Result<T, StrategyError>,
    word: W,
) -> Result<(T, Vec<W>), StrategyError> {
    let mine = outcome.as_ref().map(|_| word).map_err(cause);
    let all = comm.all_gather(step, mine).await;
    match (all, outcome) {
        (Ok(words), Ok(mine)) => Ok((mine, words)),
        (Err(e), Ok(_)) => Err(e.into()),
        (_, Err(own)) if comm.size() == 1 => Err(own),
        (Err(e), Err(_)) => Err(e.into()),
        (Ok(_), Err(own)) => Err(own),
    }
}

struct Begun {
    store: CountingStore,
    opened: Opened,
    common: ValueTree,
    flat: FlatStateDict,
    skeleton: Skeleton,
    /// The template's own common leaves.
    own: ValueTree,
}

impl Begun {
    fn give_back(self) -> StateDict {
        self.skeleton
            .restore(self.flat, self.own)
            .unwrap_or_default()
    }
}

/// Splits by the current rules, or by those of PyTorch 2.3 or of a state that was not flattened, if these find more keys.
fn split_for(
    template: StateDict,
    dialect: Dialect,
    metadata: &Metadata,
    common: &ValueTree,
) -> Result<(FlatStateDict, Skeleton, ValueTree), StrategyError> {
    let found = |flat: &FlatStateDict| flat.values().filter(|s| has(metadata, s)).count();
    let parts = split_as(template, dialect, Flatten::Torch2_4)?;
    no_plain_is_sharded(&parts, metadata, common)?;
    let now = found(&parts.flat);
    if dialect == Dialect::Megatron || now == parts.flat.len() {
        return Ok((parts.flat, parts.skeleton, parts.common));
    }
    let again = parts.skeleton.restore(parts.flat, parts.common)?;
    // Counts on a copy of the handles, which is dropped before buffers are taken.
    let by = |rules| split_as(again.clone(), dialect, rules).map_or(0, |p| found(&p.flat));
    let (mut rules, mut most) = (Flatten::Torch2_4, now);
    for other in [Flatten::Torch2_3, Flatten::TopLevel] {
        let found = by(other);
        if found > most {
            (rules, most) = (other, found);
        }
    }
    let parts = split_as(again, dialect, rules)?;
    Ok((parts.flat, parts.skeleton, parts.common))
}

fn has(metadata: &Metadata, leaf: &Sharded) -> bool {
    match leaf {
        Sharded::Tensor(t) => metadata.tensor(&t.key).is_some(),
        Sharded::Object(o) => {
            let key = o.unique_key();
            metadata.object(&key).is_some() || metadata.tensor(&key).is_some()
        }
    }
}

/// Refuses a plain tensor of a template that the checkpoint has as a sharded one, and that no other leaf asks for. Only Megatron's dialect has plain
/// leaves, and there a load would ignore it.
fn no_plain_is_sharded(
    template: &Parts,
    metadata: &Metadata,
    common: &ValueTree,
) -> Result<(), PlanError> {
    let mut found = Vec::new();
    template.common.visit(&mut |path, value| {
        if !matches!(value, Value::Tensor(_) | Value::Device(_)) {
            return;
        }
        let key = Path(path.to_vec()).to_string();
        if let Some(stored) = metadata.tensor(&key) {
            let fault = Fault::Kind {
                is: format!("a sharded tensor of shape {}", stored.global_shape()),
                other: "the template has a plain tensor, which a load in this dialect ignores; declare a `ShardedTensor`".into(),
            };
            found.push(Problem { key, fault });
        }
    });
    if !found.is_empty() {
        // What common state has is loaded from there.
        let common = in_common(common);
        let asked: BTreeSet<_> = template.flat.values().map(Sharded::unique_key).collect();
        found.retain(|p| !common.contains_key(&*p.key) && !asked.contains(&*p.key));
    }
    match found.is_empty() {
        true => Ok(()),
        false => Err(PlanError::Load(Problems(found))),
    }
}

/// What lies in the common state, by the key that a sharded leaf at its path would have.
fn in_common(common: &ValueTree) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    common.visit(&mut |path, value| {
        let is = match value {
            Value::Tensor(t) => format!("a plain tensor of shape {}", t.shape()),
            value => format!("a value of type {}", value.type_name()),
        };
        found.insert(Path(path.to_vec()).to_string(), is);
    });
    found
}

/// Warns of keys that only one side has: each rank of those that its template has too much, the coordinator of the others.
fn log(comm: &Comm<'_>, notes: &LoadNotes) {
    let warn = |keys: &[String], what: &str| {
        if !keys.is_empty() {
            let shown = keys[..keys.len().min(SHOWN)].join(", ");
            let more = if keys.len() > SHOWN { ", …" } else { "" };
            tracing::warn!(
                rank = comm.rank().0,
                keys = keys.len(),
                "{what}: {shown}{more}"
            );
        }
    };
    warn(&notes.not_stored, "asked for, but not in the checkpoint");
    if comm.is_coordinator() {
        warn(
            &notes.not_requested,
            "in the checkpoint, but no rank asks for it",
        );
    }
}

/// So many keys are named in a log.
const SHOWN: usize = 20;

/// Makes values of the leaves. A leaf that a partial load did not find keeps the contents of the template.
fn values(state: FlatStateDict, not_stored: &BTreeSet<&str>) -> IndexMap<Path, Value> {
    let mut out = IndexMap::with_capacity(state.len());
    for (path, leaf) in state {
        let lost = not_stored.contains(&*leaf.unique_key());
        let value = match leaf {
            Sharded::Tensor(t) => match t.data {
                Data::Host(t) => Value::Tensor(t),
                Data::Device(t) => Value::Device(t),
                Data::None | Data::Lazy(_) => continue,
            },
            Sharded::Object(o) => match o.data {
                Payload::Value(v) => v,
                Payload::None | Payload::Encoded { .. } if lost => continue,
                Payload::None | Payload::Encoded { .. } => Value::None,
            },
        };
        out.insert(path, value);
    }
    out
}

/// Counts the time of a load that failed after its template was split. `decided` is how long planning took, if there is a plan.
fn count_failure(clock: &mut Clock, decided: Option<Duration>, error: &StrategyError) {
    let Some(decided) = decided else {
        clock.failed(Phase::Plan, error);
        return;
    };
    let planning = (Phase::Plan, decided, Traffic::default());
    clock.done_but(Phase::Read, [planning]);
    clock.failed(Phase::Read, error);
}

impl<'a> IntoFuture for Load<'a> {
    type Output = Result<ValueTree, LoadError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.with_report().await.map(|(plain, _)| plain) })
    }
}
