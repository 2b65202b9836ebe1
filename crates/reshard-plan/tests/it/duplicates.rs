//! Leaves of one rank that hold one piece.

use crate::{
    cuts::{flat, save},
    save::bytes,
};
use reshard_model::{
    DType, Data, DeviceBuffer, DeviceTensor, ErrorKind, FlatStateDict, Path, Payload, Region,
    Sharded, ShardedObject, ShardedTensor, Tensor, TensorSource, Value,
    testkit::{FakeDevice, LostDevice},
};
use reshard_plan::*;
use std::sync::Arc;

/// What is said of two leaves of rank 3, at `a` and `b`, that hold one piece.
fn duplicates(
    planner: DefaultSavePlanner,
    a: impl Into<Sharded>,
    b: impl Into<Sharded>,
) -> std::result::Result<usize, String> {
    let path = |steps: &[&str]| Path(steps.iter().map(|s| (*s).into()).collect());
    let state = FlatStateDict::from([(path(&["model", "a"]), a.into()), (path(&["b"]), b.into())]);
    let plan = planner.create_local_plan(&state, &SaveContext::new(3, false));
    plan.map(|p| p.items.len()).map_err(|e| {
        assert_eq!(e.kind(), ErrorKind::Invalid);
        e.to_string()
    })
}

#[test]
fn two_leaves_of_one_piece_with_different_elements_are_named_by_their_paths() {
    let said = duplicates(
        DefaultSavePlanner::DCP,
        bytes("w", [1, 2]),
        bytes("w", [1, 3]),
    )
    .unwrap_err();
    insta::assert_snapshot!(said, @"the ranks' pieces don't make a checkpoint: w: the leaves at model.a and b of rank 3 both hold [0:2], with different content; give one another key");
    let item = |n: i64| ShardedObject::item("o", Payload::Value(Value::Int(n)));
    let said = duplicates(DefaultSavePlanner::DCP, item(1), item(2)).unwrap_err();
    insta::assert_snapshot!(said, @"the ranks' pieces don't make a checkpoint: o: the leaves at model.a and b of rank 3 both hold it, with different content; give one another key");
}

#[test]
fn replicas_of_one_rank_that_are_equal_are_one_piece() {
    let whole = bytes("w", [1, 2]);
    assert_eq!(
        duplicates(DefaultSavePlanner::DCP, whole.clone(), whole.clone()),
        Ok(1)
    );
    assert_eq!(
        duplicates(
            DefaultSavePlanner::DCP,
            whole.clone(),
            bytes("w", [1, 2]).with_replica_id(1)
        ),
        Ok(1)
    );
    let item = || ShardedObject::item("o", Payload::Value(Value::Int(1)));
    assert_eq!(duplicates(DefaultSavePlanner::DCP, item(), item()), Ok(1));
    // A column, and the same as a row of its own.
    let column = Tensor::from_vec(&[2, 2], vec![1u8, 9, 2, 9])
        .unwrap()
        .narrow(&Region::new([0, 0], [2, 1]));
    let column = ShardedTensor::full("w", column);
    let row = ShardedTensor::full("w", Tensor::from_vec(&[2, 1], vec![1u8, 2]).unwrap());
    assert_eq!(duplicates(DefaultSavePlanner::DCP, column, row), Ok(1));
}

#[test]
fn duplicates_of_odd_shapes_and_numbers_are_one_piece() {
    let nan = || Tensor::from_vec(&[2], vec![f32::NAN, -0.0]).unwrap();
    let of = |t: Tensor| ShardedTensor::full("w", t);
    assert_eq!(
        duplicates(DefaultSavePlanner::DCP, of(nan()), of(nan())),
        Ok(1)
    );
    let zero = Tensor::from_vec(&[2], vec![f32::NAN, 0.0]).unwrap();
    assert!(duplicates(DefaultSavePlanner::DCP, of(nan()), of(zero)).is_err());
    let item = || ShardedObject::item("o", Payload::Value(Value::Float(f64::NAN)));
    assert_eq!(duplicates(DefaultSavePlanner::DCP, item(), item()), Ok(1));
    let scalar = |v: u8| of(Tensor::from_vec(&[], vec![v]).unwrap());
    assert_eq!(
        duplicates(DefaultSavePlanner::DCP, scalar(1), scalar(1)),
        Ok(1)
    );
    assert!(duplicates(DefaultSavePlanner::DCP, scalar(1), scalar(2)).is_err());
    // What has no elements has none to differ in, and none to write.
    let empty = || of(Tensor::from_vec::<u8>(&[0, 3], vec![]).unwrap());
    let path = |step: String| Path(vec![step.into()]);
    let state: FlatStateDict = (0..3)
        .map(|n| (path(n.to_string()), Sharded::Tensor(empty())))
        .collect();
    let (plans, metadata) = save(&DefaultSavePlanner::DCP, &[state]).unwrap();
    assert_eq!(
        (plans[0].items.len(), metadata.tensor("w").unwrap().shape()),
        (0, [0, 3].into())
    );
    // Many of one piece: each is compared with the first alone.
    let many = (0..50_000)
        .map(|n| (path(n.to_string()), Sharded::Tensor(of(nan()))))
        .collect();
    let plan = DefaultSavePlanner::DCP
        .create_local_plan(&many, &SaveContext::new(0, true))
        .unwrap();
    assert_eq!(plan.items.len(), 1);
}

#[test]
fn duplicates_on_a_device_are_compared_and_lazy_ones_are_not_read() {
    let device = |values: [u8; 2]| {
        let fake = FakeDevice::new(2);
        let d = DeviceTensor::new(DType::UInt8, &[2], fake).unwrap();
        d.fill("w", &Tensor::from_vec(&[2], values.to_vec()).unwrap())
            .unwrap();
        d
    };
    let leaf = |data: Data| ShardedTensor::template("w", DType::UInt8, &[2]).with_data(data);
    let on = |v| leaf(Data::Device(device(v)));
    assert_eq!(
        duplicates(DefaultSavePlanner::DCP, on([1, 2]), bytes("w", [1, 2])),
        Ok(1)
    );
    assert!(
        duplicates(DefaultSavePlanner::DCP, on([1, 2]), on([1, 3]))
            .unwrap_err()
            .contains("different content")
    );
    let lazy: Arc<dyn TensorSource> = Arc::new(device([1, 2]));
    let lazy = leaf(Data::Lazy(lazy));
    assert_eq!(
        duplicates(DefaultSavePlanner::DCP, lazy.clone(), lazy.clone()),
        Ok(1)
    );
    let said = duplicates(DefaultSavePlanner::DCP, lazy, bytes("w", [1, 2])).unwrap_err();
    assert!(said.contains("can't be compared"), "{said}");
}

#[test]
fn two_main_replicas_of_one_rank_are_named_by_their_paths() {
    let whole = || bytes("w", [1, 2]);
    let said = duplicates(DefaultSavePlanner::DEFAULT, whole(), whole()).unwrap_err();
    insta::assert_snapshot!(said, @"the ranks' pieces don't make a checkpoint: w: the leaves at model.a and b of rank 3 both hold [0:2], both as its main replica; give one another replica_id");
    assert_eq!(
        duplicates(
            DefaultSavePlanner::DEFAULT,
            whole(),
            whole().with_replica_id(1)
        ),
        Ok(1)
    );
    assert_eq!(
        duplicates(DefaultSavePlanner::DEFAULT, whole(), bytes("v", [1, 2])),
        Ok(2)
    );
}

#[test]
fn leaves_of_one_cell_of_objects_are_one_item() {
    let cell = |n: i64| ShardedObject::new("rng", n, &[2], &[1], 0).unwrap();
    for planner in [DefaultSavePlanner::DEFAULT, DefaultSavePlanner::DCP] {
        assert_eq!(duplicates(planner, cell(1), cell(2)), Ok(1));
    }
}

#[test]
fn cells_of_one_array_are_pieces_of_their_own() {
    let cell = |at: u64| ShardedObject::new("rng", 1, &[2], &[at], 0).unwrap();
    let item = || ShardedObject::item("rng/shard_0_2", Payload::Value(Value::Int(2)));
    for planner in [DefaultSavePlanner::DEFAULT, DefaultSavePlanner::DCP] {
        assert_eq!(duplicates(planner, cell(0), cell(1)), Ok(2));
        // An item that is called as a cell is stored is no leaf of that cell.
        for said in [
            duplicates(planner, cell(0), item()),
            duplicates(planner, item(), cell(0)),
        ] {
            assert!(
                said.unwrap_err()
                    .contains("the leaves at model.a and b of rank 3")
            );
        }
    }
}

#[test]
fn what_the_global_plan_says_of_two_tensors_is_left_to_it() {
    let leaf = |dtype, shape: &[u64], rows: u64| {
        ShardedTensor::region_of("w", dtype, shape, Region::new([0, 0], [rows, 2]))
    };
    let one = leaf(DType::Int8, &[4, 2], 2);
    for other in [
        leaf(DType::UInt8, &[4, 2], 2),
        leaf(DType::Int8, &[5, 2], 2),
        leaf(DType::Int8, &[4, 2], 3),
        leaf(DType::UInt8, &[5, 2], 2),
        leaf(DType::UInt8, &[5, 2], 3),
    ] {
        for planner in [DefaultSavePlanner::DEFAULT, DefaultSavePlanner::DCP] {
            assert_eq!(duplicates(planner, one.clone(), other.clone()), Ok(2));
            assert!(save(&planner, &[flat([one.clone(), other.clone()])]).is_err());
        }
    }
}

#[test]
fn two_views_of_one_buffer_are_compared() {
    let rows = Tensor::from_vec(&[3, 2], vec![1u8, 2, 3, 4, 1, 2]).unwrap();
    let row = |at| ShardedTensor::full("w", rows.narrow(&Region::new([at, 0], [1, 2])));
    assert_eq!(duplicates(DefaultSavePlanner::DCP, row(0), row(0)), Ok(1));
    assert_eq!(duplicates(DefaultSavePlanner::DCP, row(0), row(2)), Ok(1));
    assert!(
        duplicates(DefaultSavePlanner::DCP, row(0), row(1))
            .unwrap_err()
            .contains("different content")
    );
}

#[test]
fn one_view_of_one_device_is_not_read_to_be_compared() {
    let device: Arc<dyn DeviceBuffer> = Arc::new(LostDevice);
    let leaf = |at: u64| {
        let all = DeviceTensor::new(DType::UInt8, &[8], Arc::clone(&device)).unwrap();
        let view = all.narrow(&Region::new([at], [2]));
        ShardedTensor::template("w", DType::UInt8, &[2]).with_data(Data::Device(view))
    };
    assert_eq!(duplicates(DefaultSavePlanner::DCP, leaf(0), leaf(0)), Ok(1));
    let path = |step: &str| Path(vec![step.into()]);
    let state = FlatStateDict::from([(path("a"), leaf(0).into()), (path("b"), leaf(2).into())]);
    let e = DefaultSavePlanner::DCP
        .create_local_plan(&state, &SaveContext::new(0, true))
        .unwrap_err();
    assert!(
        e.to_string().contains("lost:0"),
        "another view has to be read: {e}"
    );
}
