//! Which replicas are written.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::{executor::block_on, future::join_all};
use reshard::{
    ErrorKind, LocalGroup, Result, ShardedTensor, StateDict, Tensor, blocking::Checkpoint,
    model::ReplicaId, torch_dist::TorchDistConfig,
};
use std::future::IntoFuture;

/// Two ranks save a tensor of which neither has the main replica.
fn save(url: &str, keep_only_main_replica: bool) -> Result<()> {
    let states = [1, 2].map(|replica| {
        let data = Tensor::from_vec(&[3], vec![1f32, 2., 3.]).unwrap();
        let mut leaf = ShardedTensor::full("w", data);
        leaf.replica_id = ReplicaId::from(replica);
        let mut state = StateDict::new();
        state.insert("w", leaf);
        state
    });
    let groups = LocalGroup::new(2);
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
    save(&url, true).unwrap();
    let absent = Checkpoint::open(&url).unwrap().tensor("w").unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent}");
    let url = dir.path().join("any").display().to_string();
    save(&url, false).unwrap();
    let w = Checkpoint::open(&url).unwrap().tensor("w").unwrap();
    assert_eq!(w.chunks().len(), 1);
    assert_eq!(w.read(..).unwrap().to_vec::<f32>(), Some(vec![1., 2., 3.]));
}
