//! The save strategy: the pipeline of any format, with a planner around the caller's.

use crate::{
    NAME,
    names::{WEIGHTS, is_file, last_part},
    planner::{Target, WholeTensors},
    writer::TorchSaveWriter,
};
use async_trait::async_trait;
use reshard_model::{Dialect, FlatStateDict};
use reshard_storage::PlaceKind;
use reshard_strategy::{
    BackendVersion, Capabilities, Planned, PreparedSave, Result, SaveCx, SaveShardedStrategy,
    StrategyError, agree,
};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct TorchSaveStrategy {
    pub(crate) single_file: Option<bool>,
}

impl TorchSaveStrategy {
    /// What is written at a URL. A policy can't decide on one file.
    fn target(&self, cx: &SaveCx<'_>) -> Result<Target> {
        let strategy = || self.key().to_string();
        if cx.rank_local {
            let what = "a rank-local checkpoint, because a file holds whole tensors,".into();
            let strategy = strategy();
            return Err(StrategyError::Unsupported { strategy, what });
        }
        let is_file = self.capabilities().place(last_part(cx.url)) == PlaceKind::File;
        match (is_file, &cx.policy) {
            (true, Some(_)) => {
                let what = format!(
                    "a sharding policy for the single file {}: save to a folder, or leave the policy out; that",
                    cx.url
                );
                let strategy = strategy();
                Err(StrategyError::Unsupported { strategy, what })
            }
            (true, None) => Ok(Target::File(last_part(cx.url).into())),
            (false, _) => Ok(Target::Folder),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the pipeline
impl SaveShardedStrategy for TorchSaveStrategy {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        true
    }

    /// The files of Megatron Core's dialect have no place in one file.
    fn capabilities(&self) -> Capabilities {
        let can = Capabilities::default().with_dialects(&[Dialect::Dcp, Dialect::TensorsOnly]);
        match self.single_file {
            Some(true) => can.with_places(|_| PlaceKind::File),
            Some(false) => can,
            None => can.with_places(|name| match is_file(name) {
                true => PlaceKind::File,
                false => PlaceKind::Folder,
            }),
        }
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        let target = agree(&cx.comm, "plan", self.target(cx)).await?;
        let mut cx = cx.clone();
        let prefix = match &target {
            Target::File(name) => name.clone(),
            Target::Folder => WEIGHTS.into(),
        };
        cx.planner = Arc::new(WholeTensors {
            base: cx.planner,
            target,
            // The policy places whole tensors, not the pieces of ranks.
            policy: cx.policy.take(),
            limits: cx.policy_limits,
            paths: cx.planner_data.clone(),
            empty: cx.empty_dicts.clone(),
        });
        let writer = TorchSaveWriter { file: prefix };
        Planned::new(writer).prepare(state, &cx).await
    }
}
