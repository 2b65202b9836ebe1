//! A distribution that is kept: less travels, and what has changed is distributed again.

use crate::ranks::{Group, Saver, groups, save, writers};
use reshard::{DType, ShardedTensor, StateDict, Tensor};
use reshard_comm::testkit::FaultGroup;
use reshard_parallel::FullyParallelSave;
use reshard_torch_dist::TorchDistConfig;
use std::sync::Arc;

const RANKS: usize = 3;

/// 60 tensors that all ranks hold; the first is as long as is said.
fn state(rank: u32, first: u64) -> StateDict {
    let mut state = StateDict::new();
    for i in 0..60 {
        let key = format!("layers.{i}.self_attention.linear_proj.weight");
        let elements = if i == 0 { first } else { 8 };
        let data = Tensor::zeros(&key, DType::Float32, &[elements]).unwrap();
        state.insert(
            key.as_str(),
            ShardedTensor::full(&key, data).with_replica_id(rank),
        );
    }
    state
}

/// Saves with these settings, one for each rank; the bytes that each has sent.
fn sent(settings: &[FullyParallelSave], first: u64, url: &str) -> Vec<u64> {
    let counted: Vec<Arc<FaultGroup>> = groups(RANKS)
        .into_iter()
        .map(|group| Arc::new(FaultGroup::counting(group)))
        .collect();
    let savers = (0..RANKS).map(|rank| Saver {
        group: Arc::clone(&counted[rank]) as Group,
        color: None,
        state: state(rank as u32, first),
        settings: settings[rank].clone(),
    });
    save(savers.collect(), url)
        .into_iter()
        .for_each(|s| drop(s.unwrap()));
    counted.iter().map(|group| group.sent()).collect()
}

#[test]
fn a_structure_that_is_known_is_not_distributed_again() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let new = || FullyParallelSave::new(TorchDistConfig::default()).cache(true);
    let mut settings: Vec<_> = (0..RANKS).map(|_| new()).collect();
    let first = sent(&settings, 8, &url);
    let spread = writers(&url);
    let second = sent(&settings, 8, &url);
    assert!(
        (0..RANKS).all(|r| second[r] + 2_000 < first[r]),
        "{first:?} {second:?}"
    );
    assert_eq!(writers(&url), spread);

    // A long tensor is alone with its rank now.
    let changed = sent(&settings, 100_000, &url);
    assert!(changed[1] > second[1] + 2_000, "{changed:?} {second:?}");
    let writers = writers(&url);
    let long = writers
        .iter()
        .find(|((key, _), _)| key.starts_with("layers.0."));
    let long = *long.unwrap().1;
    assert_eq!(writers.values().filter(|rank| **rank == long).count(), 1);

    // One rank keeps nothing, so that nobody says "the same".
    let mixed: Vec<_> = (0..RANKS).map(|rank| new().cache(rank != 1)).collect();
    let spread = writers.clone();
    for _ in 0..2 {
        sent(&mixed, 100_000, &url);
        assert_eq!(crate::ranks::writers(&url), spread);
    }

    // One rank has lost what it kept: all tell it again.
    settings[2] = new();
    let again = sent(&settings, 100_000, &url);
    assert!(
        (0..RANKS).all(|r| again[r] > second[r] + 2_000),
        "{again:?} {second:?}"
    );
    let known = sent(&settings, 100_000, &url);
    assert!(
        (0..RANKS).all(|r| known[r] + 2_000 < again[r]),
        "{known:?} {again:?}"
    );
}
