//! What ranks declare makes up tensors and arrays, by Megatron Core's verdicts.

use reshard_model::{
    DType, Dims, FlatStateDict, Path, Region, Sharded, ShardedObject, ShardedTensor, Value,
};
use reshard_plan::{Declared, PlanError, Problem, validate_sharding_integrity};
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
    let file = include_str!("../../../reshard-model/tests/data/vectors_012.json");
    let file: Json = serde_json::from_str(file).unwrap();
    let all = file["vectors"].as_array().unwrap().iter();
    let mut seen = 0;
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
            // The key is named, and a rank or a part.
            assert!(
                e.to_string().contains("t") || e.to_string().contains("o/shard"),
                "{e}"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 23);
}

/// Megatron Core's test of flattened tensors: eight ranks hold ranges of the four chunks of a tensor.
fn flattened() -> Vec<Declared> {
    let rank = |rank: u64| {
        let (chunk, half) = (rank / 2, rank % 2);
        let mut t =
            ShardedTensor::declare("flexible", DType::Float32, &[3, 4], &[(0, chunk, 4)], 0)
                .unwrap();
        t.flattened_range = Some(if half == 0 { 0..5 } else { 5..12 });
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
    // Not covered.
    insta::assert_snapshot!(said(&[1]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: the flattened ranges of chunk [0:3, 0:4] leave out its elements 5:12");
    insta::assert_snapshot!(said(&[0]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: the flattened ranges of chunk [0:3, 0:4] leave out its elements 0:5");
    // An invalid pattern: nobody has the chunk.
    insta::assert_snapshot!(said(&[4, 5]).unwrap_err(), @"the ranks' pieces don't make a checkpoint: flexible: no chunk covers [6:9, 0:4] of shape [12, 4]");
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
      a: [0:2] has 3 main replicas, on ranks 0, 1, 2; give all but one another replica_id
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
    let holes = |p: &&Problem| matches!(p, Problem::Hole { .. });
    assert_eq!(problems.0.iter().filter(holes).count(), 20);
    let left = (1u128 << 63) - 2 - 20;
    assert!(matches!(problems.0.last(), Some(Problem::More { count, .. }) if *count == left));
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
