//! An open checkpoint, for `reshard.Checkpoint`.

use crate::{
    error::{Raise as _, about, own, raise},
    memory::{Memories, Strided, dtype, regions},
    value::{HostTensor, pickled, to_python, tree_to_python},
    wait::{tell, wait},
};
use futures_util::{StreamExt as _, stream};
use pyo3::{prelude::*, types::PyBytes};
use reshard::{
    Cast, Checkpoint, DType, MappedCheckpoint, OpenOptions, Region, ShardedTensor, Tensor, Value,
    map::MapFile,
    model::{Data, FlatStateDict, ModelError, Path, Payload, Sharded, Step, cast::check_fit},
    plan::{PlannerData, scale_of},
    strategy::StrategyError,
};
use reshard_torch_format::TorchSave;
use std::{collections::BTreeMap, path::PathBuf};

/// How a checkpoint is opened. A field that is `None` has its default.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Opening {
    format: Option<String>,
    verify: bool,
    item: Option<String>,
    open_modules: bool,
    dequantize: Option<String>,
    progress: Option<Py<PyAny>>,
}

/// A region of a tensor, and the memory to read it into.
#[derive(FromPyObject)]
pub(crate) struct Want {
    key: String,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
    into: Strided,
}

/// The same, ready to be read.
struct Wanted {
    key: String,
    region: Region,
    into: Tensor,
}

/// An open checkpoint, as it is stored or as a map shows it.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Source {
    checkpoint: Checkpoint,
    mapped: Option<MappedCheckpoint>,
}

/// Opens a checkpoint. It reads what describes it, and no tensor.
#[pyfunction]
pub(crate) fn open(py: Python<'_>, place: PathBuf, how: Opening) -> PyResult<Source> {
    let mut options = OpenOptions::new().verify(how.verify);
    if let Some(format) = &how.format {
        let format = format.parse();
        let format = format.map_err(|e| own(py, "MismatchError", &format!("format: {e}")))?;
        options = options.format(format);
    }
    if let Some(to) = &how.dequantize {
        let config = reshard::safetensors::SafetensorsLoadConfig::default();
        options = options.strategy(config.with_dequantize(dtype(py, "dequantize", to)?));
    }
    if let Some(item) = &how.item {
        let config = reshard::torch_save::RankFilesLoadConfig::default();
        options = options.strategy(config.with_item(item));
    }
    if how.open_modules {
        let config = reshard::torch_save::TorchSaveLoadConfig::default();
        options = options.settings(config.with_open_modules(true));
    }
    if let Some(call) = how.progress {
        options = options.progress(move |now| tell(&call, (now.sum, now.total)));
    }
    let checkpoint = wait(py, options.open(place))?.raised(py)?;
    Ok(Source {
        checkpoint,
        mapped: None,
    })
}

#[pymethods]
impl Source {
    #[getter]
    fn url(&self) -> &str {
        self.checkpoint.url()
    }

    /// Name and version of the format.
    #[getter]
    fn format(&self) -> String {
        self.checkpoint.backend().to_string()
    }

    /// Key, element type and shape of each tensor.
    fn tensors(&self) -> Vec<(String, &'static str, Vec<u64>)> {
        let told =
            |key: &str, dtype: DType, shape: &[u64]| (key.to_owned(), dtype.name(), shape.to_vec());
        match &self.mapped {
            Some(mapped) => mapped
                .tensors()
                .map(|t| told(t.key(), t.dtype(), t.shape()))
                .collect(),
            None => {
                let tensors = self.checkpoint.metadata().tensors();
                tensors
                    .map(|t| told(t.key(), t.dtype(), &t.global_shape()))
                    .collect()
            }
        }
    }

    /// The keys of all objects.
    fn objects(&self) -> Vec<String> {
        match &self.mapped {
            Some(mapped) => mapped.objects().map(str::to_owned).collect(),
            None => self.checkpoint.objects().map(str::to_owned).collect(),
        }
    }

    /// Offsets and lengths of the chunks in which a tensor is stored. One for a mapped tensor.
    fn chunks(&self, py: Python<'_>, key: &str) -> PyResult<Vec<(Vec<u64>, Vec<u64>)>> {
        let pair = |region: Region| (region.offsets.to_vec(), region.lengths.to_vec());
        match &self.mapped {
            Some(mapped) => {
                let tensor = mapped.tensor(key).raised(py)?;
                Ok(vec![pair(Region::whole(tensor.shape()))])
            }
            None => {
                let tensor = self.checkpoint.tensor(key).raised(py)?;
                match tensor.flattened_shape() {
                    // Its chunks are boxes of another shape.
                    Some(_) => Ok(vec![pair(Region::whole(tensor.shape()))]),
                    None => Ok(tensor
                        .chunks()
                        .into_iter()
                        .map(|c| pair(c.region))
                        .collect()),
                }
            }
        }
    }

    /// Reads regions into memory, which must have the shape of its region and any element type to which the stored one can be cast.
    fn read(&self, py: Python<'_>, wants: Vec<Want>) -> PyResult<()> {
        // Views of one storage are lent together; what is read apart has a handle of its own.
        let (mut memories, mut together, mut apart) = (Memories::default(), Vec::new(), Vec::new());
        for Want {
            key,
            offsets,
            lengths,
            into,
        } in wants
        {
            let region = Region::new(offsets, lengths);
            if self.is_read_apart(py, &key, &into)? {
                let into = Memories::default().tensor(py, &key, into)?;
                apart.push(Wanted { key, region, into });
            } else {
                let into = memories.tensor(py, &key, into)?;
                together.push(Wanted { key, region, into });
            }
        }
        drop(memories);
        wait(py, async {
            if !together.is_empty() {
                read_together(&self.checkpoint, together).await?;
            }
            self.read_apart(apart).await
        })?
        .raised(py)
    }

    /// Reads a region into memory of reshard.
    fn region(
        &self,
        py: Python<'_>,
        key: &str,
        offsets: Vec<u64>,
        lengths: Vec<u64>,
    ) -> PyResult<HostTensor> {
        let region = Region::new(offsets, lengths);
        let read = wait(py, self.read_region(key, region))?;
        read.raised(py).map(HostTensor::new)
    }

    /// Reads an object.
    fn object<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.value(py, key)?)
    }

    /// Reads an object as a file of `torch.save`. Without `allow_pickle` it refers to no class that could do anything.
    fn pickled<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        allow_pickle: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if allow_pickle {
            let payload = wait(py, async {
                match &self.mapped {
                    Some(mapped) => mapped.object_payload(key).await,
                    None => self.checkpoint.object_payload(key).await,
                }
            })?;
            if let Payload::Encoded { codec, bytes } = payload.raised(py)?
                && codec == reshard::model::ObjectCodec::name(&TorchSave::default())
            {
                return Ok(PyBytes::new(py, &bytes));
            }
        }
        Ok(PyBytes::new(py, &pickled(py, key, &self.value(py, key)?)?))
    }

    /// The path of each key in the state that was saved, as strings and ints, if the checkpoint records it.
    fn paths(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Vec<Py<PyAny>>>> {
        use pyo3::IntoPyObjectExt as _;
        let Some(PlannerData::Paths(paths)) = self.checkpoint.metadata().planner_data() else {
            return Ok(BTreeMap::new());
        };
        let step = |step: &Step| match step {
            Step::Key(key) => key.into_py_any(py),
            Step::Index(index) => index.into_py_any(py),
        };
        paths
            .iter()
            .map(|(key, path)| {
                Ok((
                    key.to_string(),
                    path.0.iter().map(step).collect::<PyResult<_>>()?,
                ))
            })
            .collect()
    }

    /// The common state of Megatron Core, which is not sharded. Empty in other checkpoints.
    fn common<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tree = wait(py, self.checkpoint.common())?.raised(py)?;
        tree_to_python(py, &tree)
    }

    /// Everything, nested as it was saved.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tree = wait(py, self.checkpoint.state())?.raised(py)?;
        tree_to_python(py, &tree)
    }

    /// The same checkpoint under the names, shapes and types that a map makes. `text` is a mapping file, or the name of a map that comes with reshard.
    fn mapped(
        &self,
        py: Python<'_>,
        text: &str,
        parameters: BTreeMap<String, u64>,
        inverse: bool,
    ) -> PyResult<Self> {
        if self.mapped.is_some() {
            return Err(own(
                py,
                "MismatchError",
                "it is mapped already; map the checkpoint as it is stored",
            ));
        }
        let file = MapFile::text_of(text).unwrap_or(text);
        let told = |e: reshard::map::MapError| own(py, "MismatchError", &e.to_string());
        let file = MapFile::parse(file).map_err(told)?;
        let values = wait(py, self.checkpoint.map_parameters(&file, &parameters))?.raised(py)?;
        let mut map = file.bind(&values).map_err(told)?;
        if inverse {
            map = map.inverse().map_err(told)?;
        }
        let mapped = self.checkpoint.mapped(&map).map_err(told)?;
        Ok(Self {
            checkpoint: self.checkpoint.clone(),
            mapped: Some(mapped),
        })
    }

    /// The keys that the map leaves out, and those that no rule of it matches.
    fn unmapped(&self) -> (Vec<String>, Vec<String>) {
        let Some(mapped) = &self.mapped else {
            return (Vec::new(), Vec::new());
        };
        let mapping = mapped.mapping();
        let dropped = mapping.dropped().iter().map(|item| item.key.to_string());
        let unmapped = mapping.unmapped().iter().map(|key| key.to_string());
        (dropped.collect(), unmapped.collect())
    }

    /// Warnings of the format: reasons why another program may read other tensors from it.
    fn warnings(&self) -> Vec<String> {
        self.checkpoint.producer().warnings
    }
}

impl Source {
    fn value(&self, py: Python<'_>, key: &str) -> PyResult<Value> {
        let read = async {
            match &self.mapped {
                Some(mapped) => mapped.object(key).await,
                None => self.checkpoint.object(key).await,
            }
        };
        wait(py, read)?.map_err(|e| match e.kind() {
            reshard::ErrorKind::NotFound => raise(py, &e),
            _ => about_object(py, key, &e),
        })
    }
}

fn about_object(py: Python<'_>, key: &str, e: &reshard::Error) -> PyErr {
    let raised = raise(py, e);
    // The format may not know the key.
    let value = raised.value(py);
    let named = value.getattr("key").is_ok_and(|k| !k.is_none());
    if !named && value.setattr("key", key).is_err() {
        return about(py, "Error", key, &e.to_string());
    }
    raised
}

/// Reads regions of stored tensors, all in one load.
async fn read_together(checkpoint: &Checkpoint, wanted: Vec<Wanted>) -> reshard::Result<()> {
    let mut template = FlatStateDict::new();
    for (n, want) in (0u64..).zip(wanted) {
        let shape = checkpoint.tensor(&want.key)?.shape().clone();
        let leaf = ShardedTensor::region_of(&want.key, want.into.dtype(), &shape, want.region);
        let leaf = leaf.with_data(Data::Host(want.into));
        template.insert(Path(vec![n.into()]), Sharded::Tensor(leaf));
    }
    checkpoint.fill(template, Cast::Float).await.map(drop)
}

/// Bytes of a tensor that are read at a time, if they are not read directly into their memory.
const BLOCK: u64 = 32 << 20;
/// Regions that are read so at the same time.
const AT_ONCE: usize = 4;

impl Source {
    /// Whether elements can't be read directly into their memory: a map makes them, or numbers may not fit their new type.
    fn is_read_apart(&self, py: Python<'_>, key: &str, into: &Strided) -> PyResult<bool> {
        if self.mapped.is_some() {
            return Ok(true);
        }
        let stored = self.checkpoint.tensor(key).raised(py)?;
        let to = dtype(py, key, into.dtype())?;
        let metadata = self.checkpoint.metadata();
        let found = metadata.tensor(key);
        let is_quantised = found.is_some_and(|t| scale_of(metadata, &t).is_some());
        Ok(!Cast::Float.allows(stored.dtype(), to) && !is_quantised)
    }

    async fn read_apart(&self, wanted: Vec<Wanted>) -> reshard::Result<()> {
        let reads = wanted.into_iter().map(|want| self.read_blocks(want));
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        while let Some(done) = reads.next().await {
            done?;
        }
        Ok(())
    }

    /// Reads a region block by block. Each is cast if all of its numbers fit.
    async fn read_blocks(&self, want: Wanted) -> reshard::Result<()> {
        let Wanted { key, region, into } = want;
        let failed = |e| failed(&self.checkpoint, e);
        let to = into.dtype();
        let blocks: Vec<Region> = Region::whole(&region.lengths)
            .blocks(BLOCK / to.size())
            .collect();
        if into.shape() != &region.lengths {
            let what = format!(
                "memory of shape {} can't take the region {region}",
                into.shape()
            );
            return Err(failed(ModelError::invalid(&key, what)));
        }
        let places = regions(&key, into, &blocks).map_err(failed)?;
        for (block, place) in blocks.iter().zip(places) {
            let read = self
                .read_region(&key, block.shifted(&region.offsets))
                .await?;
            let read = if read.dtype() == to {
                read
            } else {
                check_fit(&key, &read, to).map_err(failed)?;
                read.cast(to).map_err(failed)?
            };
            place.fill(&read.to_bytes()).map_err(failed)?;
        }
        Ok(())
    }

    async fn read_region(&self, key: &str, region: Region) -> reshard::Result<Tensor> {
        match &self.mapped {
            Some(mapped) => mapped.tensor(key)?.read(region).await,
            None => self.checkpoint.tensor(key)?.read(region).await,
        }
    }
}

fn failed(checkpoint: &Checkpoint, e: ModelError) -> reshard::Error {
    reshard::Error::new("reading", checkpoint.url(), StrategyError::from(e))
}
