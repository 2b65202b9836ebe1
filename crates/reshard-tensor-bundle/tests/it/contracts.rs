//! The suites that every strategy has to pass.

use super::{files, piece, save, store};
use reshard_model::Region;
use reshard_parallel::FullyParallelSave;
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_storage::IfExists;
use reshard_strategy::testkit::{self, Rank, numbered::flat, save_on_ranks};
use reshard_tensor_bundle::{TensorBundleConfig, TensorBundleLoadConfig};
use std::sync::Arc;

#[test]
fn the_strategies_keep_their_contract() {
    testkit::save_load_contract(
        &TensorBundleConfig::default(),
        &TensorBundleLoadConfig::default(),
    );
}

#[test]
fn nothing_of_the_metadata_is_lost() {
    testkit::metadata_contract(
        &TensorBundleConfig::default(),
        &TensorBundleLoadConfig::default(),
    );
}

#[test]
fn planners_work_with_the_format() {
    let (save, load) = (
        TensorBundleConfig::default(),
        TensorBundleLoadConfig::default(),
    );
    testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
    testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
}

#[test]
fn ranks_that_share_replicas_write_them_once() {
    let shape = [6, 4];
    let leaf = |replica| piece("w", &shape, Region::whole(&shape)).with_replica_id(replica);
    let (alone, shared) = (store(), store());
    save(&alone, vec![vec![leaf(0)]]);
    let rank = |replica| Rank {
        strategy: FullyParallelSave::new()
            .around(TensorBundleConfig::default())
            .into(),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: flat([leaf(replica)]),
    };
    let saved = save_on_ranks(&shared, IfExists::Refuse, (0..3).map(rank).collect());
    saved.into_iter().for_each(|rank| drop(rank.unwrap()));
    assert_eq!(files(&shared), files(&alone));
}
