//! Causes of errors that beginners meet are named.
#![cfg(all(feature = "torch-dist", feature = "local"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::{executor::block_on, future::join_all};
use reshard::{DType, Dialect, LocalGroup, Region, ShardedTensor, StateDict, Tensor, blocking};
use std::{future::IntoFuture, time::Duration};

fn half(rank: u64) -> StateDict {
    let region = Region::new([rank], [1]);
    let leaf = ShardedTensor::region_of("w", DType::Float32, &[2], region);
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[1], vec![rank as f32]).unwrap();
    state.insert("w", leaf.with_data(data));
    state
}

#[test]
fn a_rank_that_saves_alone_is_asked_for_its_group() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let home = tempfile::tempdir().unwrap();
        let state = half(0);
        let save = reshard::save(&state, home.path().join("x")).dialect(dialect);
        let e = blocking::run(save).unwrap_err().to_string();
        assert!(e.contains("w: "), "{e}");
        assert!(
            e.contains("only one rank saves: if other ranks of the job hold the rest"),
            "{e}"
        );
        assert!(e.contains("`.group(…)`"), "{e}");
    }
}

#[test]
fn two_ranks_without_a_group_are_asked_for_it() {
    let home = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[1], vec![1f32]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    let save = || blocking::run(reshard::save(&state, home.path().join("x")));
    save().unwrap();
    let e = save().unwrap_err().to_string();
    assert!(
        e.contains("if another rank of this job has just saved it"),
        "{e}"
    );
    assert!(e.contains("`.overwrite(true)`"), "{e}");
}

#[test]
fn full_on_several_ranks_is_told_to_be_replicated() {
    let home = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    let groups = LocalGroup::new(2);
    let saves = groups.iter().map(|group| {
        reshard::save(&state, home.path().join("x"))
            .group(group)
            .dialect(Dialect::Megatron)
            .into_future()
    });
    for outcome in block_on(join_all(saves)) {
        let e = outcome.unwrap_err().to_string();
        assert!(
            e.contains("`ShardedTensor::replicated(key, data, rank)` in place of `full`"),
            "{e}"
        );
    }
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let home = tempfile::tempdir().unwrap();
    let state = half(0);
    let groups = LocalGroup::new(2);
    let save = reshard::save(&state, home.path().join("x"))
        .group(&groups[0])
        .warn_after(Duration::from_millis(2))
        .deadline(Duration::from_millis(40));
    let e = blocking::run(save).unwrap_err().to_string();
    assert!(e.contains("no answer within 0.04 s from rank 1"), "{e}");
}
