//! Variables are made of parts, and change as one.

use crate::{counted, cut, grid, splits, table};
use proptest::prelude::*;
use reshard_embedding::{Cut, Mirrored, PartitionedVariable, ShardedVariable, Tasks, slices_of};
use reshard_model::{DType, Dims, Region, Tensor, ValueTree};
use reshard_policy::partition::{FixedShardsPartitioner, PartitionSpec};

fn message<T: std::fmt::Debug, E: ToString>(result: Result<T, E>) -> String {
    result.unwrap_err().to_string()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn parts_together_are_the_whole_and_change_with_it(splits in splits(0..6)) {
        let mut v = grid(&splits);
        let whole = counted(v.shape());
        prop_assert_eq!(&v.to_tensor().unwrap(), &whole);
        v.assign_add(&whole).unwrap();
        v.assign_add(&whole).unwrap();
        v.assign_sub(&whole).unwrap();
        let doubled: Vec<i64> = whole.to_vec::<i64>().unwrap().iter().map(|x| 2 * x).collect();
        prop_assert_eq!(v.to_tensor().unwrap().to_vec::<i64>().unwrap(), doubled);
        v.assign(&whole).unwrap();
        prop_assert_eq!(v.to_tensor().unwrap(), whole);
    }

    #[test]
    fn parts_come_in_any_order_and_must_be_all(splits in splits(1..3), seed: u64, lost in any::<prop::sample::Index>()) {
        let v = grid(&splits);
        let mut parts: Vec<(Dims, Tensor)> =
            v.parts().iter().map(|p| (p.region().offsets.clone(), p.data().unwrap().clone())).collect();
        let n = parts.len();
        parts.sort_by_key(|(offsets, _)| offsets.iter().fold(seed, |h, o| (h ^ o).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let again = PartitionedVariable::from_parts("w", v.shape(), parts.clone()).unwrap();
        prop_assert_eq!(again.to_tensor().unwrap(), v.to_tensor().unwrap());
        prop_assert!(again.parts().is_sorted_by_key(|p| p.region().offsets.clone()));
        let (_, without) = parts.remove(lost.index(n));
        let incomplete = PartitionedVariable::from_parts("w", v.shape(), parts);
        prop_assert_eq!(incomplete.is_err(), without.nbytes() > 0 || n == 1);
    }
}

#[test]
fn each_part_is_made_with_its_own_offset_and_shape() {
    let mut asked = Vec::new();
    let spec = PartitionSpec::splits([[2, 0, 3].as_slice(), &[2]]);
    let v = ShardedVariable::create(
        "v",
        &[5, 2],
        DType::Float32,
        &spec,
        2,
        |full, offset, shape| {
            asked.push((full.to_vec(), offset.to_vec(), shape.to_vec()));
            Tensor::zeros("v", DType::Float32, shape)
        },
    );
    assert_eq!(
        v.unwrap()
            .parts()
            .iter()
            .map(|p| p.task())
            .collect::<Vec<_>>(),
        [0, 1, 0]
    );
    let want = [([0, 0], [2, 2]), ([2, 0], [0, 2]), ([2, 0], [3, 2])];
    assert_eq!(
        asked,
        want.map(|(offset, shape)| (vec![5, 2], offset.to_vec(), shape.to_vec()))
    );
}

#[test]
fn a_task_makes_its_own_parts_only() {
    let three = FixedShardsPartitioner::new(3);
    let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("v", DType::Int64, shape);
    let cut = Cut::Partitioner(&three);
    let mut v =
        ShardedVariable::create("v", &[6], DType::Int64, cut, Tasks::only(2, 1), zeros).unwrap();
    let here: Vec<bool> = v.parts().iter().map(|p| p.data().is_some()).collect();
    assert_eq!(here, [false, true, false]);
    // What lies here is read and changed, what does not is named.
    v.assign(&counted(&[6])).unwrap();
    assert_eq!(
        v.sparse_read(&[3, 2]).unwrap().to_vec::<i64>().unwrap(),
        [3, 2]
    );
    assert_eq!(
        message(v.sparse_read(&[3, 4])),
        "v: part 2 belongs to task 0 and has no data here"
    );
    assert!(v.scatter_add(&[2, 0], &counted(&[2])).is_err());
    assert!(v.to_tensor().is_err() && v.slice(&[]).is_err());
    assert!(v.sharded_tensors(0).is_err());
    assert_eq!(v.sharded_tensors(1).unwrap().len(), 1);
    assert_eq!(v.sharded_tensors(7).unwrap().len(), 0);
}

#[test]
fn memory_that_someone_else_holds_is_not_changed() {
    let mut v = table(&[2, 1], &[]);
    let shared = v.parts()[1].data().unwrap().clone();
    let e = message(v.assign(&counted(&[3])));
    assert!(e.contains("shared"), "{e}");
    assert!(v.scatter_add(&[0], &counted(&[1])).is_err());
    // also the part that nobody else holds stayed as it was
    assert_eq!(v.to_tensor().unwrap(), counted(&[3]));
    drop(shared);
    v.assign_add(&counted(&[3])).unwrap();
    assert_eq!(v.to_tensor().unwrap().to_vec::<i64>().unwrap(), [0, 2, 4]);
    let read_only = Tensor::new(DType::Int64, &[1], bytes::Bytes::from_static(&[0; 8])).unwrap();
    let mut v = ShardedVariable::from_parts("v", [counted(&[1]), read_only]).unwrap();
    assert!(message(v.assign(&counted(&[2]))).contains("read-only"));
}

#[test]
fn parts_of_one_buffer_are_changed_in_place_unless_they_overlap() {
    let flat = counted(&[6, 2]);
    let rows = |from: u64, n: u64| flat.narrow(&Region::new([from, 0], [n, 2]));
    let parts = [rows(0, 2), rows(2, 0), rows(2, 4)];
    let overlapping = [rows(0, 3), rows(2, 4)];
    let gaps = flat.narrow(&Region::new([0, 0], [6, 1]));
    drop(flat);
    let e = message(ShardedVariable::from_parts("v", [gaps]));
    assert!(e.contains("gaps"), "{e}");
    let mut v = ShardedVariable::from_parts("v", parts).unwrap();
    let mut other = ShardedVariable::from_parts("o", overlapping).unwrap();
    assert!(message(v.assign(&counted(&[6, 2]))).contains("shared"));
    drop(v);
    assert!(message(other.assign(&counted(&[7, 2]))).contains("overlap"));
    assert_eq!(
        other.to_tensor().unwrap().to_vec::<i64>().unwrap()[4..8],
        [4, 5, 4, 5]
    );
}

#[test]
fn values_of_another_shape_are_refused_before_anything_changes() {
    let mut v = table(&[2, 1], &[2]);
    for shape in [&[2, 2][..], &[4, 2], &[3, 1], &[3, 3], &[6], &[]] {
        let e = message(v.assign(&counted(shape)));
        assert!(e.contains("values of shape [3, 2] of int64"), "{e}");
    }
    assert!(
        v.assign(&Tensor::from_vec(&[3, 2], vec![0i32; 6]).unwrap())
            .is_err()
    );
    assert_eq!(v.to_tensor().unwrap(), counted(&[3, 2]));
}

#[test]
fn what_does_not_make_a_variable_is_refused_with_its_reason() {
    let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("v", DType::Int64, shape);
    let make = |shape: &[u64], spec: PartitionSpec, tasks: Tasks| {
        message(ShardedVariable::create(
            "v",
            shape,
            DType::Int64,
            &spec,
            tasks,
            zeros,
        ))
    };
    let parts = |n: &[u64]| PartitionSpec::partitions(n);
    assert!(make(&[4, 4], parts(&[1, 2]), 1.into()).contains("cut into 2 parts along axis 1"));
    assert!(make(&[4], parts(&[1, 2]), 1.into()).contains("2 axes for shape [4]"));
    assert!(make(&[], PartitionSpec::whole(0), 1.into()).contains("without axes"));
    assert!(make(&[4], parts(&[2]), 0.into()).contains("at least one task"));
    assert!(make(&[4], parts(&[2]), Tasks::only(2, 2)).contains("there are 2 tasks"));
    let wrong = |_: &[u64], _: &[u64], _: &[u64]| Tensor::zeros("v", DType::Int64, &[3]);
    let e = message(ShardedVariable::create(
        "v",
        &[4],
        DType::Int64,
        &parts(&[2]),
        1,
        wrong,
    ));
    assert!(
        e.contains("part 0 [0:2] on task 0 has shape [2] of int64, but was given [3]"),
        "{e}"
    );
    let e = message(PartitionedVariable::from_parts(
        "w",
        &[2],
        [([1].into(), counted(&[2]))],
    ));
    assert!(e.contains("[1:3] does not lie in shape [2]"), "{e}");
    let twice = [([0].into(), counted(&[2])), ([1].into(), counted(&[1]))];
    assert!(message(PartitionedVariable::from_parts("w", &[2], twice)).contains("overlap"));
}

#[test]
fn a_tensor_is_cut_into_parts_of_their_own_memory() {
    let whole = counted(&[5, 3]);
    let spec = PartitionSpec::partitions([2, 2]);
    let mut v =
        PartitionedVariable::create("w", &[5, 3], DType::Int64, &spec, 1, slices_of(&whole))
            .unwrap();
    v.assign_add(&whole).unwrap();
    assert_eq!(
        cut(&v.to_tensor().unwrap(), &[4, 2], &[1, 1])
            .to_vec::<i64>()
            .unwrap(),
        [28]
    );
    let e = PartitionedVariable::create("w", &[5, 4], DType::Int64, &spec, 1, slices_of(&whole));
    assert!(message(e).contains("[5, 3] for one of [5, 4]"));
}

#[test]
fn a_mirrored_variable_is_the_same_on_every_task_and_saved_once() {
    let mut calls = 0;
    let mut v = Mirrored::create("v", &[2], DType::Int64, 3, |shape| {
        calls += 1;
        Ok(counted(shape))
    })
    .unwrap();
    assert_eq!(calls, 1);
    v.assign_add(&counted(&[2])).unwrap();
    for task in 0..3 {
        let copy = v.parts()[task as usize].data().unwrap();
        assert_eq!(copy.to_vec::<i64>().unwrap(), [0, 2]);
        let [saved] = v.sharded_tensors(task).unwrap().try_into().unwrap();
        assert_eq!(saved.replica_id.is_main(), task == 0);
    }
    let one = Mirrored::create("v", &[2], DType::Int64, Tasks::only(3, 1), |shape| {
        Ok(counted(shape))
    })
    .unwrap();
    assert!(one.parts()[0].data().is_none());
    assert_eq!(one.to_tensor().unwrap(), counted(&[2]));
    assert!(Mirrored::create("v", &[2], DType::Int64, 3, |_| Ok(counted(&[3]))).is_err());
}

#[test]
fn templates_lend_the_memory_of_parts_and_fill_brings_it_back() {
    let mut v = table(&[2, 0, 1], &[]);
    let address = |v: &ShardedVariable| {
        v.parts()
            .iter()
            .map(|p| p.data().map(Tensor::buffer_id))
            .collect::<Vec<_>>()
    };
    let before = address(&v);
    let lent = v.templates(0);
    assert_eq!(lent.len(), 2, "an empty part is not in a checkpoint");
    assert!(v.to_tensor().is_err());
    let mut tensors: Vec<Tensor> = lent
        .into_iter()
        .map(|t| t.data.host().unwrap().clone())
        .collect();
    assert!(
        message(v.fill(0, tensors[..1].to_vec())).contains("1 tensors were given for the 2 parts")
    );
    tensors.reverse();
    assert!(v.fill(0, tensors.clone()).is_err());
    tensors.reverse();
    v.fill(0, tensors).unwrap();
    assert_eq!(address(&v), before);
    let mut loaded = ValueTree::new();
    assert!(
        message(v.restore_from(&mut loaded, "v", 0))
            .contains("0 tensors were given for the 2 parts")
    );
    loaded.insert("v", 1);
    assert!(message(v.restore_from(&mut loaded, "v", 0)).contains("not a list of tensors"));
}

#[test]
fn slots_lie_where_their_variable_lies() {
    let v = table(&[2, 0, 1], &[4]);
    let slot = v.like("table/momentum", DType::Float32).unwrap();
    assert_eq!(
        (slot.part_rows(), slot.dtype(), slot.name()),
        (vec![2, 0, 1], DType::Float32, "table/momentum")
    );
    assert!(slot.parts().iter().all(|p| p.data().is_none()));
}
