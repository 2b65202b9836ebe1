//! Loads whose replicated pieces are read by one rank of a group.

use crate::{
    group::Seat,
    planner::{Kept, Readers, Sharing},
};
use async_trait::async_trait;
use derive_setters::Setters;
use reshard_model::FlatStateDict;
use reshard_plan::ExchangeAlgo;
use reshard_strategy::{LoadCx, LoadLayer, LoadSetup, LoadShardedStrategy, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of a load in which each piece is read from storage by one rank of a group, which hands it to the others. It is Megatron Core's
/// `FullyParallelLoadStrategyWrapper`, as a layer around any strategy: `FullyParallelLoad::new().around(strategy)`.
///
/// ```json
/// { "format": "torch_dist", "layers": [{ "type": "fully_parallel", "group": "dp", "exchange": "gather_rounds" }] }
/// ```
///
/// The result is that of a load without it. Pieces are distributed by
/// [`distribute_shards_to_ranks`](crate::distribute_shards_to_ranks), with those last whose main replica is in another group. Objects are
/// spread by their number. Leaves keep their replica ids.
///
/// Ranks that want different regions of a chunk, which overlap or are columns of its rows, share reads, too: see
/// [`share_reads`](reshard_plan::share_reads).
///
/// # Memory
/// Ranks of one process fill each other's leaves, which takes no memory; this holds for torch_dist, and for what is neither cast nor transformed.
/// Otherwise a rank holds at most the `exchange_memory` of the load beside its state, or one piece if that is larger. With
/// [`GatherObject`](ExchangeAlgo::GatherObject) it holds all that it reads for others.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Setters)]
#[setters(strip_option)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FullyParallelLoad {
    /// The name of the sub-group whose ranks read for each other; all ranks without. A load gets it by `sub_group`.
    #[setters(into)]
    pub group: Option<String>,
    /// Whether the coordinator keeps the shared plans for the next load with a clone of these settings. They are used again if all ranks plan to
    /// read the same.
    pub cache: bool,
    /// How pieces are handed on. Only rounds and memory depend on it.
    pub exchange: ExchangeAlgo,
    #[serde(skip)]
    #[setters(skip)]
    kept: Arc<Kept>,
}

impl FullyParallelLoad {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the layer around a strategy, or around a format.
    pub fn around(self, strategy: impl Into<LoadShardedStrategy>) -> LoadShardedStrategy {
        strategy.into().layer(self)
    }
}

#[typetag::serde(name = "fully_parallel")]
#[async_trait]
impl LoadLayer for FullyParallelLoad {
    async fn set_up(
        &self,
        setup: LoadSetup,
        _: &FlatStateDict,
        cx: &LoadCx<'_>,
    ) -> Result<LoadSetup> {
        let seat = Seat::find("fully_parallel", self.group.as_deref(), cx).await?;
        let planner = Arc::new(Sharing {
            base: setup.planner,
            seat,
            readers: Readers::Distributed,
            algo: self.exchange,
            kept: self.cache.then(|| Arc::clone(&self.kept)),
        });
        Ok(LoadSetup { planner, ..setup })
    }
}
