//! The save strategy: the pipeline of any format, with a planner around the caller's.

use crate::{planner::ByChunks, writer::ZarrWriter};
use async_trait::async_trait;
use reshard_model::FlatStateDict;
use reshard_strategy::{
    BackendVersion, Planned, PreparedSave, Result, SaveCx, SaveShardedStrategy, StrategyError,
};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct ZarrSave(Planned<ZarrWriter>);

impl ZarrSave {
    pub(crate) fn new() -> Self {
        Self(Planned::new(ZarrWriter))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the pipeline
impl SaveShardedStrategy for ZarrSave {
    fn key(&self) -> BackendVersion {
        self.0.key()
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.0.can_handle_sharded_objects()
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        if cx.rank_local {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: "a rank-local checkpoint, because ranks may share a chunk,".into(),
            });
        }
        let mut cx = cx.clone();
        cx.planner = Arc::new(ByChunks { base: cx.planner });
        self.0.prepare(state, &cx).await
    }
}
