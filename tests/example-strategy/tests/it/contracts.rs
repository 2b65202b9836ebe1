//! The suites that every strategy and every store has to pass.

use reshard_example::{ExampleConfig, ExampleLoadConfig};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_storage::{Stores, testkit::store_contract};
use reshard_strategy::testkit;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn the_strategies_keep_their_contract() {
    testkit::save_load_contract(&ExampleConfig::default(), &ExampleLoadConfig::default());
}

#[test]
fn nothing_of_the_metadata_is_lost() {
    testkit::metadata_contract(&ExampleConfig::default(), &ExampleLoadConfig::default());
}

#[test]
fn planners_work_with_the_format() {
    let (save, load) = (ExampleConfig::default(), ExampleLoadConfig::default());
    testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
    testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
}

#[test]
fn the_store_behind_the_scheme_keeps_its_contract() {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let stores = Stores::linked().unwrap();
    futures::executor::block_on(store_contract(|| {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        stores.open(&format!("example://contract-{n}")).unwrap()
    }));
}
