//! A new version of a checkpoint that planners of PyTorch have planned, for `reshard.torch.StorageWriter`.

use crate::{
    error::Raise as _,
    memory::{Memories, Strided},
    wait::{tell, wait},
};
use bytes::Bytes;
use pyo3::{prelude::*, pybacked::PyBackedBytes};
use reshard::{
    Data, Durability, Registry, Stores,
    comm::Comm,
    model::{Payload, Region},
    plan::{
        DefaultSavePlanner, SavePlan, TensorProperties, TensorWrite, WriteData, WriteItem,
        WriteKind,
    },
    storage::{Entry, IfExists, Name, PlaceKind, Progress, Transaction},
    strategy::{FileLayout, PipelineOptions, SaveCx, SaveFormat as _, StrategyError},
    torch_dist::TorchDistConfig,
};
use reshard_open::{
    attempt::attempt,
    replace::{Replaced, replace},
};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// An item of a plan of PyTorch: a chunk of a tensor, or an object that is encoded already.
#[derive(FromPyObject)]
enum Item {
    Tensor {
        #[pyo3(item)]
        key: String,
        #[pyo3(item)]
        offsets: Vec<u64>,
        #[pyo3(item)]
        global_shape: Vec<u64>,
        #[pyo3(item)]
        memory: Strided,
    },
    Object {
        #[pyo3(item)]
        object: PyBackedBytes,
    },
}

/// Where an item was written: its position in the plan, file, first byte and bytes.
type Place = (usize, String, u64, u64);

/// A version that nobody can see until it is committed.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Version {
    url: String,
    attempt: String,
    transaction: Arc<dyn Transaction>,
    durability: Durability,
}

/// Begins a new version of a place. It has a name by which other ranks join it.
#[pyfunction]
pub(crate) fn begin(
    py: Python<'_>,
    place: PathBuf,
    overwrite: bool,
    durable: bool,
) -> PyResult<Version> {
    let url = reshard::place_text(&place);
    let begun = async {
        let (registry, stores) = (Registry::linked()?, Stores::linked()?);
        let store = stores.open(&url)?;
        let store = store.resolved().await?.unwrap_or(store);
        let if_exists = if overwrite {
            let Replaced { if_exists, .. } = replace(&store, &registry, PlaceKind::Folder).await?;
            if_exists
        } else {
            IfExists::Refuse
        };
        let attempt = attempt();
        let transaction = store.begin(&attempt, if_exists).await?;
        Ok::<_, StrategyError>((attempt, transaction))
    };
    let begun = wait(py, begun)?;
    let (attempt, transaction) = at(&url, begun).raised(py)?;
    Ok(Version {
        url,
        attempt,
        transaction,
        durability: durability(durable),
    })
}

/// Joins the version that another rank has begun.
#[pyfunction]
pub(crate) fn join(
    py: Python<'_>,
    place: PathBuf,
    attempt: String,
    at_place: Option<String>,
    durable: bool,
) -> PyResult<Version> {
    let url = reshard::place_text(&place);
    let joined = async {
        let store = Stores::linked()?.open(&url)?;
        Ok::<_, StrategyError>(store.join(&attempt, at_place.as_deref()).await?)
    };
    let joined = wait(py, joined)?;
    let transaction = at(&url, joined).raised(py)?;
    Ok(Version {
        url,
        attempt,
        transaction,
        durability: durability(durable),
    })
}

#[pymethods]
impl Version {
    /// What other ranks need to join it.
    #[getter]
    fn name(&self) -> (String, Option<String>) {
        (self.attempt.clone(), self.transaction.place())
    }

    /// Writes items of a rank into one file, which is the `number`th of this rank. Returns where each item lies.
    fn write(
        &self,
        py: Python<'_>,
        rank: u32,
        number: u32,
        items: Vec<Item>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Place>> {
        let FileLayout {
            mut files,
            items,
            copied,
        } = layout(py, rank, items, self)?;
        for file in &mut files {
            let name = Name::new(format!("__{rank}_{number}.distcp"));
            file.name = self.at(name.map_err(StrategyError::from)).raised(py)?;
        }
        let progress = progress.map_or_else(Progress::none, |call| {
            Progress::new(move |bytes| tell(&call, (bytes,)))
        });
        let written = wait(py, self.transaction.write(files, self.durability, progress))?;
        let written = self.at(written.map_err(StrategyError::from)).raised(py)?;
        let order: Vec<_> = items.iter().map(|(id, _)| id.clone()).collect();
        let results = self
            .at(FileLayout::results(items, copied, &written))
            .raised(py)?;
        let places = results.iter().zip(&order).map(|(result, _)| {
            let part = result.part()?;
            Ok((part.file.to_string(), part.range.start, part.length()))
        });
        let places: Result<Vec<_>, StrategyError> = places.collect();
        let places = self.at(places).raised(py)?;
        let numbers = order
            .iter()
            .map(|id| id.key.parse::<usize>().unwrap_or(usize::MAX));
        Ok(numbers
            .zip(places)
            .map(|(n, (file, start, length))| (n, file, start, length))
            .collect())
    }

    /// Makes the version the checkpoint, in one step. `record` is the file that says what is stored, and `files` are all others with their lengths.
    fn commit(
        &self,
        py: Python<'_>,
        record: (String, PyBackedBytes),
        files: BTreeMap<String, u64>,
    ) -> PyResult<()> {
        let name = |name: String| {
            self.at(Name::new(name).map_err(StrategyError::from))
                .raised(py)
        };
        let record = (name(record.0)?, Bytes::from_owner(record.1));
        let files = files.into_iter().map(|(file, bytes)| {
            Ok(Entry {
                name: name(file)?,
                bytes,
            })
        });
        let files: Vec<Entry> = files.collect::<PyResult<_>>()?;
        let done = wait(
            py,
            self.transaction
                .commit(Some(record), &files, self.durability),
        )?;
        self.at(done.map_err(StrategyError::from)).raised(py)
    }

    /// Removes what was written. It does nothing to a version that is committed.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        let done = wait(py, self.transaction.rollback())?;
        self.at(done.map_err(StrategyError::from)).raised(py)
    }
}

impl Version {
    fn at<T>(&self, result: Result<T, StrategyError>) -> reshard::Result<T> {
        at(&self.url, result)
    }
}

fn at<T>(url: &str, result: Result<T, StrategyError>) -> reshard::Result<T> {
    result.map_err(|e| reshard::Error::new("saving", url, e))
}

/// What a finished save survives.
pub(crate) fn durability(durable: bool) -> Durability {
    match durable {
        true => Durability::Machine,
        false => Durability::Process,
    }
}

/// The files of a rank. The key of an item is its position in the plan: two items of one plan may have the same key and offset.
fn layout(py: Python<'_>, rank: u32, items: Vec<Item>, version: &Version) -> PyResult<FileLayout> {
    let (mut plan, mut data, mut memories) =
        (SavePlan::default(), BTreeMap::new(), Memories::default());
    for (n, item) in (0u32..).zip(items) {
        let (kind, of_item) = match item {
            Item::Tensor {
                key,
                offsets,
                global_shape,
                memory,
            } => {
                let tensor = memories.tensor(py, &key, memory)?;
                let region = Region::new(offsets, tensor.shape().clone());
                let write = TensorWrite {
                    dtype: tensor.dtype(),
                    global_shape: global_shape.into(),
                    region,
                    properties: TensorProperties::default(),
                    original_shape: None,
                };
                (
                    WriteKind::Tensor(write),
                    WriteData::Tensor(Data::Host(tensor)),
                )
            }
            Item::Object { object } => {
                let bytes_hint = object.len() as u64;
                let (codec, bytes) = (codec(), Bytes::from_owner(object));
                (
                    WriteKind::Object { bytes_hint },
                    WriteData::Object(Payload::Encoded { codec, bytes }),
                )
            }
        };
        plan.items.push(WriteItem {
            key: n.to_string().into(),
            source: n,
            kind,
        });
        data.insert(n, of_item);
    }
    let resolve = |item: &WriteItem| {
        let found = data.get(&item.source).cloned();
        found.ok_or_else(|| StrategyError::Internal(format!("item {} has no data", item.key)))
    };
    let (options, groups) = (PipelineOptions::default(), BTreeMap::new());
    let transaction = Arc::clone(&version.transaction);
    let planner = Arc::new(DefaultSavePlanner::default());
    let cx = SaveCx::new(
        &options,
        Comm::single(),
        &groups,
        transaction,
        &version.url,
        planner,
    );
    let writer = version
        .at(TorchDistConfig::default().writer(&cx))
        .raised(py)?;
    version.at(writer.layout(rank, &plan, &resolve)).raised(py)
}

fn codec() -> &'static str {
    reshard::model::ObjectCodec::name(&reshard_torch_format::TorchSave::default())
}
