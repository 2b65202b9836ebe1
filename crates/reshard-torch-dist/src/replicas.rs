//! Saves in which any rank with a replica may write it.

use crate::writer::TorchDistWriter;
use async_trait::async_trait;
use reshard_model::FlatStateDict;
use reshard_plan::{DefaultSavePlanner, Offer, SavePlanner};
use reshard_strategy::{
    BackendVersion, Capabilities, Planned, PreparedSave, Result, SaveCx, SaveShardedStrategy,
    StrategyError,
};
use std::{any::Any, sync::Arc};

/// The setting `keep_only_main_replica = false`.
#[derive(Debug)]
pub(crate) struct AnyReplica(pub(crate) Planned<TorchDistWriter>);

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the base
impl SaveShardedStrategy for AnyReplica {
    fn key(&self) -> BackendVersion {
        self.0.key()
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.0.can_handle_sharded_objects()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        let planner: &dyn Any = &*cx.planner;
        let Some(planner) = planner.downcast_ref::<DefaultSavePlanner>() else {
            let what = "keep_only_main_replica is a setting of the default planner; let your planner offer the replicas, and leave the setting out";
            return Err(StrategyError::Invalid(what.into()));
        };
        let mut planner = *planner;
        planner.offer = Offer::AllReplicas;
        let mut cx = cx.clone();
        cx.planner = Arc::new(planner) as Arc<dyn SavePlanner>;
        self.0.prepare(state, &cx).await
    }
}
