//! Saves and loads of Zarr v3.

use super::{files, flat, load, numbers, open, piece, place, store, wanted};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{DType, Dialect, Region, ShardedTensor, Tensor};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_storage::{IfExists, Progress, Store};
use reshard_strategy::{
    Damage, LoadShardedStrategy, OpenCx, Result, Saved, VerifyReport,
    testkit::{self, Rank, save_on_ranks},
};
use reshard_zarr::{Zarr3Config, Zarr3LoadConfig};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

type Files = BTreeMap<String, Vec<u8>>;

pub(super) fn config(inner: u64) -> Zarr3Config {
    Zarr3Config::default().with_inner_chunk(inner)
}

fn try_save(
    inner: u64,
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Saved>> {
    let rank = |leaves| Rank {
        strategy: Arc::new(config(inner).into()),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: flat(leaves),
    };
    save_on_ranks(
        store,
        IfExists::Refuse,
        ranks.into_iter().map(rank).collect(),
    )
}

fn saved(inner: u64, ranks: Vec<Vec<ShardedTensor>>) -> Files {
    let place = store();
    for rank in try_save(inner, &place, ranks) {
        rank.unwrap();
    }
    files(&place)
}

fn verified(files: &Files) -> VerifyReport {
    block_on(open(&place(files), Dialect::Dcp).verify(true, &Progress::none())).unwrap()
}

fn json_of(files: &Files, name: &str) -> Value {
    serde_json::from_slice(&files[name]).unwrap()
}

#[test]
fn the_strategies_keep_their_contract() {
    testkit::save_load_contract(&Zarr3Config::default(), &Zarr3LoadConfig::default());
}

#[test]
fn nothing_of_the_metadata_is_lost() {
    testkit::metadata_contract(&config(16), &Zarr3LoadConfig::default());
}

#[test]
fn planners_work_with_the_format() {
    let (save, load) = (config(64), Zarr3LoadConfig::default());
    testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
    testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
}

/// Two ranks with the rows of one array each, and one small array in groups.
fn two_ranks() -> Files {
    let half = |rank: u64| {
        let mut leaves = vec![piece("w", &[8, 3], Region::new([4 * rank, 0], [4, 3]))];
        if rank == 1 {
            leaves.push(piece("a/b/v", &[2], Region::whole(&[2])));
        }
        leaves
    };
    saved(24, vec![half(0), half(1)])
}

#[test]
fn a_group_has_an_array_for_each_key_and_a_shard_for_each_piece() {
    let files = two_ranks();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    let want = [
        "a/b/v/c/0",
        "a/b/v/zarr.json",
        "a/b/zarr.json",
        "a/zarr.json",
        "reshard-zarr3.json",
        "w/c/0/0",
        "w/c/1/0",
        "w/zarr.json",
        "zarr.json",
    ];
    assert_eq!(names, want);
    let w = json_of(&files, "w/zarr.json");
    assert_eq!(
        (&w["shape"], &w["data_type"], &w["fill_value"]),
        (&json!([8, 3]), &json!("int32"), &json!(0))
    );
    assert_eq!(
        w["chunk_grid"]["configuration"]["chunk_shape"],
        json!([4, 3])
    );
    assert_eq!(
        w["codecs"][0]["configuration"]["chunk_shape"],
        json!([2, 3])
    );
    assert_eq!(json_of(&files, "a/zarr.json")["node_type"], "group");
    let root = json_of(&files, "zarr.json");
    let nodes = &root["consolidated_metadata"]["metadata"];
    assert_eq!(nodes["w"], w);
    let paths: Vec<&String> = nodes.as_object().unwrap().keys().collect();
    assert_eq!(paths, ["a", "a/b", "a/b/v", "w"]);

    // Elements in row-major order, then where the two inner chunks are, then the checksum of that.
    let mut shard: Vec<u8> = (12..24i32).flat_map(i32::to_le_bytes).collect();
    let index: Vec<u8> = [0u64, 24, 24, 24]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    shard.extend(&index);
    shard.extend(super::arrays::crc32c(&index).to_le_bytes());
    assert_eq!(files["w/c/1/0"], shard);
}

#[test]
fn what_reshard_wrote_is_checked_by_its_own_checksums() {
    let sound = two_ranks();
    let report = verified(&sound);
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!((report.items, report.bytes), (5, 104));
    let damaged = |change: &dyn Fn(&mut Files)| -> Damage {
        let mut files = sound.clone();
        change(&mut files);
        let mut report = verified(&files);
        assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
        report.damage.remove(0)
    };
    let found = damaged(&|files| files.get_mut("w/c/1/0").unwrap()[30] ^= 1);
    assert_eq!(
        (found.file.as_deref(), found.offset),
        (Some("w/c/1/0"), Some(24))
    );
    assert!(found.what.contains("CRC-32"), "{found}");
    let found = damaged(&|files| drop(files.remove("a/b/v/c/0")));
    assert!(found.what.contains("is missing"), "{found}");
    let found = damaged(&|files| files.get_mut("w/zarr.json").unwrap().push(b' '));
    assert!(
        found.what.contains("not the one that was written"),
        "{found}"
    );
    let found = damaged(&|files| *files.get_mut("w/c/0/0").unwrap().last_mut().unwrap() ^= 1);
    assert!(found.what.contains("CRC-32C of the index"), "{found}");
}

#[test]
fn types_of_every_size_come_back() {
    let leaf = |dtype: DType| {
        let bytes: Vec<u8> = (0..6 * dtype.size()).map(|n| (n % 2) as u8).collect();
        let tensor = Tensor::new(dtype, &[2, 3], bytes).unwrap();
        ShardedTensor::region_of(dtype.name(), dtype, &[2, 3], Region::whole(&[2, 3]))
            .with_data(tensor)
    };
    let dtypes: Vec<DType> = DType::ALL
        .iter()
        .copied()
        .filter(|d| *d != DType::Float4E2M1FnX2)
        .collect();
    let files = saved(8, vec![dtypes.iter().map(|d| leaf(*d)).collect()]);
    let want = |d: &DType| ShardedTensor::region_of(d.name(), *d, &[2, 3], Region::whole(&[2, 3]));
    let found = load(&place(&files), vec![dtypes.iter().map(want).collect()]).remove(0);
    for (dtype, found) in dtypes.iter().zip(found) {
        let want: Vec<u8> = (0..6 * dtype.size()).map(|n| (n % 2) as u8).collect();
        assert_eq!(found.to_bytes(), want, "{dtype}");
    }
    let place = store();
    let packed = try_save(8, &place, vec![vec![leaf(DType::Float4E2M1FnX2)]]).remove(0);
    let e = packed.map(drop).unwrap_err().to_string();
    assert!(e.contains("zarr3") && e.contains("float4_e2m1fn_x2"), "{e}");
}

#[test]
fn an_array_in_the_way_of_shards_is_named() {
    let leaves = vec![
        piece("w", &[2], Region::whole(&[2])),
        piece("w/c/x", &[2], Region::whole(&[2])),
    ];
    let e = try_save(8, &store(), vec![leaves])
        .remove(0)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(e.contains("w/c"), "{e}");
}

#[test]
fn the_place_is_recognised_by_its_root_group() {
    let strategy = LoadShardedStrategy::new(Zarr3LoadConfig::default());
    let store = place(&two_ranks());
    let reader = block_on(strategy.open(&OpenCx::new(Arc::clone(&store)))).unwrap();
    assert_eq!(reader.key().to_string(), "zarr3/1");
    let top = block_on(reshard_storage::StoreExt::top(&*store)).unwrap();
    assert_eq!(
        strategy.info().detect(&top),
        reshard_strategy::Detection::Yes
    );
    let v2 = LoadShardedStrategy::new(reshard_zarr::ZarrLoadConfig::default());
    assert_eq!(v2.info().detect(&top), reshard_strategy::Detection::No);
}

/// Cuts along each axis.
fn cuts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prop::collection::vec(1u64..5, 1..4), 0..3)
}

/// The boxes between cuts.
fn boxes(cuts: &[Vec<u64>]) -> Vec<Region> {
    let mut out = vec![Region::default()];
    for parts in cuts {
        let mut next = Vec::new();
        for region in &out {
            let mut at = 0;
            for n in parts {
                let mut region = region.clone();
                region.offsets.push(at);
                region.lengths.push(*n);
                next.push(region);
                at += n;
            }
        }
        out = next;
    }
    out
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn any_pieces_of_any_ranks_are_loaded_by_any_ranks(
        (saved_cuts, loaded_cuts) in cuts().prop_flat_map(|cuts| {
            let shape: Vec<u64> = cuts.iter().map(|parts| parts.iter().sum()).collect();
            let other = shape.into_iter().map(|n| (1..=n).prop_map(move |at| if at == n { vec![n] } else { vec![at, n - at] })).collect::<Vec<_>>();
            (Just(cuts), other)
        }),
        ranks in 1usize..4, inner in prop::sample::select(vec![1u64, 8, 40, 1 << 20]),
    ) {
        let shape: Vec<u64> = saved_cuts.iter().map(|parts| parts.iter().sum()).collect();
        let mut of_ranks = vec![Vec::new(); ranks];
        for (n, region) in boxes(&saved_cuts).into_iter().enumerate() {
            of_ranks[n % ranks].push(piece("w", &shape, region));
        }
        let files = saved(inner, of_ranks);
        // A file is as long as the longest piece on each axis, so a regular grid has a file for each piece.
        let longest: Vec<u64> = saved_cuts.iter().filter_map(|parts| parts.iter().copied().max()).collect();
        let grid = json_of(&files, "w/zarr.json")["chunk_grid"].clone();
        prop_assert_eq!(&grid["configuration"]["chunk_shape"], &json!(longest));
        let is_regular = saved_cuts.iter().all(|parts| {
            let (last, others) = parts.split_last().unwrap();
            others.iter().all(|n| n == others.first().unwrap() && n >= last)
        });
        let stored = files.keys().filter(|name| name.starts_with("w/c")).count();
        if is_regular {
            prop_assert_eq!(stored, boxes(&saved_cuts).len());
        }
        let report = verified(&files);
        prop_assert!(report.damage.is_empty(), "{:?}", report.damage);
        let regions = boxes(&loaded_cuts);
        let leaves = regions.iter().map(|region| wanted("w", &shape, region.clone())).collect();
        let found = load(&place(&files), vec![leaves]).remove(0);
        for (found, region) in found.iter().zip(&regions) {
            prop_assert_eq!(found.to_vec::<i32>().unwrap(), numbers(&shape, region));
        }
    }
}
