//! A shared save is the same checkpoint as a plain one, and its work is spread.

use crate::ranks::{Saver, groups, save, writers};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{Checkpoint, ShardedTensor, StateDict, Tensor};
use reshard_parallel::FullyParallelSave;
use reshard_torch_dist::TorchDistConfig;
use std::collections::BTreeMap;

/// A tensor of so many elements. The ranks for which the mask says so hold all of it, and the first of them the main replica.
type Leaf = (u64, u32);

fn states(ranks: usize, leaves: &[Leaf]) -> Vec<StateDict> {
    let mut states = vec![StateDict::new(); ranks];
    for (i, (elements, mask)) in leaves.iter().enumerate() {
        let key = format!("w{i}");
        let holders: Vec<usize> = (0..ranks).filter(|r| mask >> r & 1 == 1).collect();
        for (replica, rank) in holders.into_iter().enumerate() {
            let numbers = (0..*elements)
                .map(|e| (e + 1000 * i as u64) as f32)
                .collect();
            let data = Tensor::from_vec(&[*elements], numbers).unwrap();
            let leaf = ShardedTensor::full(&key, data).with_replica_id(replica as u32);
            states[rank].insert(key.as_str(), leaf);
        }
    }
    states
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(48))]

    #[test]
    fn the_same_is_stored_and_the_work_is_spread(
        ranks in 1usize..6, colors in prop::collection::vec(0u32..2, 6), whole in any::<bool>(), cache in any::<bool>(),
        leaves in prop::collection::vec((1u64..400, 1u32..63), 1..12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        let states = states(ranks, &leaves);
        let settings = FullyParallelSave::new().cache(cache);
        let settings = if whole { settings } else { settings.group("dp") };
        let settings = settings.around(TorchDistConfig::default());
        let color = |rank: usize| if whole { 0 } else { colors[rank] };
        let savers = groups(ranks).into_iter().zip(states).enumerate().map(|(rank, (group, state))| Saver {
            group, state, color: Some(color(rank)), settings: settings.clone(),
        });
        save(savers.collect(), &url).into_iter().for_each(|s| drop(s.unwrap()));

        let opened = block_on(Checkpoint::open(&url)).unwrap();
        let writers = writers(&url);
        let mut written: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut all, mut longest, mut held) = (0, 0, 0);
        for (i, (elements, mask)) in leaves.iter().enumerate() {
            let key = format!("w{i}");
            let holders: Vec<u32> = (0..ranks as u32).filter(|r| mask >> r & 1 == 1).collect();
            let Some(main) = holders.first() else {
                prop_assert!(opened.tensor(&key).is_err());
                continue;
            };
            let stored = block_on(async { opened.tensor(&key)?.read(..).await }).unwrap();
            let wanted: Vec<f32> = (0..*elements).map(|e| (e + 1000 * i as u64) as f32).collect();
            prop_assert_eq!(stored.to_vec::<f32>().unwrap(), wanted);
            // One of those that hold it, in the group of its main replica.
            let writer = writers[&(key, vec![0])];
            prop_assert!(holders.contains(&writer) && color(writer as usize) == color(*main as usize));
            *written.entry(writer).or_default() += elements;
            all += elements;
            longest = longest.max(*elements);
            held += holders.len();
        }
        // Where everybody holds everything, no rank writes more than its part and a piece.
        if whole && held == ranks * leaves.len() {
            let most = written.values().copied().max().unwrap_or(0);
            prop_assert!(most <= all / ranks as u64 + longest, "{:?}", written);
        }
    }
}

/// Only one of two leaves that hold one shard becomes the main replica.
#[test]
fn a_rank_that_holds_a_shard_twice_writes_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let tensor = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    let mut twice = StateDict::new();
    for (name, replica) in [("a", 1), ("b", 0)] {
        let leaf = ShardedTensor::full("w", tensor.clone()).with_replica_id(replica);
        twice.insert(name, leaf);
    }
    let states = [twice, StateDict::new()];
    let savers = groups(2)
        .into_iter()
        .zip(states)
        .map(|(group, state)| Saver {
            group,
            color: None,
            state,
            settings: FullyParallelSave::new().around(TorchDistConfig::default()),
        });
    for saved in save(savers.collect(), &url) {
        saved.unwrap();
    }
    assert_eq!(writers(&url), BTreeMap::from([(("w".into(), vec![0]), 0)]));
}
