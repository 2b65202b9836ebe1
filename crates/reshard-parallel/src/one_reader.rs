//! Loads in which one rank reads, and the others know nothing of the files.

mod reader;

use crate::{
    group::Seat,
    planner::{Readers, Sharing},
};
use async_trait::async_trait;
use reader::{FromTemplate, Unread};
use reshard_comm::Cause;
use reshard_model::{DType, Dims, ErrorKind, FlatStateDict, Region, Sharded};
use reshard_plan::{ChunkId, ExchangeAlgo, Metadata, TensorProperties};
use reshard_storage::{Entry, Listing, PlaceKind, StoreExt};
use reshard_strategy::{
    BackendVersion, Detection, LoadCx, LoadFailure, LoadShardedConfig, LoadShardedStrategy, Loaded,
    OpenCx, OwnFile, Removal, Result, StorageReader, StrategyError, cause,
};
use serde::{Deserialize, Serialize};
use std::{any::Any, collections::BTreeMap, sync::Arc};

/// Settings of a load in which only the coordinator opens and reads the files. The other ranks plan by their templates, and get the parts that
/// they want of it. It is DCP's `BroadcastingTorchSaveReader` with its `DynamicMetaLoadPlanner`, around any format that stores each tensor as
/// one chunk, such as a file of `torch.save`.
///
/// ```json
/// { "type": "one_reader", "base": { "type": "torch_save" } }
/// ```
///
/// A template may have only tensors. What the files hold beside it is not looked at. A key that is not stored, a tensor of another shape or
/// element type, and a leaf that is no tensor are errors on every rank.
///
/// DCP broadcasts each tensor as a whole. Here a rank gets only its own part, in rounds of at most
/// [`bytes_in_flight`](Self::bytes_in_flight).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OneReaderLoad {
    /// The settings of the format.
    pub base: Arc<dyn LoadShardedConfig>,
    /// How many bytes may be on their way on a rank.
    #[serde(default = "in_flight")]
    pub bytes_in_flight: u64,
}

fn in_flight() -> u64 {
    64 << 20
}

impl OneReaderLoad {
    /// Around these settings, with 64 MiB in flight.
    pub fn new(base: impl LoadShardedConfig + 'static) -> Self {
        Self {
            base: Arc::new(base),
            bytes_in_flight: in_flight(),
        }
    }

    /// Sets how many bytes may be on their way.
    pub fn bytes_in_flight(mut self, bytes: u64) -> Self {
        self.bytes_in_flight = bytes;
        self
    }
}

#[typetag::serde(name = "one_reader")]
impl LoadShardedConfig for OneReaderLoad {
    fn build(&self) -> Result<Arc<dyn LoadShardedStrategy>> {
        Ok(Arc::new(OneReader {
            base: self.base.build()?,
            bytes_in_flight: self.bytes_in_flight,
        }))
    }
}

#[derive(Debug)]
struct OneReader {
    base: Arc<dyn LoadShardedStrategy>,
    bytes_in_flight: u64,
}

/// What a template says of its tensors, by key.
type Specs = BTreeMap<String, (DType, Dims)>;

/// What all ranks agree on.
#[derive(Serialize, Deserialize)]
struct Agreed {
    specs: Specs,
    /// Whether the format reads columns together.
    columns: bool,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the base
impl LoadShardedStrategy for OneReader {
    fn key(&self) -> BackendVersion {
        self.base.key()
    }

    /// Reads nothing: which rank this is, only the load knows.
    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        if cx.store.top().await?.is_empty() {
            return Err(StrategyError::NotACheckpoint {
                url: cx.store.url(),
                why: "nothing lies there".into(),
            });
        }
        Ok(Arc::new(Unread::new(self.key(), cx.clone())))
    }

    async fn load(
        &self,
        template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>> {
        let guard = cx.comm.guard("a load with one reader");
        let prepared = self.prepare(&template, &*from, cx).await;
        guard.done();
        let reader = match prepared {
            Ok(reader) => reader,
            Err(error) => return Err(Box::new(LoadFailure::of_plan(error, template))),
        };
        let mut inner = cx.clone();
        inner.exchange_memory = self.bytes_in_flight;
        inner.planner = Arc::new(Sharing {
            base: inner.planner,
            seat: Seat {
                first: cx.comm.coordinator().0,
                number: cx.comm.rank().0,
            },
            readers: Readers::First,
            algo: ExchangeAlgo::default(),
            kept: None,
        });
        self.base.load(template, Arc::new(reader), &inner).await
    }

    fn detect(&self, top: &Listing) -> Detection {
        self.base.detect(top)
    }

    fn detect_file(&self, file: &Entry) -> Detection {
        self.base.detect_file(file)
    }

    fn probes(&self) -> &'static [&'static str] {
        self.base.probes()
    }

    fn probes_in_folders(&self) -> &'static [&'static str] {
        self.base.probes_in_folders()
    }

    fn own_file(&self, name: &str) -> Option<OwnFile> {
        self.base.own_file(name)
    }

    fn lives_in(&self, kind: PlaceKind) -> bool {
        self.base.lives_in(kind)
    }

    fn check_compatibility(&self, stored: &BackendVersion) -> Result<()> {
        self.base.check_compatibility(stored)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.base.can_handle_sharded_objects()
    }

    async fn remove_sharded_tensors(&self, _: &Arc<dyn StorageReader>, _: &str) -> Result<Removal> {
        Err(StrategyError::Invalid(
            "settings of a load with one reader remove nothing; give those of the format".into(),
        ))
    }
}

impl OneReader {
    /// Agrees on what is stored, as the templates of all ranks say it. The coordinator opens the files, and compares.
    async fn prepare(
        &self,
        template: &FlatStateDict,
        from: &dyn StorageReader,
        cx: &LoadCx<'_>,
    ) -> Result<FromTemplate> {
        let any: &dyn Any = from;
        let lost = || StrategyError::Internal("another strategy has opened the checkpoint".into());
        let unread = any.downcast_ref::<Unread>().ok_or_else(lost);
        let own = match (unread, cx.comm.is_coordinator()) {
            (Err(e), _) => Err(e),
            (Ok(_), false) => Ok(None),
            (Ok(unread), true) => self.base.open(unread.cx()).await.map(Some),
        };
        let part = match &own {
            Ok(_) => specs(template),
            Err(e) => Err(cause(e)),
        };
        let source = own.as_ref().ok().and_then(Option::as_ref);
        let agreed = cx.comm.all_reduce("plan", part, |all: Vec<Specs>| {
            let specs = merged(all)?;
            let stored =
                source.ok_or_else(|| Cause::new(ErrorKind::Internal, "nothing is open"))?;
            specs
                .iter()
                .try_for_each(|(key, spec)| compared(key, spec, &**stored))?;
            Ok(Agreed {
                specs,
                columns: stored.reads_columns_together(),
            })
        });
        let agreed: Result<Agreed, _> = agreed.await;
        let Agreed { specs, columns } = match agreed {
            Ok(agreed) => agreed,
            Err(e) => {
                let own = own.err().filter(|_| cx.comm.size() == 1);
                return Err(own.unwrap_or_else(|| e.into()));
            }
        };
        let (metadata, numbers) = metadata(&specs, source.map(|s| &**s))?;
        let source = source.map(|source| (Arc::clone(source), numbers));
        Ok(FromTemplate::new(from, metadata, columns, source))
    }
}

/// What a template says of its tensors.
fn specs(template: &FlatStateDict) -> Result<Specs, Cause> {
    let mut out = Specs::new();
    for (path, leaf) in template {
        let Sharded::Tensor(t) = leaf else {
            let what = format!(
                "{path} is no tensor, and a load with one reader fills only tensors; leave it out"
            );
            return Err(Cause::new(ErrorKind::Invalid, what));
        };
        if t.flattened_range.is_some() {
            let what =
                format!("{path} is a flattened range, which a load with one reader does not fill");
            return Err(Cause::new(ErrorKind::Invalid, what));
        }
        let spec = (t.dtype, t.global_shape.clone());
        differs(&t.key, &spec, out.insert(t.key.to_string(), spec.clone()))?;
    }
    Ok(out)
}

fn differs(key: &str, spec: &(DType, Dims), other: Option<(DType, Dims)>) -> Result<(), Cause> {
    match other {
        Some(other) if other != *spec => {
            let what = format!(
                "{key} is {} {} in one leaf and {} {} in another",
                spec.0, spec.1, other.0, other.1
            );
            Err(Cause::new(ErrorKind::Invalid, what))
        }
        _ => Ok(()),
    }
}

fn merged(all: Vec<Specs>) -> Result<Specs, Cause> {
    let mut out = Specs::new();
    for (key, spec) in all.into_iter().flatten() {
        let other = out.get(&key).cloned();
        differs(&key, &spec, other)?;
        out.insert(key, spec);
    }
    Ok(out)
}

/// Fails if a tensor is not stored as the template says.
fn compared(
    key: &str,
    (dtype, shape): &(DType, Dims),
    from: &dyn StorageReader,
) -> Result<(), Cause> {
    from.permits(key).map_err(|e| cause(&e))?;
    let metadata = from.metadata();
    let Some(stored) = metadata.tensor(key) else {
        let near = metadata.near(key).join(", ");
        let what = match (metadata.object(key), near.is_empty()) {
            (Some(_), _) => format!("{key} is stored as an object, and a tensor is wanted"),
            (None, true) => format!("{key} is not stored"),
            (None, false) => format!("{key} is not stored; similar keys are: {near}"),
        };
        return Err(Cause::new(ErrorKind::NotFound, what));
    };
    if (stored.dtype(), stored.global_shape()) != (*dtype, shape.clone()) {
        let what = format!(
            "{key} is stored as {} {}, and {dtype} {shape} is wanted",
            stored.dtype(),
            stored.global_shape()
        );
        return Err(Cause::new(ErrorKind::Invalid, what));
    }
    if stored.chunk_count() > 1 || stored.original_shape().is_some() {
        let what = format!(
            "{key} is stored in {} chunks, and a load with one reader needs whole tensors; load it with `two_stage`",
            stored.chunk_count()
        );
        return Err(Cause::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}

/// The metadata that follow from the templates, and the stored chunk of each of their chunks.
fn metadata(
    specs: &Specs,
    from: Option<&dyn StorageReader>,
) -> Result<(Metadata, Vec<Option<ChunkId>>)> {
    let (mut builder, mut numbers) = (Metadata::builder(), Vec::new());
    for (key, (dtype, shape)) in specs {
        let id = builder.add_tensor(key, *dtype, shape, TensorProperties::default())?;
        let whole = Region::whole(shape);
        if whole.is_empty() {
            continue;
        }
        builder.add_chunk(id, &whole)?;
        let stored = from.and_then(|from| from.metadata().tensor(key)?.chunk_by_index(0));
        numbers.push(stored.map(|(chunk, _)| chunk));
    }
    Ok((builder.finish(None)?, numbers))
}
