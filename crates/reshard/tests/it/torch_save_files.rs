//! What a policy does to files of `torch.save`.
#![cfg(all(feature = "torch-save", feature = "local"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use futures::{executor::block_on, future::join_all};
use reshard::{
    Checkpoint, KeptPlan, LocalGroup, Region, SaveReport, ShardedTensor, StateDict, Tensor,
    policy::MaxShardSize, torch_save::TorchSaveConfig,
};
use std::{future::IntoFuture, sync::Arc, time::Duration};

/// Rows of two tensors on each of two ranks: `a` has 6,400 bytes, and `b` 12,800.
fn state(rank: u64) -> StateDict {
    let mut state = StateDict::new();
    for (key, rows) in [("a", 4), ("b", 8)] {
        let half = Region::new([rank * rows / 2, 0], [rows / 2, 400]);
        let data = Tensor::from_vec(&half.lengths, vec![rank as f32; 200 * rows as usize]).unwrap();
        let leaf = ShardedTensor::region_of(key, reshard::DType::Float32, &[rows, 400], half);
        state.insert(key, leaf.with_data(data));
    }
    state
}

fn save(url: &str, kept: &[Arc<KeptPlan>]) -> Vec<SaveReport> {
    let groups = LocalGroup::new(2);
    let states = [state(0), state(1)];
    let saves = groups
        .iter()
        .zip(&states)
        .zip(kept)
        .map(|((group, state), kept)| {
            reshard::save(state, url)
                .group(group)
                .overwrite(true)
                .policy(MaxShardSize::new(16_000))
                .kept_plan(kept)
                .strategy(TorchSaveConfig::default())
                .into_future()
        });
    let saved = block_on(join_all(saves)).into_iter();
    saved.map(|saved| saved.unwrap()).collect()
}

#[test]
fn the_report_and_the_checkpoint_say_what_the_policy_did() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let kept: [Arc<KeptPlan>; 2] = Default::default();
    let first = save(&url, &kept);
    assert!(first[1].policy.is_none(), "only the coordinator has it");
    let did = first[0].policy.clone().unwrap();
    assert_eq!((did.shards, did.slices, did.split_tensors), (2, 2, 0));
    let length = |file: &str| {
        std::fs::metadata(dir.path().join("ckpt").join(file))
            .unwrap()
            .len()
    };
    let (a, b) = (
        length("pytorch_model-00001-of-00002.bin"),
        length("pytorch_model-00002-of-00002.bin"),
    );
    assert_eq!(
        (did.bytes, did.largest, did.smallest),
        (a + b, a.max(b), a.min(b))
    );
    assert!(a.max(b) > 12_800 && a.max(b) < 16_000);
    assert!(did.duration > Duration::ZERO);

    let checkpoint = block_on(Checkpoint::open(&url)).unwrap();
    let noted = block_on(checkpoint.sidecar()).0.unwrap().policy;
    assert_eq!(noted.as_deref(), Some(&*did.description));

    // The plan is known the second time, so nobody asks the policy.
    let second = save(&url, &kept);
    let again = second[0].policy.clone().unwrap();
    assert_eq!(again.duration, Duration::ZERO);
    assert_eq!(
        (again.shards, again.description),
        (did.shards, did.description)
    );
}
