//! The suites that every strategy has to pass, except that of properties: a file has room for `requires_grad` alone.

use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_policy::{AllInOne, MaxShardSize, Then};
use reshard_strategy::{
    BackendVersion, Capabilities, Result, SaveCx, SaveFormat, SaveShardedStrategy, StorageWriter,
    StrategyError, testkit,
};
use reshard_torch_save::{TorchSaveConfig, TorchSaveLoadConfig};
use std::sync::Arc;

/// Saves with a policy that makes several files.
#[derive(Clone, Debug)]
pub(crate) struct InFiles(pub(crate) u64);

impl SaveFormat for InFiles {
    fn key(&self) -> BackendVersion {
        TorchSaveConfig::default().key()
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    /// Several files hold only tensors.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            no_sharded_objects: Some("save one file"),
            ..TorchSaveConfig::default().capabilities()
        }
    }

    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        let mut cx = cx.clone();
        if cx.policy.is_some() {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: "another sharding policy".into(),
            });
        }
        // Whatever ranks have the pieces, the files are the same.
        let gathered = AllInOne::new().gather();
        cx.policy = Some(Arc::new(Then::new(gathered, MaxShardSize::new(self.0))));
        TorchSaveConfig::default().writer(&cx)
    }
}

/// One file in a folder, and several with an index. That a place is one file is decided by its name: the tests of the facade have it.
fn forms() -> Vec<SaveShardedStrategy> {
    vec![
        TorchSaveConfig::default().into(),
        TorchSaveConfig::default().with_single_file(false).into(),
        InFiles(700).into(),
        InFiles(1 << 30).into(),
    ]
}

#[test]
fn the_strategies_keep_their_contract() {
    for save in forms() {
        testkit::save_load_contract(&save, &TorchSaveLoadConfig::default());
    }
}

#[test]
fn planners_work_with_the_format() {
    let load = TorchSaveLoadConfig::default();
    for save in forms() {
        testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
        testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
    }
}
