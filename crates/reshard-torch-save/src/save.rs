//! The save strategy: the pipeline of any format, with a planner around the caller's.

use crate::{
    NAME, dicts,
    names::{WEIGHTS, is_file, last_part},
    planner::{Target, WholeTensors},
    told::Asked,
    writer::TorchSaveWriter,
};
use async_trait::async_trait;
use reshard_model::{Dialect, FlatStateDict};
use reshard_policy::max_file_bytes;
use reshard_storage::PlaceKind;
use reshard_strategy::{
    BackendVersion, Capabilities, Planned, PreparedSave, Result, SaveCx, SaveShardedStrategy,
    StrategyError,
};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct TorchSaveStrategy {
    pub(crate) single_file: Option<bool>,
}

impl TorchSaveStrategy {
    /// What is written at a URL.
    fn target(&self, url: &str) -> Target {
        match self.capabilities().place(last_part(url)) {
            PlaceKind::File => Target::File(last_part(url).into()),
            _ => Target::Folder,
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
        let can = Capabilities::default()
            .with_dialects(&[Dialect::Dcp, Dialect::TensorsOnly])
            // Several files with an index hold only tensors.
            .with_objects(|place, by_policy| !by_policy || place == PlaceKind::File)
            .with_folder(true)
            .with_ties(true)
            .with_split_objects(true)
            // The dicts of several files are flat.
            .with_annotations(
                |place, by_policy| match by_policy && place != PlaceKind::File {
                    true => &[],
                    false => dicts::KINDS,
                },
            );
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
        if cx.options.rank_local {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: "a rank-local checkpoint, because a file holds whole tensors,".into(),
            });
        }
        let target = self.target(cx.url);
        let mut cx = cx.clone();
        let asked = Asked::default();
        let takes_folder = matches!(target, Target::Folder);
        // In a folder the planner asks the policy, which places whole tensors, not the pieces of ranks. For a single file only the limit
        // of a policy matters, which the pipeline checks.
        let policy = match takes_folder {
            true => cx.policy.take(),
            false => None,
        };
        let limit = policy.as_deref().map(max_file_bytes).transpose()?.flatten();
        let prefix = match &target {
            Target::File(name) => name.clone(),
            Target::Folder => WEIGHTS.into(),
        };
        cx.planner = Arc::new(WholeTensors {
            base: cx.planner,
            target,
            policy,
            limits: cx.options.policy_limits,
            asked: Arc::clone(&asked),
            paths: cx.planner_data.clone(),
            empty: cx.empty_dicts.clone(),
        });
        let writer = TorchSaveWriter {
            file: prefix,
            takes_folder,
            asked,
            limit,
        };
        Planned::new(writer).prepare(state, &cx).await
    }
}
