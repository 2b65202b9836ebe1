//! What ranks declare makes up tensors and arrays, by Megatron Core's verdicts.

use reshard_model::testkit::{fixture_text, ours};
use reshard_model::{
    DType, Dims, FlatStateDict, Path, Region, Sharded, ShardedObject, ShardedTensor, Value,
};
use reshard_plan::{Declared, Fault, PlanError, Problem, validate_sharding_integrity};
use serde_json::Value as Json;

fn state(leaves: impl IntoIterator<Item = Sharded>) -> FlatStateDict {
    let path = |i: usize| Path(vec![i.to_string().into()]);
    let leaves = leaves.into_iter().enumerate();
    leaves.map(|(i, leaf)| (path(i), leaf)).collect()
}

fn declared(leaves: impl IntoIterator<Item = Sharded>) -> Declared {
    Declared::of(&state(leaves))
}

fn dims(v: &Json) -> Dims {
    v.as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect()
}

fn leaf(v: &Json) -> Sharded {
    let (key, replica) = (
        v["key"].as_str().unwrap(),
        v["rep"].as_u64().unwrap() as u32,
    );
    if v["object"] == true {
        let (shape, offset) = (dims(&v["global_shape"]), dims(&v["global_offset"]));
        let cell = ShardedObject::new(key, Value::None, &shape, &offset, replica).unwrap();
        return Sharded::Object(cell);
    }
    let prepended = v["prepend"].as_u64().unwrap_or(0) as usize;
    let offsets: Vec<(usize, u64, u64)> = (v["offsets"].as_array().unwrap().iter().map(dims))
        .map(|d| (d[0] as usize, d[1], d[2]))
        .collect();
    let dtype: DType = v["dtype"].as_str().unwrap_or("int32").parse().unwrap();
    let shape = dims(&v["shape"]);
    let mut t = ShardedTensor::declare(key, dtype, &shape, &offsets, prepended).unwrap();
    if let Some(flat) = v["flat"].as_array() {
        t.flattened_range = Some(flat[0].as_u64().unwrap()..flat[1].as_u64().unwrap());
    }
    Sharded::Tensor(t.with_replica_id(replica))
}

#[test]
fn verdicts_are_those_of_megatron_core() {
    let Some(file) = fixture_text("megatron/vectors_012.json") else {
        return;
    };
    let file: Json = serde_json::from_str(&file).unwrap();
    let all = file["vectors"].as_array().unwrap().iter();
    let (mut seen, mut refused) = (0, Vec::new());
    for v in all.filter(|v| v["fn"] == "validate_sharding_integrity") {
        let ranks = v["in"]["ranks"].as_array().unwrap().iter();
        let ranks: Vec<Declared> = ranks
            .map(|r| declared(r.as_array().unwrap().iter().map(leaf)))
            .collect();
        let ours = validate_sharding_integrity(&ranks);
        assert_eq!(
            ours.is_ok(),
            v.get("out").is_some(),
            "{}: {ours:?}",
            v["in"]
        );
        if let Err(e) = ours {
            let said = e.to_string();
            let (_, what) = said.split_once("checkpoint: ").unwrap();
            refused.push(format!("{}: {what}", v["in"]["case"].as_str().unwrap()));
        }
        seen += 1;
    }
    if !ours() {
        return;
    }
    assert_eq!(seen, 23);
    // The key is named, with the part and the ranks.
    insta::assert_snapshot!(refused.join("\n"), @r"
    two main replicas: t: [0:2] has 2 main replicas, on ranks 0, 1; give all but one another replica_id: `ShardedTensor::replicated(key, data, rank)` in place of `full` does it for what all ranks have
    no main replica: t: nobody is the main replica of [0:2], which ranks 0, 1 have; give one of them the replica_id 0
    hole: t: no chunk covers [2:4] of shape [6]
    hole covered by a non-main replica: t: nobody is the main replica of [2:4], which rank 1 has; give one of them the replica_id 0
    dtype mismatch: t is int32 on rank 0, but int64 on rank 1
    global shape mismatch: t has shape [4] on rank 0, but [6] on rank 1
    grid mismatch, same global shape: t is cut into [2] chunks of [2] on rank 0, but cut into [4] chunks of [1] on rank 1
    objects duplicated: o/shard_0_1 is written by ranks [0, 1]; give all ranks but one another replica_id, or each rank a key of its own
    objects missing: o/shard_2_3 is missing: no rank has this cell of the array of objects
    flat gap: t: the flattened ranges of chunk [0:2, 0:3] leave out its elements 3:4
    flat overlap: t: the flattened ranges of chunk [0:2, 0:3] on rank 0 and on rank 1 both have its elements 4:5
    flat incomplete end: t: the flattened ranges of chunk [0:2, 0:3] leave out its elements 5:6
    flat chunk missing: t: no chunk covers [2:4, 0:3] of shape [4, 3]
    flat no main replica in a chunk: t: nobody is the main replica of [0:2, 0:3], which rank 0 has; give one of them the replica_id 0
    flat and non-flat mixed: t is cut into [2, 1] chunks of [2, 3] and flattened on rank 0, but cut into [2, 1] chunks of [2, 3] on rank 1
    ");
}

/// Megatron Core's test of flattened tensors: a tensor of shape (6, 6) in chunks of a row. Ranks 0 to 2 have one, two and three elements of the first
/// row, each other rank has a row.
fn flattened() -> Vec<Declared> {
    let rank = |rank: u64| {
        let row = rank.saturating_sub(2);
        let mut t =
            ShardedTensor::declare("flexible", DType::Float32, &[1, 6], &[(0, row, 6)], 0).unwrap();
        t.flattened_range = Some(match rank {
            0 => 0..1,
            1 => 1..3,
            2 => 3..6,
            _ => 0..6,
        });
        declared([Sharded::Tensor(t)])
    };
    (0..8).map(rank).collect()
}

#[test]
fn ranges_that_a_lost_rank_had_are_missed() {
    let said = |lost: &[usize]| {
        let kept = flattened()
            .into_iter()
            .enumerate()
            .filter(|(i, _)| !lost.contains(i));
        let ranks: Vec<Declared> = kept.map(|(_, rank)| rank).collect();
        validate_sharding_integrity(&ranks).map_err(|e| e.to_string())
    };
    assert_eq!(said(&[]), Ok(()));
    // Megatron Core: the ranges don't cover the whole shard.
    insta::assert_snapshot!(said(&[1]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: the flattened ranges of chunk [0:1, 0:6] leave out its elements 1:3");
    insta::assert_snapshot!(said(&[0]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: the flattened ranges of chunk [0:1, 0:6] leave out its elements 0:1");
    insta::assert_snapshot!(said(&[2]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: the flattened ranges of chunk [0:1, 0:6] leave out its elements 3:6");
    // An invalid access pattern: nobody has the chunk.
    insta::assert_snapshot!(said(&[4]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: no chunk covers [2:3, 0:6] of shape [6, 6]");
    insta::assert_snapshot!(said(&[0, 1, 2]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: no chunk covers [0:1, 0:6] of shape [6, 6]");
}

fn half(key: &str, at: u64, replica: u32) -> Sharded {
    let t = ShardedTensor::declare(key, DType::Float32, &[2], &[(0, at, 2)], 0).unwrap();
    Sharded::Tensor(t.with_replica_id(replica))
}

fn cell(key: &str, shape: u64, at: u64, replica: u32) -> Sharded {
    let cell = ShardedObject::new(key, Value::None, &[shape], &[at], replica).unwrap();
    Sharded::Object(cell)
}

#[test]
fn all_keys_are_named_with_their_parts_and_ranks() {
    let ranks = [
        vec![
            half("a", 0, 0),
            half("b", 0, 0),
            half("c", 0, 1),
            cell("o", 3, 0, 0),
            cell("p", 1, 0, 0),
        ],
        vec![
            half("a", 0, 0),
            half("b", 1, 0),
            half("c", 1, 0),
            cell("o", 3, 1, 1),
            cell("p", 1, 0, 0),
        ],
        vec![
            half("a", 0, 0),
            half("c", 0, 2),
            half("ok", 0, 0),
            half("ok", 1, 0),
        ],
    ]
    .map(declared);
    let e = validate_sharding_integrity(&ranks).unwrap_err();
    insta::assert_snapshot!(e, @r"
    the ranks' pieces don't make a checkpoint: 6 problems
      a: [0:2] has 3 main replicas, on ranks 0, 1, 2; give all but one another replica_id: `ShardedTensor::replicated(key, data, rank)` in place of `full` does it for what all ranks have
      a: no chunk covers [2:4] of shape [4]
      c: nobody is the main replica of [0:2], which ranks 0, 2 have; give one of them the replica_id 0
      o/shard_1_3 is missing: rank 1 has only a replica; give one of them the replica_id 0
      o/shard_2_3 is missing: no rank has this cell of the array of objects
      p/shard_0_1 is written by ranks [0, 1]; give all ranks but one another replica_id, or each rank a key of its own
    ");
}

#[test]
fn ranks_that_cut_or_flatten_differently_are_told_apart() {
    let mut flat = ShardedTensor::declare("w", DType::Int8, &[2], &[(0, 1, 2)], 0).unwrap();
    flat.flattened_range = Some(0..2);
    let plain = ShardedTensor::declare("w", DType::Int8, &[2], &[(0, 0, 2)], 0).unwrap();
    let irregular = ShardedTensor::region_of("w", DType::Int8, &[4], Region::new([2], [2]));
    let finer = ShardedTensor::declare("w", DType::Int8, &[1], &[(0, 2, 4)], 0).unwrap();
    let said = |other: ShardedTensor| {
        let ranks = [plain.clone(), other].map(|t| declared([Sharded::Tensor(t)]));
        let e = validate_sharding_integrity(&ranks).unwrap_err().to_string();
        e.split_once("checkpoint: ").unwrap().1.to_owned()
    };
    insta::assert_snapshot!(said(flat), @"w is cut into [2] chunks of [2] on rank 0, but cut into [2] chunks of [2] and flattened on rank 1");
    insta::assert_snapshot!(said(irregular), @"w is cut into [2] chunks of [2] on rank 0, but cut irregularly on rank 1");
    insta::assert_snapshot!(said(finer), @"w is cut into [2] chunks of [2] on rank 0, but cut into [4] chunks of [1] on rank 1");
}

/// The grid has more chunks than anybody could walk over.
#[test]
fn a_huge_grid_of_which_little_is_there_takes_a_moment() {
    let piece = |at: u64| {
        let of = 1 << 31;
        let cut = [(0, at, of), (1, at, of), (2, at, 2)];
        Sharded::Tensor(ShardedTensor::declare("w", DType::Int8, &[1, 1, 1], &cut, 0).unwrap())
    };
    let e = validate_sharding_integrity(&[declared([piece(0), piece(1)])]).unwrap_err();
    let PlanError::Save(problems) = e else {
        panic!("{e}")
    };
    let holes = |p: &&Problem| matches!(p.fault, Fault::Hole { .. });
    assert_eq!(problems.0.iter().filter(holes).count(), 20);
    let left = (1u128 << 63) - 2 - 20;
    assert!(
        matches!(problems.0.last(), Some(Problem { fault: Fault::More { count }, .. }) if *count == left)
    );
    let cells = [declared([cell("o", 1 << 60, 5, 0)])];
    assert!(validate_sharding_integrity(&cells).is_err());
}

/// Megatron Core divides by zero here.
#[test]
fn leaves_without_elements_are_no_fault() {
    let empty = ShardedTensor::declare("e", DType::Int8, &[0, 4], &[(1, 0, 2)], 0).unwrap();
    let whole = ShardedTensor::region_of("w", DType::Int8, &[4], Region::whole(&[4]));
    let nothing = ShardedTensor::region_of("w", DType::Int8, &[4], Region::new([4], [0]));
    let ranks = [vec![empty, whole], vec![nothing]]
        .map(|leaves| declared(leaves.into_iter().map(Sharded::Tensor)));
    validate_sharding_integrity(&ranks).unwrap();
}

/// Each rank has some of the chunks of one tensor, flattened or not: 100,000 leaves of one key, and as many of other keys.
#[test]
fn a_hundred_thousand_leaves_of_one_key_are_validated_quickly() {
    let leaves = 100_000u64;
    let of = |flat: bool| -> Vec<Declared> {
        let rank = |rank: u64| {
            let mine = (0..leaves).filter(|at| at % 100 == rank);
            declared(mine.map(|at| {
                let (row, rows) = (
                    if flat { at / 2 } else { at },
                    if flat { leaves / 2 } else { leaves },
                );
                let mut t = ShardedTensor::declare("w", DType::Int8, &[1, 4], &[(0, row, rows)], 0)
                    .unwrap();
                t.flattened_range = flat.then_some(if at % 2 == 0 { 0..1 } else { 1..4 });
                Sharded::Tensor(t)
            }))
        };
        (0..100).map(rank).collect()
    };
    // One by one these would be five billion comparisons each.
    validate_sharding_integrity(&of(false)).unwrap();
    validate_sharding_integrity(&of(true)).unwrap();
    // All ranges of one chunk, boxes that lie as they like, and cells of an array.
    let wide = (0..leaves).map(|at| {
        let mut t = ShardedTensor::declare("w", DType::Int8, &[leaves], &[], 0).unwrap();
        t.flattened_range = Some(at..at + 1);
        Sharded::Tensor(t)
    });
    validate_sharding_integrity(&[declared(wide)]).unwrap();
    let boxes = (0..leaves).map(|at| {
        let region = Region::new([at / 10 * 10, at % 10 * 3], [10, 3]);
        Sharded::Tensor(ShardedTensor::region_of(
            "w",
            DType::Int8,
            &[leaves, 30],
            region,
        ))
    });
    validate_sharding_integrity(&[declared(boxes)]).unwrap();
    let cells = (0..leaves).map(|at| cell("o", leaves, at, 0));
    validate_sharding_integrity(&[declared(cells)]).unwrap();
}
