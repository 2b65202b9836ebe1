//! Loads in which one rank opens and reads the files for all.

mod description;
mod reader;

use crate::{
    group::Seat,
    planner::{Readers, Sharing},
};
use async_trait::async_trait;
use derive_setters::Setters;
use description::Description;
use reader::{Described, Unread};
use reshard_comm::Cause;
use reshard_model::{ErrorKind, FlatStateDict, Path, Sharded};
use reshard_plan::ExchangeAlgo;
use reshard_storage::StoreExt;
use reshard_strategy::{
    LoadCx, LoadLayer, LoadSetup, LoadShardedStrategy, OpenCx, Result, StorageReader,
    StrategyError, cause,
};
use serde::{Deserialize, Serialize};
use std::{any::Any, collections::BTreeSet, sync::Arc};

/// Settings of a load in which only the coordinator opens and reads the files. It sends the table of the checkpoint to the other ranks. They
/// plan by it, and get their parts from the coordinator. It is DCP's `BroadcastingTorchSaveReader` with its `DynamicMetaLoadPlanner`, around any
/// format.
///
/// ```json
/// { "format": "torch_save", "layers": [{ "type": "one_reader" }] }
/// ```
///
/// It is the innermost layer: the last of a list. Objects of the common strategy, and the common state itself, are read by every rank.
///
/// The result is that of a load without it: the planner decides about casts, strictness and other shapes. Only templates of tensors are
/// supported; a leaf that is no tensor is an error on every rank.
///
/// DCP broadcasts each tensor as a whole. Here a rank gets only its own part, in rounds of at most
/// [`bytes_in_flight`](Self::bytes_in_flight).
#[derive(Clone, Debug, Serialize, Deserialize, Setters)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OneReaderLoad {
    /// How many bytes may be on their way on a rank.
    pub bytes_in_flight: u64,
}

impl Default for OneReaderLoad {
    fn default() -> Self {
        Self {
            bytes_in_flight: 64 << 20,
        }
    }
}

impl OneReaderLoad {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the layer around a strategy, or around a format.
    pub fn around(self, strategy: impl Into<LoadShardedStrategy>) -> LoadShardedStrategy {
        strategy.into().layer(self)
    }
}

#[typetag::serde(name = "one_reader")]
#[async_trait]
impl LoadLayer for OneReaderLoad {
    /// Reads nothing: which rank this is, only the load knows.
    async fn open(
        &self,
        inner: &LoadShardedStrategy,
        cx: &OpenCx,
    ) -> Result<Arc<dyn StorageReader>> {
        if !inner.layers.is_empty() {
            let what = "`one_reader` decides who opens the files; put it innermost, as the last of the layers, and only once";
            return Err(StrategyError::Invalid(what.into()));
        }
        if cx.store.top().await?.is_empty() {
            return Err(StrategyError::NotACheckpoint {
                url: cx.store.url(),
                why: "nothing lies there".into(),
            });
        }
        Ok(Arc::new(Unread::new(inner.clone(), cx.clone())))
    }

    async fn set_up(
        &self,
        mut setup: LoadSetup,
        template: &FlatStateDict,
        cx: &LoadCx<'_>,
    ) -> Result<LoadSetup> {
        let guard = cx.comm.guard("a load with one reader");
        let described = describe(template, &*setup.reader, cx).await;
        guard.done();
        let planner = Arc::new(Sharing {
            base: setup.planner,
            seat: Seat {
                first: cx.comm.coordinator().0,
                number: cx.comm.rank().0,
            },
            readers: Readers::First,
            algo: ExchangeAlgo::default(),
            kept: None,
        });
        setup.options.exchange_memory = self.bytes_in_flight;
        Ok(LoadSetup {
            planner,
            reader: Arc::new(described?),
            ..setup
        })
    }
}

/// Opens the files on the coordinator, and sends the table of the checkpoint to all ranks.
async fn describe(
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Described> {
    let any: &dyn Any = from;
    let lost = || StrategyError::Internal("another strategy has opened the checkpoint".into());
    let unread = any.downcast_ref::<Unread>().ok_or_else(lost);
    let own = match (unread, cx.comm.is_coordinator()) {
        (Err(e), _) => Err(e),
        (Ok(_), false) => Ok(None),
        (Ok(unread), true) => unread.open().await.map(Some),
    };
    let part = match &own {
        Ok(_) => keys(template),
        Err(e) => Err(cause(e)),
    };
    let source = own.as_ref().ok().and_then(Option::as_ref);
    let described = cx
        .comm
        .all_reduce("plan", part, |all: Vec<BTreeSet<String>>| {
            let lost = || Cause::new(ErrorKind::Internal, "no checkpoint is open");
            Description::of(&**source.ok_or_else(lost)?, all.iter().flatten())
        });
    let described: Result<Description, _> = described.await;
    match (described, own) {
        (Ok(description), Ok(source)) => Described::new(from, description, source),
        // A rank that is alone keeps its own error, which says more.
        (Err(_), Err(own)) if cx.comm.size() == 1 => Err(own),
        (Err(e), _) => Err(e.into()),
        (Ok(_), Err(own)) => Err(own),
    }
}

/// The keys of a template of tensors.
fn keys(template: &FlatStateDict) -> Result<BTreeSet<String>, Cause> {
    let key = |(path, leaf): (&Path, &Sharded)| match leaf {
        Sharded::Tensor(t) => Ok(t.key.to_string()),
        Sharded::Object(_) => {
            let what = format!(
                "{path} is no tensor, and a load with one reader fills only tensors; leave it out"
            );
            Err(Cause::new(ErrorKind::Invalid, what))
        }
    };
    template.iter().map(key).collect()
}
