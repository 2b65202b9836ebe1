//! Scopes decide how variables are cut and where they go.

use proptest::prelude::*;
use reshard_embedding::{AnyVariable, Choice, Placement, Tasks, VariableScope};
use reshard_model::{DType, Result, Tensor};
use reshard_policy::partition::{FixedShardsPartitioner, PartitionSpec, Partitioner};

fn zeros(_: &[u64], _: &[u64], shape: &[u64]) -> Result<Tensor> {
    Tensor::zeros("v", DType::Float32, shape)
}

fn tasks(v: &AnyVariable) -> Vec<u32> {
    v.parts().iter().map(|p| p.task()).collect()
}

#[test]
fn round_robin_counts_over_all_variables() {
    let mut scope = VariableScope::new(2).with_partitioner(FixedShardsPartitioner::new(3));
    let mut make = |name, shape: &[u64]| {
        scope
            .variable(name, shape, DType::Float32, None, zeros)
            .unwrap()
    };
    assert_eq!(tasks(&make("emb", &[9, 2])), [0, 1, 0]);
    assert_eq!(tasks(&make("next", &[2])), [1, 0]); // no more parts than rows
    assert_eq!(tasks(&make("scalar", &[])), [1]);
    assert_eq!(tasks(&make("last", &[3])), [0, 1, 0]);
}

#[test]
fn by_bytes_the_emptiest_task_is_next() {
    let mut scope = VariableScope::new(2).with_placement(Placement::ByBytes);
    let mut make = |name, n: u64| {
        tasks(
            &scope
                .variable(name, &[n], DType::Float32, None, zeros)
                .unwrap(),
        )
    };
    assert_eq!(make("large", 100), [0]);
    assert_eq!(make("small", 10), [1]);
    assert_eq!(make("another", 10), [1]);
    assert_eq!(make("again", 90), [1]);
    assert_eq!(make("tie", 1), [0]);
    assert_eq!(scope.bytes(), [404, 440]);
}

#[test]
fn many_parts_are_placed_on_many_tasks_by_bytes() {
    let n = 200_000;
    let mut scope = VariableScope::new(Tasks::only(n, 7))
        .with_placement(Placement::ByBytes)
        .with_partitioner(FixedShardsPartitioner::per_task());
    for rows in [u64::from(n) - 1, u64::from(n) + 1] {
        scope
            .variable("v", &[rows], DType::UInt8, None, |_, _, s| {
                Tensor::zeros("v", DType::UInt8, s)
            })
            .unwrap();
    }
    // All but the last have a row; it is the emptiest then, and gets the longest part.
    assert_eq!(scope.bytes().iter().sum::<u64>(), 2 * u64::from(n));
    assert!(scope.bytes().iter().all(|&bytes| bytes == 2));
}

#[test]
fn a_spec_of_its_own_goes_before_partitioner_and_chooser() {
    let mut scope = VariableScope::new(2)
        .with_partitioner(FixedShardsPartitioner::new(2))
        .with_chooser(|name, _, _| {
            if name.starts_with("emb") {
                Choice::Shard
            } else {
                Choice::Mirror
            }
        });
    let made = scope
        .variable("dense", &[4, 4], DType::Float32, None, zeros)
        .unwrap();
    assert!(matches!(made, AnyVariable::Mirrored(_)));
    assert_eq!(scope.bytes(), [64, 64]);
    let spec = PartitionSpec::splits([[1, 3].as_slice(), &[2, 2]]);
    let made = scope
        .variable("dense2", &[4, 4], DType::Float32, Some(&spec), zeros)
        .unwrap();
    assert!(matches!(made, AnyVariable::Partitioned(_)));
    assert_eq!(tasks(&made), [0, 1, 0, 1]);
    let made = scope
        .variable("emb", &[4, 4], DType::Float32, None, zeros)
        .unwrap();
    assert!(matches!(&made, AnyVariable::Sharded(v) if v.part_rows() == [2, 2]));
}

#[test]
fn a_partitioner_from_configuration_may_cut_any_axis() {
    let json = r#"{"type": "fixed_shards_partitioner", "num_shards": 2, "axis": -1}"#;
    let partitioner: Box<dyn Partitioner> = serde_json::from_str(json).unwrap();
    let mut scope = VariableScope::new(1).with_boxed_partitioner(partitioner);
    let made = scope
        .variable("w", &[4, 6], DType::Float32, None, zeros)
        .unwrap();
    assert!(matches!(made, AnyVariable::Partitioned(_)));
    assert_eq!(made.parts()[1].region().to_string(), "[0:4, 3:6]");
}

#[test]
fn a_variable_that_fails_takes_no_turn() {
    let mut scope = VariableScope::new(3);
    let fails = |_: &[u64], _: &[u64], _: &[u64]| Tensor::zeros("v", DType::Float32, &[7]);
    assert!(
        scope
            .variable("bad", &[4], DType::Float32, None, fails)
            .is_err()
    );
    assert_eq!(scope.bytes(), [0, 0, 0]);
    assert_eq!(
        tasks(
            &scope
                .variable("good", &[4], DType::Float32, None, zeros)
                .unwrap()
        ),
        [0]
    );
    assert!(
        VariableScope::new(0)
            .variable("v", &[4], DType::Float32, None, zeros)
            .is_err()
    );
}

#[test]
fn whatever_a_scope_made_changes_and_is_loaded_alike() {
    let ones = || Tensor::from_vec(&[2, 2], vec![1f32; 4]).unwrap();
    let grid = PartitionSpec::partitions([2, 2]);
    let mut scope = VariableScope::new(2)
        .with_partitioner(FixedShardsPartitioner::new(2))
        .with_chooser(|name, _, _| {
            if name == "bias" {
                Choice::Mirror
            } else {
                Choice::Shard
            }
        });
    let specs = [("emb", None), ("bias", None), ("w", Some(&grid))];
    for (name, spec) in specs {
        let mut v = scope
            .variable(name, &[2, 2], DType::Float32, spec, zeros)
            .unwrap();
        v.assign_add(&ones()).unwrap();
        assert_eq!(v.to_tensor().unwrap(), ones(), "{name}");
        for task in 0..2 {
            let lent = v
                .templates(task)
                .into_iter()
                .map(|t| t.data.host().unwrap().clone());
            let lent: Vec<Tensor> = lent.collect();
            assert!(
                v.parts()
                    .iter()
                    .all(|p| p.data().is_some() == (p.task() != task)),
                "{name}"
            );
            v.fill(task, lent).unwrap();
        }
        assert_eq!(v.to_tensor().unwrap(), ones(), "{name}");
    }
}

#[test]
fn more_tasks_than_anybody_has_are_refused_before_memory_is_taken_for_them() {
    let many = Tasks::only(u32::MAX, 7);
    let message = |e: reshard_embedding::EmbeddingError| e.to_string();
    let said = [
        message(
            VariableScope::new(many)
                .variable("v", &[4], DType::Float32, None, zeros)
                .unwrap_err(),
        ),
        message(reshard_embedding::Mirrored::declare("v", &[4], DType::Float32, many).unwrap_err()),
    ];
    said.iter()
        .for_each(|e| assert!(e.contains("4294967295 tasks are more than 1048576"), "{e}"));
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn every_process_places_alike_and_makes_its_own(
        shapes in prop::collection::vec(prop::collection::vec(1u64..6, 0..3), 1..6), count in 1u32..4, by_bytes: bool, shards in 1u64..4,
    ) {
        let scope = |tasks: Tasks| {
            let placement = if by_bytes { Placement::ByBytes } else { Placement::RoundRobin };
            let mut scope = VariableScope::new(tasks)
                .with_partitioner(FixedShardsPartitioner::new(shards))
                .with_placement(placement);
            let make = |shape: &Vec<u64>| scope.variable("v", shape, DType::Float32, None, zeros).unwrap();
            shapes.iter().map(make).collect::<Vec<_>>()
        };
        let all = scope(count.into());
        for here in 0..count {
            for (mine, all) in scope(Tasks::only(count, here)).iter().zip(&all) {
                prop_assert_eq!(tasks(mine), tasks(all));
                for part in mine.parts() {
                    prop_assert_eq!(part.data().is_some(), part.task() == here);
                }
            }
        }
        prop_assert!(all.iter().flat_map(|v| v.parts()).all(|p| p.data().is_some()));
    }
}
