//! Loads in which one rank of a group reads everything.

use crate::{
    group::Seat,
    planner::{Readers, Sharing},
};
use async_trait::async_trait;
use derive_setters::Setters;
use reshard_comm::ProcessGroup;
use reshard_model::{Data, FlatStateDict, Sharded};
use reshard_plan::ExchangeAlgo;
use reshard_strategy::{LoadCx, LoadLayer, LoadSetup, LoadShardedStrategy, Result, StrategyError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of a load in which the first rank of a group reads everything that its ranks want, and hands it to the others. It is Megatron
/// Core's `TwoStageDataParallelLoadShardedStrategy`, as a layer around any strategy.
///
/// ```json
/// { "format": "torch_dist", "layers": [{ "type": "two_stage", "data_parallel_group": "dp" }] }
/// ```
///
/// Leaves without data get memory. While one part is handed on, the next is read, and the one before is copied to devices.
/// [`Loaded::exchange`](reshard_strategy::Loaded::exchange) says how long each took.
#[derive(Clone, Debug, Serialize, Deserialize, Setters)]
#[setters(strip_option)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TwoStageLoad {
    /// The name of the sub-group; all ranks without. A load gets it by `sub_group`. The default is none.
    #[setters(into)]
    pub data_parallel_group: Option<String>,
    /// Whether the load splits a group of its own off the group of all ranks, so that its messages don't mix with those of the job. The
    /// default is yes.
    pub cpu_transfer: bool,
    /// How many bytes may be on their way on a rank, between storage and its state. A piece that is larger is alone on its way. If the state
    /// has leaves on devices, up to an eighth is what is in copies to devices.
    pub bytes_in_flight: u64,
}

impl Default for TwoStageLoad {
    fn default() -> Self {
        Self {
            data_parallel_group: None,
            cpu_transfer: true,
            bytes_in_flight: 64 << 20,
        }
    }
}

/// Copies to devices that are shorter than this take longer than they save.
const LEAST_AHEAD: u64 = 16 << 10;

impl TwoStageLoad {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the layer around a strategy, or around a format.
    pub fn around(self, strategy: impl Into<LoadShardedStrategy>) -> LoadShardedStrategy {
        strategy.into().layer(self)
    }
}

impl TwoStageLoad {
    /// What the load needs before it begins: the rank's place, and a group of its own.
    async fn prepare(&self, cx: &LoadCx<'_>) -> Result<(Seat, Option<Arc<dyn ProcessGroup>>)> {
        let name = self.data_parallel_group.as_deref();
        let seat = Seat::find("two_stage", name, cx).await?;
        if !self.cpu_transfer || cx.comm.size() == 1 {
            return Ok((seat, None));
        }
        let own = cx.comm.split("plan", Some(0)).await?;
        let lost = || StrategyError::Internal("a rank got no group of its own".into());
        Ok((seat, Some(own.ok_or_else(lost)?)))
    }

    /// How many of the bytes in flight are on their way between ranks, and how many between host and device.
    fn shares(&self, template: &FlatStateDict, copy_ahead: u64) -> (u64, u64) {
        let is_on_device = |leaf: &Sharded| matches!(leaf, Sharded::Tensor(t) if matches!(t.data, Data::Device(_)));
        if !template.values().any(is_on_device) {
            return (self.bytes_in_flight, copy_ahead);
        }
        let ahead = copy_ahead.min((self.bytes_in_flight / 8).max(LEAST_AHEAD));
        (self.bytes_in_flight.saturating_sub(ahead), ahead)
    }
}

#[typetag::serde(name = "two_stage")]
#[async_trait]
impl LoadLayer for TwoStageLoad {
    async fn set_up(
        &self,
        mut setup: LoadSetup,
        template: &FlatStateDict,
        cx: &LoadCx<'_>,
    ) -> Result<LoadSetup> {
        let (seat, group) = self.prepare(cx).await?;
        let options = &mut setup.options;
        (options.exchange_memory, options.copy_ahead) = self.shares(template, options.copy_ahead);
        let planner = Arc::new(Sharing {
            base: setup.planner,
            seat,
            readers: Readers::First,
            algo: ExchangeAlgo::Broadcast,
            kept: None,
        });
        Ok(LoadSetup {
            planner,
            group,
            ..setup
        })
    }
}
