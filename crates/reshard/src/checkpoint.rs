use crate::{
    Error, Result, Sidecar, StoredCommon,
    attempt::is_of_a_save,
    error::Context,
    opened::{HowToOpen, Opened},
};
use bytes::Bytes;
use reshard_comm::Comm;
use reshard_model::{
    BoxError, DType, Data, Dialect, Dims, FlatStateDict, Path, Payload, Region, Select, Sharded,
    ShardedTensor, SourceError, Tensor, TensorSource, Value, ValueTree, unflatten,
};
use reshard_plan::{DefaultLoadPlanner, Entry, Metadata, PlannerData, TensorRef};
use reshard_storage::{Entry as FileEntry, Leftover, Link, Progress, Store, StoreExt, Stores};
use reshard_strategy::{
    BackendVersion, FileRole, LoadCx, LoadShardedConfig, Producer, ReadCx, ReadLimits, ReadObject, Registry,
    StorageInfo, StrategyError, VerifyReport, decode_object, with_sources,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const ACT: &str = "reading";

/// An opened checkpoint: random access, nothing loaded. `Clone` copies a handle.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    url: Arc<str>,
    opened: Arc<Opened>,
    verify: bool,
}

/// How to open a checkpoint.
#[derive(Debug, Default)]
pub struct OpenOptions {
    how: HowToOpen,
    skip_verify: bool,
}

impl OpenOptions {
    /// The defaults: linked strategies and stores, checksums verified.
    pub fn new() -> Self {
        Self::default()
    }

    /// Strategies to choose from.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.how.registry = Some(registry);
        self
    }

    /// Stores to find the URL's in.
    pub fn stores(mut self, stores: Stores) -> Self {
        self.how.stores = Some(stores);
        self
    }

    /// The place itself, open already, instead of one found by the URL, which then is only its name in messages. It brings its
    /// client, credentials and runtime.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.how.stores = Some(Stores::only(store));
        self
    }

    /// Other settings of the load strategy than its defaults.
    pub fn strategy(mut self, config: impl LoadShardedConfig + 'static) -> Self {
        self.how.config = Some(Box::new(config));
        self
    }

    /// The format, where it is not to be told by the files. Settings of a [`strategy`](Self::strategy) come with their own.
    pub fn format(mut self, format: BackendVersion) -> Self {
        self.how.format = Some(format);
        self
    }

    /// Whether checksums of wholly read items are checked.
    pub fn verify(mut self, verify: bool) -> Self {
        self.skip_verify = !verify;
        self
    }

    /// How much the checkpoint may ask for; see there.
    pub fn limits(mut self, limits: ReadLimits) -> Self {
        self.how.limits = limits;
        self
    }

    /// Opens.
    ///
    /// # Errors
    /// When there is no checkpoint, when it is damaged, or of a strategy that is not linked.
    pub async fn open(self, url: &str) -> Result<Checkpoint> {
        let opened = self.how.open(url).await.during("opening", url)?;
        Ok(Checkpoint { url: url.into(), opened: Arc::new(opened), verify: !self.skip_verify })
    }
}

/// A stored chunk of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChunk {
    /// The box of the tensor that it holds.
    pub region: Region,
    /// Where the parts of the stored item lie; none when the checkpoint does not say.
    pub parts: Vec<StorageInfo>,
}

impl Checkpoint {
    /// Opens with the defaults.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        OpenOptions::new().open(url).await
    }

    /// Where it lies.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Name of the format.
    pub fn backend(&self) -> &BackendVersion {
        &self.opened.name
    }

    /// Whose conventions it follows.
    pub fn dialect(&self) -> Dialect {
        self.opened.reader.dialect()
    }

    /// What is stored.
    pub fn metadata(&self) -> &Arc<Metadata> {
        self.opened.reader.metadata()
    }

    /// Who wrote it, as far as its bytes tell, and who can load it.
    pub fn producer(&self) -> Producer {
        self.opened.reader.producer()
    }

    /// What reshard noted beside it, and why that is ignored if it is.
    pub async fn sidecar(&self) -> (Option<Sidecar>, Option<String>) {
        self.opened.sidecar().await
    }

    /// A tensor, by key.
    ///
    /// # Errors
    /// When there is none of that key.
    pub fn tensor(&self, key: &str) -> Result<TensorHandle> {
        let missing = || {
            let metadata = self.metadata();
            match metadata.object(key) {
                Some(_) => {
                    not_stored(format!("{key:?} is an object, no tensor; `Checkpoint::object` reads it"))
                }
                None => self.unknown("tensor", key, metadata.tensor_count()),
            }
        };
        let found = self.metadata().tensor(key).ok_or_else(missing).during(ACT, &self.url)?;
        Ok(self.handle(&found))
    }

    /// Says what may have been meant by a key that is not there.
    fn unknown(&self, kind: &str, key: &str, count: usize) -> StrategyError {
        if let Some(what) = self.opened.reader.why_not(key) {
            return self.unsupported(what);
        }
        let hint = match &*self.metadata().near(key) {
            [] => {
                let common = match self.opened.common {
                    Some(_) => "; what was not sharded is in `Checkpoint::common`",
                    None => "",
                };
                format!("`Checkpoint::{kind}s` lists the {count} that are{common}")
            }
            near => format!("did you mean {}?", near.join(" or ")),
        };
        not_stored(format!("no {kind} {key:?} is stored; {hint}"))
    }

    /// Whether all of it is, which nobody shall take for all that lacks something.
    fn is_understood(&self) -> Result<(), StrategyError> {
        match self.producer().unknown.first_key_value() {
            Some((key, what)) => Err(self.unsupported(format!("reading {key} ({what})"))),
            None => Ok(()),
        }
    }

    fn unsupported(&self, what: String) -> StrategyError {
        StrategyError::Unsupported { strategy: self.opened.name.to_string(), what }
    }

    /// All tensors, by key.
    pub fn tensors(&self) -> impl Iterator<Item = TensorHandle> + '_ {
        self.metadata().tensors().map(|t| self.handle(&t))
    }

    fn handle(&self, t: &TensorRef<'_>) -> TensorHandle {
        TensorHandle { checkpoint: self.clone(), key: t.key().into(), dtype: t.dtype(), shape: t.shape() }
    }

    /// Keys of all objects: items of their own, and `key/shard_…` for cells of arrays.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.metadata().objects().map(|(_, key)| key)
    }

    /// Where the parts of an object lie; none when it isn't stored, or the checkpoint does not say.
    pub fn object_parts(&self, key: &str) -> Vec<StorageInfo> {
        self.metadata().object(key).map(|id| self.opened.reader.locate_object(id)).unwrap_or_default()
    }

    /// An object, decoded. What Megatron Core stores in cells of arrays is a list.
    ///
    /// # Errors
    /// When there is none of that key, or it is damaged.
    pub async fn object(&self, key: &str) -> Result<Value> {
        let payload = self.object_payload(key).await?;
        self.decode(key, payload).during(ACT, &self.url)
    }

    /// An object as it is stored.
    ///
    /// # Errors
    /// When there is none of that key, or it is damaged.
    pub async fn object_payload(&self, key: &str) -> Result<Payload> {
        let missing = || match self.metadata().tensor(key) {
            Some(_) => not_stored(format!("{key:?} is a tensor, no object; `Checkpoint::tensor` reads it")),
            None => self.unknown("object", key, self.metadata().object_count()),
        };
        let id = self.metadata().object(key).ok_or_else(missing).during(ACT, &self.url)?;
        let reads = [ReadObject { object: id }];
        let none = Progress::none();
        let how = ReadCx::new(self.verify, &none);
        let got = self.opened.reader.read_objects(&reads, &how).await.during(ACT, &self.url)?;
        Ok(got.into_iter().next().unwrap_or_default())
    }

    fn decode(&self, key: &str, payload: Payload) -> Result<Value, StrategyError> {
        decode_object(&*self.opened.reader.codec(), key, payload)
    }

    /// The common state; empty in checkpoints of PyTorch's dialect.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub async fn common(&self) -> Result<ValueTree> {
        self.opened.common().await.during(ACT, &self.url)
    }

    /// The common state as it is stored, not decoded, for who rewrites the checkpoint; `None` in PyTorch's dialect.
    ///
    /// # Errors
    /// When it is missing, or of another strategy than `torch`.
    pub async fn stored_common(&self) -> Result<Option<StoredCommon>> {
        StoredCommon::of(&self.opened, self.verify).await.during(ACT, &self.url)
    }

    /// Everything, loaded whole and put back into the nesting that it was saved from, where the checkpoint tells it; else
    /// under its keys. Common state is merged in.
    ///
    /// # Errors
    /// Damage, an item that is described in an unknown way, or no memory.
    pub async fn state(&self) -> Result<ValueTree> {
        self.is_understood().during(ACT, &self.url)?;
        let metadata = self.metadata();
        let paths = paths_of(metadata);
        let mut entries = Vec::new();
        for entry in metadata.entries() {
            let key = entry.key();
            let value = match entry {
                Entry::Tensor(_) => Value::Tensor(self.tensor(key)?.read(..).await?),
                Entry::Object(_, key) => self.object(key).await?,
            };
            let path = paths.get(key).map(|p| (*p).clone());
            entries.push((path.unwrap_or_else(|| Path(vec![key.into()])), value));
        }
        if let (Some(sidecar), _) = self.sidecar().await {
            entries.extend(sidecar.empty_dicts.into_iter().map(|path| (path, Value::Dict(Vec::new()))));
        }
        let mut out = unflatten(entries).during(ACT, &self.url)?;
        out.merge(self.common().await?).during(ACT, &self.url)?;
        Ok(out)
    }

    /// All files of its directory.
    ///
    /// # Errors
    /// What the store says.
    pub async fn files(&self) -> Result<Vec<FileEntry>> {
        self.opened.store.files().await.during(ACT, &self.url)
    }

    /// Links in its directory. A file that is a link to a file is one of [`files`](Self::files), wherever that lies; what leads to
    /// a directory or to nothing is not followed, and what lies there is missing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn links(&self) -> Result<Vec<Link>> {
        self.opened.store.links().await.during(ACT, &self.url)
    }

    /// What saves that were never finished have left beside its directory; those that are still at work too.
    ///
    /// # Errors
    /// What the store says.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let mut all = self.opened.store.leftovers().await.during(ACT, &self.url)?;
        all.retain(is_of_a_save);
        Ok(all)
    }

    /// Names of the files that hold its items.
    pub fn item_files(&self) -> BTreeSet<String> {
        self.opened.item_files().into_iter().map(String::from).collect()
    }

    /// All files of its directory, and what each is to it: [`prune`](crate::prune()) removes what is left over.
    ///
    /// # Errors
    /// What the store says.
    pub async fn roles(&self) -> Result<Vec<(FileEntry, FileRole)>> {
        self.opened.roles().await.during(ACT, &self.url)
    }

    /// Looks for damage: structure, coverage and sizes; with `full`, every checksum too.
    ///
    /// # Errors
    /// Only what stops the check as a whole.
    pub async fn verify(&self, full: bool, progress: Progress) -> Result<VerifyReport> {
        let mut report = self.opened.reader.verify(full, &progress).await.during("verifying", &self.url)?;
        if let Err(e) = self.opened.common().await {
            let damage = reshard_strategy::Damage {
                key: None,
                file: None,
                offset: None,
                what: with_sources(e.to_string(), &e),
            };
            // All that can be checked of it is right.
            if !matches!(e, StrategyError::Undecoded { .. }) {
                report.add(e.kind(), damage);
            }
        }
        Ok(report)
    }

    async fn fill(&self, template: FlatStateDict) -> Result<FlatStateDict, StrategyError> {
        let groups = BTreeMap::new();
        let planner = Arc::new(DefaultLoadPlanner::DEFAULT);
        let mut cx = LoadCx::new(Comm::single(), &groups, Arc::clone(&self.opened.store), planner);
        cx.verify = self.verify;
        let loaded = self.opened.sharded.load(template, Arc::clone(&self.opened.reader), &cx).await;
        loaded.map(|l| l.state).map_err(|f| f.error)
    }
}

/// The path of each stored key, where no other key has the same or one below it: ranks may have had different tensors, or cells
/// of an array of objects, at one place.
fn paths_of(metadata: &Metadata) -> BTreeMap<&str, &Path> {
    let Some(PlannerData::Paths(paths)) = metadata.planner_data() else { return BTreeMap::new() };
    let mut all: Vec<(&Path, &str)> =
        metadata.entries().filter_map(|e| Some((paths.get(e.key())?, e.key()))).collect();
    all.sort_unstable();
    let mut alone: BTreeMap<&str, &Path> = all.iter().map(|(path, key)| (*key, *path)).collect();
    let mut above: Option<(&Path, &str)> = None;
    for (path, key) in all {
        match above {
            Some((a, first)) if path.0.starts_with(&a.0) => {
                alone.remove(first);
                alone.remove(key);
            }
            _ => above = Some((path, key)),
        }
    }
    alone
}

fn not_stored(what: String) -> StrategyError {
    StrategyError::NotStored { what }
}

/// A stored tensor, of which any region can be read.
#[derive(Clone, Debug)]
pub struct TensorHandle {
    checkpoint: Checkpoint,
    key: Box<str>,
    dtype: DType,
    shape: Dims,
}

impl TensorHandle {
    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements per axis.
    pub fn shape(&self) -> &Dims {
        &self.shape
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> u64 {
        self.shape.volume().unwrap_or(u64::MAX).saturating_mul(self.dtype.size())
    }

    /// Its chunks in stored order.
    pub fn chunks(&self) -> Vec<StoredChunk> {
        let reader = &self.checkpoint.opened.reader;
        let tensor = self.checkpoint.metadata().tensor(&self.key);
        tensor.map_or_else(Vec::new, |t| {
            t.chunks().map(|(id, region)| StoredChunk { region, parts: reader.locate_chunk(id) }).collect()
        })
    }

    /// Reads a region: a [`Region`], some rows (`Region::rows(0..128)`) or all of it (`..`). Only the bytes of the region are
    /// read, whatever the chunks are.
    ///
    /// # Errors
    /// A region outside of the shape, a hole, damage, no memory.
    pub async fn read(&self, what: impl Select) -> Result<Tensor> {
        let url = &self.checkpoint.url;
        let region = what.resolve(&self.key, &self.shape).during(ACT, url)?;
        let mut template = FlatStateDict::new();
        let leaf = ShardedTensor::region_of(&self.key, self.dtype, &self.shape, region);
        template.insert(Path(vec![(&*self.key).into()]), Sharded::Tensor(leaf));
        let state = self.checkpoint.fill(template).await.during(ACT, url)?;
        match state.into_values().next() {
            Some(Sharded::Tensor(ShardedTensor { data: Data::Host(t), .. })) => Ok(t),
            _ => Err(Error::new(ACT, url, StrategyError::Invalid(format!("{} was not loaded", self.key)))),
        }
    }

    /// Regions that follow each other in row-major order, of at most `max` bytes each (at least one element), for working on
    /// a tensor in bounded memory.
    pub fn blocks(&self, max: u64) -> impl Iterator<Item = Region> + Send + use<> {
        Region::whole(&self.shape).blocks(max / self.dtype.size())
    }

    /// A region as a source that is read when it is written: for copying checkpoints in bounded memory.
    ///
    /// # Errors
    /// A region outside of the shape, a tensor that the limits don't allow.
    pub fn source(&self, what: impl Select) -> Result<Arc<dyn TensorSource>> {
        let region = what.resolve(&self.key, &self.shape).during(ACT, &self.checkpoint.url)?;
        self.checkpoint.opened.reader.permits(&self.key).during(ACT, &self.checkpoint.url)?;
        Ok(Arc::new(Lazy { tensor: self.clone(), offsets: region.offsets }))
    }
}

/// Part of a stored tensor.
struct Lazy {
    tensor: TensorHandle,
    offsets: Dims,
}

impl TensorSource for Lazy {
    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let mut region = region.clone();
        region.offsets.iter_mut().zip(&self.offsets).for_each(|(o, by)| *o += by);
        // On an I/O thread, what is awaited of local files runs on that very thread.
        let got: Bytes = reshard_storage::wait(self.tensor.read(region))
            .map_err(|e| SourceError::new(e.kind(), e))?
            .to_bytes();
        if got.len() != out.len() {
            return Err(format!("{} bytes were read where {} are wanted", got.len(), out.len()).into());
        }
        out.copy_from_slice(&got);
        Ok(())
    }
}

/// The common state of a checkpoint.
///
/// # Errors
/// As [`Checkpoint::open`] and [`Checkpoint::common`].
pub async fn load_common(url: &str) -> Result<ValueTree> {
    Checkpoint::open(url).await?.common().await
}

/// What a checkpoint holds.
///
/// # Errors
/// As [`Checkpoint::open`].
pub async fn load_metadata(url: &str) -> Result<Arc<Metadata>> {
    Ok(Arc::clone(Checkpoint::open(url).await?.metadata()))
}

/// Every tensor, whole, by key; no objects and no common state.
///
/// # Errors
/// As [`Checkpoint::open`]; damage, an item that is described in an unknown way, or no memory.
pub async fn load_plain_tensors(url: &str) -> Result<BTreeMap<String, Tensor>> {
    let checkpoint = Checkpoint::open(url).await?;
    checkpoint.is_understood().during(ACT, url)?;
    let mut template = FlatStateDict::new();
    for t in checkpoint.metadata().tensors() {
        let leaf = ShardedTensor::template(t.key(), t.dtype(), &t.shape());
        template.insert(Path(vec![t.key().into()]), Sharded::Tensor(leaf));
    }
    let state = checkpoint.fill(template).await.during(ACT, url)?;
    let tensor = |leaf| match leaf {
        Sharded::Tensor(ShardedTensor { key, data: Data::Host(t), .. }) => Some((key.to_string(), t)),
        _ => None,
    };
    Ok(state.into_values().filter_map(tensor).collect())
}
