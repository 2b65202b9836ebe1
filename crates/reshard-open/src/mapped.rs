//! A checkpoint as a map shows it: other keys and shapes, and any region of them.

use crate::{Checkpoint, Error, Handle, Result, TensorHandle, error::Context};
use reshard_map::{
    AddedCommon, Elements, Limits, Map, MapError, MapFile, MappedTensor, Mapping, Source,
};
use reshard_model::{
    BoxError, DType, Dims, ErrorKind, Payload, Region, Select, ShardedTensor, SourceError,
    StateDict, Tensor, TensorSource, Value,
};
use reshard_plan::cast;
use reshard_storage::{Name, run_blocking};
use reshard_strategy::{StrategyError, read_small};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The operation that errors name.
const ACT: &str = "reading";

/// The file in which Hugging Face's transformers describes a model.
const CONFIG: &str = "config.json";

impl Checkpoint {
    /// The checkpoint as if it had the keys, shapes and types that a map makes of its own. It reads nothing. Items whose description is not
    /// understood are not in it.
    ///
    /// ```
    /// use reshard::{Region, ShardedTensor, StateDict, Tensor, blocking, map::MapFile};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = dir.path().join("ckpt").display().to_string();
    /// let mut state = StateDict::new();
    /// state.insert("head", ShardedTensor::full("head", Tensor::from_vec(&[2, 3], vec![0, 1, 2, 3, 4, 5])?));
    /// blocking::save(&state, &url)?;
    ///
    /// let map = MapFile::parse("[[rule]]\ntranspose = 'head'\naxes = [1, 0]")?.bind(&Default::default())?;
    /// let mapped = blocking::Checkpoint::open(&url)?.mapped(&map)?;
    /// let head = mapped.tensor("head")?;
    /// let column = blocking::run(head.read(Region::rows(1..2)))?;
    /// assert_eq!(column.to_vec::<i32>()?, [1, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`MapError`] if a rule does not fit.
    pub fn mapped(&self, map: &Map) -> Result<MappedCheckpoint, MapError> {
        let tensors = self.metadata().tensors();
        let tensors = tensors.map(|t| Source::new(t.key(), t.dtype(), t.global_shape()));
        let mapping = map.apply(tensors, self.objects(), Limits::default())?;
        Ok(MappedCheckpoint {
            checkpoint: self.clone(),
            mapping: Arc::new(mapping),
        })
    }

    /// Values of a map's parameters: those that are given, then those in the `args` of Megatron-LM, which are in common state, and then those
    /// in a `config.json` of transformers among the checkpoint's files. Those that are nowhere are left out.
    ///
    /// # Errors
    /// Common state is damaged, or `config.json` is no JSON; what the store says.
    pub async fn map_parameters(
        &self,
        file: &MapFile,
        given: &BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, u64>> {
        let mut values = given.clone();
        if file.parameters().all(|(name, _)| values.contains_key(name)) {
            return Ok(values);
        }
        let common = self.common().await?;
        // A Namespace is one leaf; a dict is a part of the tree.
        let args = common.get("args");
        let of_args = |key: &str| match args?.leaf() {
            Some(namespace) => namespace.get(key).and_then(number),
            None => args?.get(key)?.leaf().and_then(number),
        };
        let config = self.hf_config().await?;
        for (name, parameter) in file.parameters() {
            if values.contains_key(name) {
                continue;
            }
            let of_args = parameter.args().and_then(of_args);
            let of_config = || config.get(parameter.config()?)?.as_u64();
            if let Some(value) = of_args.or_else(of_config) {
                values.insert(name.into(), value);
            }
        }
        Ok(values)
    }

    /// The `config.json` of transformers among the files; null if there is none.
    async fn hf_config(&self) -> Result<serde_json::Value> {
        let name = Name::new(CONFIG).during(ACT, self.url())?;
        let config = read_small(self.store(), &name)
            .await
            .during(ACT, self.url())?;
        match config {
            None => Ok(serde_json::Value::Null),
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| StrategyError::Corrupt {
                    file: CONFIG.into(),
                    offset: None,
                    what: "it is no JSON".into(),
                    source: Some(e.into()),
                })
                .during(ACT, self.url()),
        }
    }
}

/// A flag is 0 or 1.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Bool(flag) => Some(u64::from(*flag)),
        other => u64::try_from(other.as_int()?).ok(),
    }
}

/// A value of `config.json` at a path such as `rope_parameters.rope_theta`, if it is no list or dict.
fn scalar(config: &serde_json::Value, path: &str) -> Option<Value> {
    let mut parts = path.split('.');
    let found = parts.try_fold(config, |value, part| value.get(part))?;
    match found {
        serde_json::Value::Bool(flag) => Some(Value::Bool(*flag)),
        serde_json::Value::String(text) => Some(Value::Str(text.as_str().into())),
        serde_json::Value::Number(n) => match n.as_i64() {
            Some(int) => Some(Value::Int(int)),
            None => n.as_f64().map(Value::Float),
        },
        _ => None,
    }
}

/// A checkpoint as if it had the keys, shapes and types that a map makes; made by [`Checkpoint::mapped`].
#[derive(Clone)]
pub struct MappedCheckpoint {
    checkpoint: Checkpoint,
    mapping: Arc<Mapping>,
}

impl fmt::Debug for MappedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedCheckpoint")
            .field("checkpoint", &self.checkpoint.url())
            .field("tensors", &self.mapping.tensors().len())
            .finish_non_exhaustive()
    }
}

impl MappedCheckpoint {
    /// The checkpoint as it is stored.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Which regions of stored tensors the mapped ones are made of.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// A tensor, by its mapped key.
    ///
    /// # Errors
    /// There is no tensor of that key.
    pub fn tensor(&self, key: &str) -> Result<MappedTensorHandle> {
        match self.mapping.tensor(key) {
            Some(tensor) => Ok(self.handle(key, tensor)),
            None => {
                let count = self.mapping.tensors().len();
                self.missing(format!("no tensor {key:?} is mapped; `MappedCheckpoint::tensors` lists the {count} that are"))
            }
        }
    }

    /// All tensors, by mapped key.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = MappedTensorHandle> + '_ {
        self.mapping
            .tensors()
            .map(|(key, tensor)| self.handle(key, tensor))
    }

    /// The mapped keys of all objects.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = &str> {
        self.mapping.objects().map(|(key, _)| key)
    }

    /// Reads and decodes an object, by its mapped key.
    ///
    /// # Errors
    /// As [`Checkpoint::object`].
    pub async fn object(&self, key: &str) -> Result<Value> {
        self.checkpoint.object(self.stored(key)?).await
    }

    /// Reads an object in its stored form, by its mapped key.
    ///
    /// # Errors
    /// As [`Checkpoint::object_payload`].
    pub async fn object_payload(&self, key: &str) -> Result<Payload> {
        self.checkpoint.object_payload(self.stored(key)?).await
    }

    /// A leaf without data for each tensor, under its mapped key.
    ///
    /// # Errors
    /// A stored item is damaged or not understood, so that it can't be mapped.
    pub fn load_tensors_metadata(&self) -> Result<StateDict> {
        self.is_understood()?;
        let mut out = StateDict::new();
        for (key, t) in self.mapping.tensors() {
            out.insert(key, ShardedTensor::template(key, t.dtype(), t.shape()));
        }
        Ok(out)
    }

    /// Reads every tensor as a whole, by mapped key.
    ///
    /// # Errors
    /// As [`MappedTensorHandle::read`]. A stored item is damaged or not understood, so that it can't be mapped.
    pub async fn load_plain_tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        self.is_understood()?;
        let mut out = BTreeMap::new();
        for tensor in self.tensors() {
            out.insert(tensor.key().to_owned(), tensor.read(..).await?);
        }
        Ok(out)
    }

    /// Common state that the map [adds](reshard_map::Additions) for Megatron Core. Values of `config.json` come from the file of this name among
    /// the checkpoint's files.
    ///
    /// # Errors
    /// `config.json` is no JSON; an error of the store.
    pub async fn added_common(&self) -> Result<AddedCommon> {
        let additions = self.mapping.additions();
        if additions.is_empty() {
            return Ok(AddedCommon::default());
        }
        let config = self.checkpoint.hf_config().await?;
        Ok(additions.common(|path| scalar(&config, path)))
    }

    fn is_understood(&self) -> Result<()> {
        let understood = self.checkpoint.is_understood();
        understood.during(ACT, self.checkpoint.url())
    }

    /// The stored key of an object.
    fn stored(&self, key: &str) -> Result<&str> {
        match self.mapping.object(key) {
            Some(stored) => Ok(stored),
            None => {
                let count = self.mapping.objects().len();
                self.missing(format!("no object {key:?} is mapped; `MappedCheckpoint::objects` lists the {count} that are"))
            }
        }
    }

    fn missing<T>(&self, what: String) -> Result<T> {
        Err(StrategyError::NotStored { what }).during(ACT, self.checkpoint.url())
    }

    fn handle(&self, key: &str, tensor: &MappedTensor) -> MappedTensorHandle {
        Handle {
            checkpoint: self.clone(),
            key: key.into(),
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
        }
    }
}

/// A mapped tensor.
pub type MappedTensorHandle = Handle<MappedCheckpoint>;

impl Handle<MappedCheckpoint> {
    /// The element type of the first stored tensor that the map casts, if it casts any.
    pub fn cast_from(&self) -> Option<DType> {
        let mapping = &self.checkpoint.mapping;
        let mut pieces = mapping.tensor(&self.key)?.pieces().iter();
        let cast = pieces.find(|piece| !piece.casts.is_empty())?;
        mapping
            .sources()
            .get(cast.source)
            .map(|stored| stored.dtype)
    }

    /// The keys of the stored tensors that it is made of, each once.
    pub fn stored_keys(&self) -> Vec<&str> {
        let mapping = &self.checkpoint.mapping;
        let pieces = mapping
            .tensor(&self.key)
            .map_or(&[][..], MappedTensor::pieces);
        let mut numbers: Vec<usize> = pieces.iter().map(|p| p.source).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let sources = numbers.into_iter();
        let sources = sources.filter_map(|n| mapping.sources().get(n));
        sources.map(|s| &*s.key).collect()
    }

    /// Reads a region: a [`Region`], some rows (`Region::rows(0..128)`) or everything (`..`). It reads the bytes that the region is made
    /// of, and at most small gaps between them.
    ///
    /// # Errors
    /// A region outside the shape; an error of a stored tensor; a cast that is not possible.
    pub async fn read(&self, what: impl Select) -> Result<Tensor> {
        let url = self.checkpoint.checkpoint.url();
        let region = what.resolve(&self.key, &self.shape).during(ACT, url)?;
        let source = self.source(region.clone())?;
        let elements = region.volume().unwrap_or(u64::MAX);
        let bytes = usize::try_from(elements.saturating_mul(self.dtype.size()));
        let here = Region::whole(&region.lengths);
        let read = move || -> Result<Vec<u8>, BoxError> {
            let bytes = bytes?;
            let mut out = Vec::new();
            out.try_reserve_exact(bytes)?;
            out.resize(bytes, 0);
            source.read(&here, &mut out)?;
            Ok(out)
        };
        let got = run_blocking([read]).await.during(ACT, url)?;
        let bytes = match got.into_iter().next() {
            Some(Ok(bytes)) => bytes,
            Some(Err(e)) => return Err(self.failed(e)),
            None => {
                return Err(Error::new(
                    ACT,
                    url,
                    StrategyError::Internal(format!("{} was not read", self.key)),
                ));
            }
        };
        Tensor::new(self.dtype, &region.lengths, bytes).during(ACT, url)
    }

    /// A region as a source that is read only when it is written.
    ///
    /// # Errors
    /// A region outside the shape, or a stored tensor that the limits don't allow.
    pub fn source(&self, what: impl Select) -> Result<Arc<dyn TensorSource>> {
        self.source_through(what, |_, source| source, None)
    }

    /// The same, but each stored tensor is read through the source that `wrap` makes of the tensor and its own source, for tools that look at
    /// what is read of the stored tensors. A stored tensor may be read in any order, more than once, and not as a whole. `on_cast` gets the
    /// elements that the map casts.
    ///
    /// # Errors
    /// As [`source`](Self::source).
    pub fn source_through(
        &self,
        what: impl Select,
        wrap: impl Fn(&TensorHandle, Arc<dyn TensorSource>) -> Arc<dyn TensorSource>,
        on_cast: Option<OnCast>,
    ) -> Result<Arc<dyn TensorSource>> {
        let region = what
            .resolve(&self.key, &self.shape)
            .during(ACT, self.checkpoint.checkpoint.url())?;
        let mut stored = BTreeMap::new();
        let mut block = 0;
        for key in self.stored_keys() {
            let tensor = self.checkpoint.checkpoint.tensor(key)?;
            let source = wrap(&tensor, tensor.source(..)?);
            block = source.block().unwrap_or(0).max(block);
            stored.insert(key.into(), source);
        }
        Ok(Arc::new(Lazy {
            mapped: self.checkpoint.clone(),
            key: self.key.clone(),
            dtype: self.dtype,
            region,
            stored: Stored {
                sources: stored,
                on_cast,
            },
            block,
        }))
    }

    fn failed(&self, e: BoxError) -> Error {
        let error = reshard_model::ModelError::Source {
            key: self.key.to_string(),
            what: "reading the tensors that it is made of".into(),
            source: e,
        };
        Error::new(ACT, self.checkpoint.checkpoint.url(), error)
    }
}

/// Reads of this size cost little more than smaller ones.
const BLOCK_PER_PIECE: u64 = 64 << 10;

/// Larger blocks would take memory for nothing.
const MAX_BLOCK: u64 = 4 << 20;

/// Part of a mapped tensor.
struct Lazy {
    mapped: MappedCheckpoint,
    key: Box<str>,
    dtype: DType,
    region: Region,
    stored: Stored,
    /// What the stored tensors ask for.
    block: u64,
}

impl TensorSource for Lazy {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.region.lengths.clone()
    }

    /// A block may have a part of each piece, so the more pieces there are, the larger it is.
    fn block(&self) -> Option<u64> {
        let tensor = self.mapped.mapping.tensor(&self.key)?;
        let ours = BLOCK_PER_PIECE.saturating_mul(tensor.pieces().len() as u64);
        Some(self.block.max(ours.min(MAX_BLOCK)))
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let mapping = &self.mapped.mapping;
        let tensor = mapping
            .tensor(&self.key)
            .ok_or("the tensor is not mapped")?;
        let region = region.shifted(&self.region.offsets);
        mapping.read(tensor, &region, &self.stored, out)
    }
}

/// A callback of [`MappedTensorHandle::source_through`], with elements before and after a cast, and their types. An error fails the read.
pub type OnCast = Arc<dyn Fn((DType, &[u8]), (DType, &[u8])) -> Result<(), BoxError> + Send + Sync>;

/// Stored tensors, by key.
struct Stored {
    sources: BTreeMap<Box<str>, Arc<dyn TensorSource>>,
    on_cast: Option<OnCast>,
}

impl Elements for Stored {
    fn read(&self, source: &Source, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let stored = self
            .sources
            .get(&source.key)
            .ok_or("a tensor is not stored")?;
        stored.read(region, out)
    }

    fn cast(
        &self,
        from: DType,
        elements: &[u8],
        to: DType,
        out: &mut [u8],
    ) -> Result<(), BoxError> {
        let unsupported = |e| SourceError::new(ErrorKind::Unsupported, e);
        cast::convert(from, elements, to, out).map_err(|e| unsupported(BoxError::from(e)))?;
        match &self.on_cast {
            Some(on_cast) => on_cast((from, elements), (to, out)),
            None => Ok(()),
        }
    }
}
