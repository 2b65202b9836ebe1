//! The suites that every strategy has to pass, except that of properties: a file has room for `requires_grad` alone.

use async_trait::async_trait;
use reshard_model::FlatStateDict;
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_policy::{AllInOne, MaxShardSize, Then};
use reshard_strategy::{
    BackendVersion, Capabilities, PreparedSave, Result, SaveCx, SaveShardedConfig,
    SaveShardedStrategy, testkit,
};
use reshard_torch_save::{TorchSaveConfig, TorchSaveLoadConfig};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Saves with a policy that makes several files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InFiles(pub(crate) u64);

#[derive(Debug)]
struct InFilesSave {
    base: Arc<dyn SaveShardedStrategy>,
    bytes: u64,
}

#[typetag::serde(name = "torch_save_in_files")]
impl SaveShardedConfig for InFiles {
    fn build(&self) -> Result<Arc<dyn SaveShardedStrategy>> {
        let base = TorchSaveConfig::default().build()?;
        let bytes = self.0;
        Ok(Arc::new(InFilesSave { base, bytes }))
    }
}

#[async_trait]
impl SaveShardedStrategy for InFilesSave {
    fn key(&self) -> BackendVersion {
        self.base.key()
    }

    /// Several files hold only tensors.
    fn can_handle_sharded_objects(&self) -> bool {
        false
    }

    fn capabilities(&self) -> Capabilities {
        self.base.capabilities()
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        let mut cx = cx.clone();
        // Whatever ranks have the pieces, the files are the same.
        let gathered = AllInOne::new().gather();
        cx.policy = Some(Arc::new(Then::new(gathered, MaxShardSize::new(self.bytes))));
        self.base.prepare(state, &cx).await
    }
}

/// One file in a folder, and several with an index. That a place is one file is decided by its name: the tests of the facade have it.
fn forms() -> Vec<Box<dyn SaveShardedConfig>> {
    vec![
        Box::new(TorchSaveConfig::default()),
        Box::new(TorchSaveConfig::default().with_single_file(false)),
        Box::new(InFiles(700)),
        Box::new(InFiles(1 << 30)),
    ]
}

#[test]
fn the_strategies_keep_their_contract() {
    for save in forms() {
        testkit::save_load_contract(&*save, &TorchSaveLoadConfig::default());
    }
}

#[test]
fn planners_work_with_the_format() {
    let load = TorchSaveLoadConfig::default();
    for save in forms() {
        testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &*save, &load);
        testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &*save, &load);
    }
}
