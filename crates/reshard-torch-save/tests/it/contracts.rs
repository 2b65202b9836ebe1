//! The suites that every strategy has to pass, except that of properties: a file has room for `requires_grad` alone.

use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_strategy::testkit;
use reshard_torch_save::{TorchSaveConfig, TorchSaveLoadConfig};

#[test]
fn the_strategies_keep_their_contract() {
    testkit::save_load_contract(&TorchSaveConfig::default(), &TorchSaveLoadConfig::default());
}

#[test]
fn planners_work_with_the_format() {
    let (save, load) = (TorchSaveConfig::default(), TorchSaveLoadConfig::default());
    testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
    testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
}
