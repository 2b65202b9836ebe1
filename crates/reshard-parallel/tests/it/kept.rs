//! A distribution that is kept: less travels, and what has changed is distributed again.

use crate::ranks::{Group, Saver, groups, save, writers};
use reshard::strategy::SaveShardedStrategy;
use reshard::{DType, KeptLoadPlan, KeptPlan, ShardedTensor, StateDict, Tensor, Value, ValueTree};
use reshard_comm::testkit::{FaultGroup, on_ranks};
use reshard_parallel::{FullyParallelLoad, FullyParallelSave};
use reshard_torch_dist::{TorchDistConfig, TorchDistLoadConfig};
use std::sync::Arc;

const RANKS: usize = 3;

/// 60 tensors that all ranks hold; the first is as long as is said.
fn state(rank: u32, first: u64) -> StateDict {
    let mut state = StateDict::new();
    for i in 0..60 {
        let key = format!("layers.{i}.self_attention.linear_proj.weight");
        let elements = if i == 0 { first } else { 8 };
        let data = Tensor::from_vec(&[elements], vec![i as f32; elements as usize]).unwrap();
        state.insert(
            key.as_str(),
            ShardedTensor::full(&key, data).with_replica_id(rank),
        );
    }
    state
}

/// Saves with these settings, one for each rank; the bytes that each has sent.
fn sent(settings: &[SaveShardedStrategy], first: u64, url: &str) -> Vec<u64> {
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
    let new = || {
        FullyParallelSave::new()
            .cache(true)
            .around(TorchDistConfig::default())
    };
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

/// A plan is kept beside a distribution. What is distributed otherwise is planned anew.
#[test]
fn plans_of_shared_work_are_kept_and_are_those_that_would_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let saves: Vec<Arc<KeptPlan>> = (0..RANKS).map(|_| Arc::default()).collect();
    let loads: Vec<Arc<KeptLoadPlan>> = (0..RANKS).map(|_| Arc::default()).collect();
    let reused = || (saves[1].reused(), loads[1].reused());
    let mut seen = Vec::new();
    for (turn, first) in [8, 8, 100_000, 100_000, 8].into_iter().enumerate() {
        let url = dir.path().join(turn.to_string()).display().to_string();
        let fresh = dir
            .path()
            .join(format!("{turn}-fresh"))
            .display()
            .to_string();
        let (to, plain) = (url.clone(), fresh.clone());
        let (saves, loads) = (saves.clone(), loads.clone());
        let loaded = on_ranks(groups(RANKS), move |group| {
            let rank = group.rank().0;
            let (to, plain) = (to.clone(), plain.clone());
            let (saved, loaded) = (
                Arc::clone(&saves[rank as usize]),
                Arc::clone(&loads[rank as usize]),
            );
            async move {
                let state = state(rank, first);
                for (url, kept) in [(&to, Some(saved)), (&plain, None)] {
                    let settings = FullyParallelSave::new().around(TorchDistConfig::default());
                    let save = reshard::save(&state, url).group(&*group).strategy(settings);
                    match kept {
                        Some(kept) => save.kept_plan(&kept).await.unwrap(),
                        None => save.await.unwrap(),
                    };
                }
                let settings = FullyParallelLoad::new().around(TorchDistLoadConfig::default());
                let mut template = StateDict::new();
                for i in 0..60 {
                    let key = format!("layers.{i}.self_attention.linear_proj.weight");
                    let shape = [if i == 0 { first } else { 8 }];
                    let leaf = ShardedTensor::template(&key, DType::Float32, &shape);
                    template.insert(key.as_str(), leaf);
                }
                let load = reshard::load(template, &to)
                    .group(&*group)
                    .strategy(settings);
                let (loaded, report) = load.kept_plan(&loaded).with_report().await.unwrap();
                for i in 0..60 {
                    let key = format!("layers.{i}.self_attention.linear_proj.weight");
                    let leaf = loaded.get(&key).and_then(ValueTree::leaf);
                    let elements = if i == 0 { first } else { 8 };
                    let want = vec![i as f32; elements as usize];
                    let want = Tensor::from_vec(&[elements], want).unwrap();
                    assert!(leaf == Some(&Value::Tensor(want)), "{key}");
                }
                report
            }
        });
        assert_eq!(writers(&url), writers(&fresh));
        let needed: u64 = loaded.iter().map(|report| report.totals.needed).sum();
        assert_eq!(needed, 4 * (first + 59 * 8));
        seen.push(reused());
    }
    assert_eq!(seen, [(0, 0), (1, 1), (1, 1), (2, 2), (2, 2)]);
}
