//! The suites that every strategy has to pass.

use super::{files, flat, piece, save, store};
use reshard_model::{Region, ShardedTensor, testkit::one_in};
use reshard_parallel::FullyParallelSave;
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_storage::IfExists;
use reshard_strategy::testkit::{self, Rank, numbered::Unvalidated, save_on_ranks};
use reshard_zarr::{Zarr3Config, Zarr3LoadConfig, ZarrConfig, ZarrLoadConfig};

#[test]
fn the_strategies_keep_their_contract() {
    testkit::save_load_contract(&ZarrConfig::default(), &ZarrLoadConfig::default());
}

/// Shards have many inner chunks then, and each of them has a checksum of its own.
#[test]
fn the_strategies_keep_their_contract_with_small_inner_chunks() {
    let save = Zarr3Config::default().with_inner_chunk(16 * one_in(4) as u64);
    testkit::save_load_contract(&save, &Zarr3LoadConfig::default());
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

/// Replicas go to ranks of their own, and pieces that end within chunks too.
#[test]
fn ranks_that_share_a_save_write_what_one_rank_would() {
    let shape = [6, 4];
    let leaf = |rows: std::ops::Range<u64>, replica| ShardedTensor {
        axis_fragmentations: Some([2, 1].into()),
        allow_shape_mismatch: true,
        ..piece(
            "w",
            &shape,
            Region::new([rows.start, 0], [rows.end - rows.start, 4]),
        )
        .with_replica_id(replica)
    };
    let both = |replica| vec![leaf(0..2, replica), leaf(2..6, replica)];
    let (alone, shared) = (store(), store());
    save(&alone, vec![both(0)]);
    let rank = |replica| Rank {
        strategy: FullyParallelSave::new()
            .around(ZarrConfig::default())
            .into(),
        planner: std::sync::Arc::new(Unvalidated) as _,
        flat: flat(both(replica)),
    };
    let saved = save_on_ranks(&shared, IfExists::Refuse, (0..3).map(rank).collect());
    saved.into_iter().for_each(|rank| drop(rank.unwrap()));
    assert_eq!(files(&shared), files(&alone));
}

#[test]
fn a_broken_rule_is_named_with_the_place_where_it_is_written() {
    // What one format writes the other one does not read.
    let broken = std::panic::catch_unwind(|| {
        testkit::save_load_contract(&ZarrConfig::default(), &Zarr3LoadConfig::default());
    });
    let text = *broken.unwrap_err().downcast::<String>().unwrap();
    let begins = "the strategy breaks the rule `compatibility.others_are_refused`, which is written at `LoadShardedStrategy::check_compatibility`: ";
    assert!(text.starts_with(begins), "{text}");
}
