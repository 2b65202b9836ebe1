//! What a load does with keys that only one side has, in the facade.
#![cfg(all(
    feature = "safetensors",
    feature = "tensor-bundle",
    feature = "torch-save",
    feature = "zarr"
))]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::executor::block_on;
use reshard::{
    CommonForm, DType, KeptLoadPlan, ShardedObject, ShardedTensor, StateDict, StrictHandling,
    Tensor, Value, blocking,
    plan::DefaultLoadPlanner,
    safetensors::SafetensorsConfig,
    strategy::SaveShardedStrategy,
    tensor_bundle::TensorBundleConfig,
    torch_dist::TorchDistConfig,
    torch_save::TorchSaveConfig,
    zarr::{Zarr3Config, ZarrConfig},
};
use reshard_model::testkit::Events;
use std::{future::IntoFuture, sync::Arc};

/// Common state, a tensor, and two cells of an object.
fn state() -> StateDict {
    let mut state = StateDict::new();
    state.insert("step", 3);
    let ones = Tensor::from_vec(&[2], vec![1f32, 1.]).unwrap();
    state.insert("w", ShardedTensor::full("w", ones));
    for (at, name) in [(0, "first"), (1, "second")] {
        let cell = ShardedObject::new("rng", Value::Int(1), &[2], &[at], 0).unwrap();
        state.insert(name, cell);
    }
    state
}

fn saved(form: CommonForm) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    blocking::run(reshard::save(&state(), &url).common_form(form)).unwrap();
    (dir, url)
}

/// Whoever asks for all that was saved asks for everything, wherever the common state lies.
#[test]
fn common_state_is_always_requested() {
    for form in [CommonForm::File, CommonForm::Object] {
        let (_dir, url) = saved(form);
        for strict in StrictHandling::ALL {
            let load = reshard::load(state(), &url).strict(strict);
            let (loaded, report) = block_on(load.with_report()).unwrap();
            assert!(loaded.get("step").is_some(), "{form:?} {strict}");
            assert!(report.notes.not_requested.is_empty() && report.notes.not_stored.is_empty());
        }
        let load = reshard::load(StateDict::new(), &url).strict(StrictHandling::ReturnAll);
        let (_, report) = block_on(load.with_report()).unwrap();
        assert_eq!(
            report.notes.not_requested,
            ["w", "rng/shard_0_2", "rng/shard_1_2"]
        );
    }
}

/// Each cell of an object by itself: one that is stored is not lost with one that is not.
#[test]
fn cells_that_are_not_stored_are_named() {
    let (_dir, url) = saved(CommonForm::File);
    let mut template = StateDict::new();
    for (key, name) in [("rng/shard_0_2", "first"), ("rng/shard_4_5", "fifth")] {
        template.insert(name, ShardedObject::empty_from_unique_key(key).unwrap());
    }
    let load = reshard::load(template, &url).strict(StrictHandling::ReturnUnexpected);
    let (loaded, report) = block_on(load.with_report()).unwrap();
    assert_eq!(report.notes.not_stored, ["rng/shard_4_5"]);
    assert!(loaded.get("first").is_some() && loaded.get("fifth").is_none());
}

#[test]
fn what_is_left_alone_is_logged_if_that_is_asked_for() {
    let (_dir, url) = saved(CommonForm::File);
    let mut template = StateDict::new();
    template.insert("x", ShardedTensor::template("x", DType::Float32, &[2]));
    for strict in StrictHandling::ALL {
        let warned = |own_planner: bool| {
            let ((), warned) = Events::only(tracing::Level::WARN).of(|| {
                let load = reshard::load(template.clone(), &url).strict(strict);
                let load = match own_planner {
                    true => load.planner(DefaultLoadPlanner::DEFAULT.strict(strict)),
                    false => load,
                };
                block_on(load.with_report()).map(drop).unwrap_or_default();
            });
            (
                warned.contains("asked for, but not in the checkpoint: x"),
                warned.contains("no rank asks for it: w, rng/shard_0_2, rng/shard_1_2"),
            )
        };
        let wanted = match strict {
            StrictHandling::LogUnexpected => (true, false),
            StrictHandling::LogAll => (true, true),
            _ => (false, false),
        };
        assert_eq!(warned(false), wanted, "{strict}");
        assert_eq!(warned(true), (false, false), "{strict}");
    }
}

/// It is stored, so a load that goes on would pass over it.
#[test]
fn an_optional_leaf_that_lies_in_the_common_state_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let tensor = || Tensor::from_vec(&[1], vec![0.5f32]).unwrap();
    let mut state = StateDict::new();
    state.insert("lr", tensor());
    blocking::run(reshard::save(&state, &url).dialect(reshard::Dialect::Megatron)).unwrap();
    for path in ["lr", "elsewhere"] {
        let mut template = StateDict::new();
        template.insert(path, ShardedTensor::full("lr", tensor()).optional());
        let e = blocking::load(template, &url).unwrap_err().to_string();
        assert!(e.contains("common state"), "{path}: {e}");
    }
}

/// A template with two leaves that are stored, and an adapter and an object that are not.
fn with_adapter(optional: bool) -> StateDict {
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template("w", DType::Float32, &[2]));
    let tens = Tensor::from_vec(&[1], vec![10f32]).unwrap();
    let adapter = ShardedTensor::full("w.lora", tens);
    let head = ShardedObject::item("head.lora", reshard::model::Payload::None);
    match optional {
        true => {
            template.insert("adapter", adapter.optional());
            template.insert("head", head.optional());
        }
        false => {
            template.insert("adapter", adapter);
            template.insert("head", head);
        }
    }
    template
}

/// In every format: what need not be stored keeps its contents and is reported, and everything else stays strict.
#[test]
fn optional_leaves_need_not_be_stored() {
    let formats: [SaveShardedStrategy; 6] = [
        TorchDistConfig::new().into(),
        ZarrConfig::default().into(),
        Zarr3Config::default().into(),
        SafetensorsConfig::default().into(),
        TorchSaveConfig::default().into(),
        TensorBundleConfig::default().into(),
    ];
    for format in formats {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        let mut state = StateDict::new();
        let ones = Tensor::from_vec(&[2], vec![1f32, 1.]).unwrap();
        state.insert("w", ShardedTensor::full("w", ones));
        let name = format.key();
        block_on(reshard::save(&state, &url).strategy(format).into_future()).unwrap();

        let kept = Arc::new(KeptLoadPlan::default());
        let by_leaf = || reshard::load(with_adapter(true), &url).kept_plan(&kept);
        let by_key = || reshard::load(with_adapter(false), &url).kept_plan(&kept);
        let named = |key: &str| key.ends_with(".lora");
        for load in [by_leaf(), by_leaf(), by_key().optional(named)] {
            let (loaded, report) = block_on(load.with_report()).unwrap();
            let mut not_stored = report.notes.not_stored.clone();
            not_stored.sort();
            assert_eq!(not_stored, ["head.lora", "w.lora"], "{name}");
            let adapter = loaded.tensor("adapter").unwrap();
            assert_eq!(adapter.to_vec::<f32>().unwrap(), [10.], "{name}");
            let w = loaded.tensor("w").unwrap();
            assert_eq!(w.to_vec::<f32>().unwrap(), [1., 1.], "{name}");
        }

        // A kept plan of optional leaves is none of leaves that must be stored, and what is handed back asks for the same as before.
        let failed = blocking::run(by_key()).unwrap_err();
        assert!(failed.to_string().contains("lora"), "{name}: {failed}");
        let load = by_key().optional(|key| key == "head.lora");
        let (e, template) = blocking::run(load).unwrap_err().into_parts();
        assert!(e.to_string().contains("w.lora"), "{name}: {e}");
        assert!(blocking::load(template, &url).is_err(), "{name}");
    }
}
