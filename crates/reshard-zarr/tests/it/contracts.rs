//! The suites that every strategy has to pass.

use reshard_parallel::{FullyParallelLoad, FullyParallelSave, TwoStageLoad};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_strategy::testkit;
use reshard_zarr::{ZarrConfig, ZarrLoadConfig};

#[test]
fn the_strategies_keep_their_contract() {
    testkit::save_load_contract(&ZarrConfig::default(), &ZarrLoadConfig::default());
}

#[test]
fn nothing_of_the_metadata_is_lost() {
    testkit::metadata_contract(&ZarrConfig::default(), &ZarrLoadConfig::default());
}

#[test]
fn planners_work_with_the_format() {
    let (save, load) = (ZarrConfig::default(), ZarrLoadConfig::default());
    testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
    testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
}

#[test]
fn the_wrappers_keep_the_contract_around_the_format() {
    let save = FullyParallelSave::new(ZarrConfig::default());
    testkit::save_load_contract(&save, &ZarrLoadConfig::default());
    testkit::save_load_contract(&save, &FullyParallelLoad::new(ZarrLoadConfig::default()));
    testkit::save_load_contract(&save, &TwoStageLoad::new(ZarrLoadConfig::default()));
}
