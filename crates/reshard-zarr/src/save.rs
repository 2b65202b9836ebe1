//! The save strategy: the pipeline of any format, with a planner around the caller's.

use crate::{form::Form, planner::ByChunks, writer::ZarrWriter};
use async_trait::async_trait;
use reshard_model::FlatStateDict;
use reshard_strategy::{
    BackendVersion, Capabilities, Planned, PreparedSave, Result, SaveCx, SaveShardedStrategy,
    StrategyError,
};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct ZarrSave {
    form: Form,
    planned: Planned<ZarrWriter>,
}

impl ZarrSave {
    pub(crate) fn new(form: Form) -> Self {
        Self {
            form,
            planned: Planned::new(ZarrWriter(form)),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the pipeline
impl SaveShardedStrategy for ZarrSave {
    fn key(&self) -> BackendVersion {
        self.planned.key()
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.planned.can_handle_sharded_objects()
    }

    fn capabilities(&self) -> Capabilities {
        self.planned.capabilities()
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        if cx.options.rank_local {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: "a rank-local checkpoint, because ranks may share a chunk,".into(),
            });
        }
        let mut cx = cx.clone();
        cx.planner = Arc::new(ByChunks {
            base: cx.planner,
            form: self.form,
        });
        self.planned.prepare(state, &cx).await
    }
}
