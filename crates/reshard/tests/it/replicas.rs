//! Which replicas are written.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::{executor::block_on, future::join_all};
use reshard::{
    ErrorKind, LocalGroup, Result, ShardedTensor, StateDict, Tensor, blocking::Checkpoint,
    model::ReplicaId, torch_dist::TorchDistConfig,
};
use std::future::IntoFuture;

/// Ranks save these replicas of a tensor.
fn save(url: &str, replicas: &[u32], keep_only_main_replica: bool) -> Result<()> {
    let state = |replica: &u32| {
        let data = Tensor::from_vec(&[3], vec![1f32, 2., 3.]).unwrap();
        let mut leaf = ShardedTensor::full("w", data);
        leaf.replica_id = ReplicaId::from(*replica);
        let mut state = StateDict::new();
        state.insert("w", leaf);
        state
    };
    let states: Vec<StateDict> = replicas.iter().map(state).collect();
    let groups = LocalGroup::new(replicas.len() as u32);
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let config = TorchDistConfig::new().with_keep_only_main_replica(keep_only_main_replica);
        let save = reshard::save(state, url).group(group).strategy(config);
        save.validate_access_integrity(false).into_future()
    });
    let all = block_on(join_all(saves));
    all.into_iter().try_for_each(|saved| saved.map(drop))
}

#[test]
fn a_tensor_without_a_main_replica_is_written_if_any_replica_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("step").display().to_string();
    // Nobody offers it, and nobody validates, so it is not there.
    save(&url, &[1, 2], true).unwrap();
    let absent = Checkpoint::open(&url).unwrap().tensor("w").unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent}");
    let url = dir.path().join("any").display().to_string();
    save(&url, &[1, 2], false).unwrap();
    let w = Checkpoint::open(&url).unwrap().tensor("w").unwrap();
    assert_eq!(w.chunks().len(), 1);
    assert_eq!(w.read(..).unwrap().to_vec::<f32>().unwrap(), [1., 2., 3.]);
}

/// As in PyTorch, any replica will do then: of those that hold the same piece it is written by the rank that has least to write, the lowest of them. Otherwise by the
/// one that has the main replica.
#[test]
fn beside_a_main_replica_another_one_may_be_written() {
    let writer = |keep_only_main_replica: bool| {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("step").display().to_string();
        save(&url, &[1, 2, 0], keep_only_main_replica).unwrap();
        let w = Checkpoint::open(&url).unwrap().tensor("w").unwrap();
        assert_eq!(w.read(..).unwrap().to_vec::<f32>().unwrap(), [1., 2., 3.]);
        let chunks = w.chunks();
        assert_eq!(chunks.len(), 1);
        chunks[0].parts[0].file.to_string()
    };
    assert_eq!(writer(true), "__2_0.distcp");
    assert_eq!(writer(false), "__0_0.distcp");
}
