//! What is not there is told for what it is.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::{executor::block_on, future::join_all};
use reshard::{
    DType, Dialect, Error, ErrorKind, LocalGroup, ShardedObject, ShardedTensor, StateDict,
    StrictHandling, Tensor, Value, blocking, strategy::StrategyError,
};
use tempfile::TempDir;

fn saved(dialect: Dialect) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let mut state = StateDict::new();
    let ones = Tensor::from_vec(&[2], vec![1f32, 1.]).unwrap();
    state.insert("w", ShardedTensor::full("layers.0.weight", ones.clone()));
    state.insert("b", ShardedTensor::full("layers.0.bias", ones));
    state.insert(
        "rng",
        ShardedObject::new("rng", Value::Int(1), &[1], &[0], 0).unwrap(),
    );
    state.insert("step", 3);
    blocking::run(reshard::save(&state, &url).dialect(dialect)).unwrap();
    (dir, url)
}

fn template(key: &str) -> StateDict {
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template(key, DType::Float32, &[2]));
    template
}

#[test]
fn a_key_that_is_not_stored_is_told_with_those_that_may_have_been_meant() {
    let (_dir, url) = saved(Dialect::Megatron);
    let checkpoint = blocking::Checkpoint::open(&url).unwrap();
    let tensor = |key| checkpoint.tensor(key).unwrap_err();
    let object = |key| checkpoint.object(key).unwrap_err();
    for (error, part) in [
        (tensor("layers.0.wieght"), "did you mean layers.0.weight?"),
        (tensor("model.layers.0.bias"), "did you mean layers.0.bias?"),
        (
            tensor("nothing like it"),
            "`Checkpoint::tensors` lists the 2 that are",
        ),
        (
            tensor("rng/shard_0_1"),
            "is an object, not a tensor; `Checkpoint::object` reads it",
        ),
        (object("rng"), "did you mean rng/shard_0_1?"),
        (
            object("layers.0.bias"),
            "is a tensor, not an object; `Checkpoint::tensor` reads it",
        ),
        (
            object("step"),
            "lists the 1 that are; what was not sharded is in `Checkpoint::common`",
        ),
    ] {
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            !error.is_no_checkpoint() && !error.to_string().contains("not a checkpoint"),
            "{error}"
        );
    }
}

#[test]
fn a_tensor_that_a_checkpoint_lacks_is_no_lack_of_a_checkpoint() {
    let (_dir, url) = saved(Dialect::Dcp);
    for ranks in [1, 2] {
        let groups = LocalGroup::new(ranks);
        let loads = groups.iter().map(|g| {
            let load = reshard::load(template("layers.0.wieght"), &url).group(g);
            async { load.await }
        });
        for outcome in block_on(join_all(loads)) {
            let error = Error::from(outcome.unwrap_err());
            let text = error.to_string();
            assert!(
                !error.is_no_checkpoint() && !text.contains("not a checkpoint"),
                "{text}"
            );
            assert!(
                text.contains("layers.0.wieght is not in the checkpoint"),
                "{text}"
            );
            assert!(text.contains("did you mean layers.0.weight"), "{text}");
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    }
}

#[test]
fn a_partial_load_does_not_take_what_it_can_not_read_for_missing() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[2], vec![1f32, 1.]).unwrap()),
    );
    state.insert(
        "n",
        ShardedTensor::full("n", Tensor::from_vec(&[2], vec![1i64, 2]).unwrap()),
    );
    blocking::run(reshard::save(&state, &url).dialect(Dialect::Dcp)).unwrap();
    let mut metadata = std::fs::read(format!("{url}/.metadata")).unwrap();
    let at = metadata.windows(5).position(|w| w == b"int64").unwrap();
    metadata[at + 4] = b'6';
    std::fs::write(format!("{url}/.metadata"), metadata).unwrap();
    let checkpoint = blocking::Checkpoint::open(&url).unwrap();
    assert_eq!(
        checkpoint.verify(false, Default::default()).unwrap().items,
        2
    );
    for (key, readable) in [("w", true), ("nowhere", true), ("n", false)] {
        for ranks in [1, 2] {
            let groups = LocalGroup::new(ranks);
            let loads = groups.iter().map(|g| {
                let load = reshard::load(template(key), &url)
                    .group(g)
                    .strict(StrictHandling::ReturnUnexpected);
                async { load.await }
            });
            for outcome in block_on(join_all(loads)) {
                let failed = outcome.err().map(|e| Error::from(e).to_string());
                assert_eq!(failed.is_none(), readable, "{key}: {failed:?}");
                assert!(failed.is_none_or(|e| e.contains("torch.int66")));
            }
        }
    }
}

#[test]
fn a_place_without_a_checkpoint_is_one_to_begin_at() {
    let dir = tempfile::tempdir().unwrap();
    for (place, says) in [("", "not a checkpoint"), ("nothing", "nothing lies at")] {
        let url = dir.path().join(place).display().to_string();
        for ranks in [1, 2] {
            let groups = LocalGroup::new(ranks);
            let loads = groups.iter().map(|g| {
                let load = reshard::load(template("w"), &url).group(g);
                async { load.await }
            });
            for outcome in block_on(join_all(loads)) {
                let error = Error::from(outcome.unwrap_err());
                assert!(error.is_no_checkpoint(), "{error}");
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
}

#[test]
fn a_checkpoint_without_its_common_state_is_damaged() {
    let (_dir, url) = saved(Dialect::Megatron);
    std::fs::remove_file(format!("{url}/common.pt")).unwrap();
    let error = Error::from(blocking::load(template("layers.0.weight"), &url).unwrap_err());
    assert!(
        matches!(error.strategy_error(), StrategyError::Corrupt { .. }),
        "{error}"
    );
    assert!(
        !error.is_no_checkpoint() && error.to_string().contains("common.pt"),
        "{error}"
    );
    assert!(!error.to_string().contains("not a checkpoint"), "{error}");
}
