//! A rank that fails while work is shared fails all, and nothing waits.

use crate::ranks::layered;
use crate::ranks::{Group, Saver, groups, replicated, save};
use reshard::{
    Dialect, ErrorKind, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    comm::Cause, strategy::SaveShardedStrategy,
};
use reshard_comm::testkit::{Fault, FaultGroup};
use reshard_parallel::FullyParallelSave;
use reshard_torch_dist::TorchDistConfig;
use std::{path::Path, sync::Arc};

fn saver(group: Group, color: Option<u32>, settings: &SaveShardedStrategy) -> Saver {
    let state = replicated(group.rank().0);
    Saver {
        group,
        color,
        state,
        settings: settings.clone(),
    }
}

#[test]
fn a_rank_without_the_group_is_named_on_all() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let settings = FullyParallelSave::new()
        .group("tp")
        .around(TorchDistConfig::default());
    let savers = groups(3).into_iter().map(|g| saver(g, Some(0), &settings));
    for saved in save(savers.collect(), &url) {
        let e = saved.unwrap_err().to_string();
        assert!(e.contains("\"tp\"") && e.contains("[dp]"), "{e}");
    }
    assert!(!Path::new(&url).exists());
}

/// Wherever the transport of one rank fails, in the group of all or in a sub-group, all fail, and the place stays as it was.
#[test]
fn a_transport_that_fails_anywhere_fails_all() {
    let dir = tempfile::tempdir().unwrap();
    let shared = || FullyParallelSave::new().around(TorchDistConfig::default());
    let cached = FullyParallelSave::new().cache(true);
    for (settings, color) in [
        (cached.around(TorchDistConfig::default()), None),
        // The first call of a rank splits the group.
        (
            FullyParallelSave::new().group("dp").around(shared()),
            Some(0),
        ),
    ] {
        let url = dir.path().join("counted").display().to_string();
        let counted: Vec<Arc<FaultGroup>> = groups(3)
            .into_iter()
            .map(|g| Arc::new(FaultGroup::counting(g)))
            .collect();
        let savers = counted
            .iter()
            .map(|g| saver(Arc::clone(g) as Group, color, &settings));
        save(savers.collect(), &url)
            .into_iter()
            .for_each(|s| drop(s.unwrap()));
        for at in u64::from(color.is_some())..counted[1].calls() {
            let url = dir.path().join("failed").display().to_string();
            let savers = groups(3).into_iter().enumerate().map(|(rank, group)| {
                let fault = Fault::Fail(Cause::new(ErrorKind::Unavailable, "a broken wire"));
                let group: Group = match rank {
                    1 => Arc::new(FaultGroup::new(group, at, fault)),
                    _ => group,
                };
                // Without what was kept: the steps are those that were counted.
                saver(group, color, &fresh(&settings))
            });
            let saved = save(savers.collect(), &url);
            let failed = saved.iter().filter(|s| s.is_err()).count();
            // After the commit only the rank itself can know.
            assert!(
                failed == 3 || Path::new(&url).exists(),
                "step {at}: {failed}"
            );
            if Path::new(&url).exists() {
                std::fs::remove_dir_all(&url).unwrap();
            }
        }
    }
}

/// The same settings without what they keep.
fn fresh(settings: &SaveShardedStrategy) -> SaveShardedStrategy {
    serde_json::from_str(&serde_json::to_string(settings).unwrap()).unwrap()
}

#[test]
fn settings_are_nested_in_json() {
    let text = r#"{"format":"torch_dist","layers":[{"type":"fully_parallel","group":"dp"},{"type":"fully_parallel"}]}"#;
    let settings: SaveShardedStrategy = serde_json::from_str(text).unwrap();
    assert_eq!(settings.key().to_string(), "torch_dist/1");
    let unknown = text.replace("group", "grup");
    let e = serde_json::from_str::<SaveShardedStrategy>(&unknown).unwrap_err();
    assert!(e.to_string().contains("grup"), "{e}");
}

#[test]
fn ranks_that_save_by_themselves_share_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let settings = FullyParallelSave::new().around(TorchDistConfig::default());
    let state = replicated(0);
    let save = reshard::save(&state, &url)
        .rank_local(true)
        .strategy(settings);
    let e = blocking::run(save).unwrap_err().to_string();
    assert!(e.contains("leave out `fully_parallel`"), "{e}");
}

/// zarr stores no objects, and in PyTorch's dialect there is no common strategy that could.
#[test]
fn objects_that_no_strategy_stores_fail_before_a_byte_is_written() {
    for base in ["zarr", "zarr3"] {
        let plain = serde_json::json!({ "format": base });
        let around = layered(serde_json::json!({ "type": "fully_parallel" }), &plain);
        for settings in [plain, around] {
            let dir = tempfile::tempdir().unwrap();
            let url = dir.path().join("ckpt").display().to_string();
            let mut state = StateDict::new();
            let numbers = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
            state.insert("w", ShardedTensor::full("w", numbers));
            let rng = ShardedObject::new("rng", Value::Int(1), &[1], &[0], 0).unwrap();
            state.insert("rng", rng);
            let config: SaveShardedStrategy = serde_json::from_value(settings.clone()).unwrap();
            let save = reshard::save(&state, &url).dialect(Dialect::Dcp);
            let e = blocking::run(save.strategy(config)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{settings}: {e}");
            assert!(e.to_string().contains("rng"), "{settings}: {e}");
            assert!(!Path::new(&url).exists(), "{settings}");
        }
    }
}
