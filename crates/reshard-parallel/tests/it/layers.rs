//! Layers and formats as values: from the registry, as JSON, and around planners of a program.

use crate::ranks::groups;
use reshard::{
    DType, Dialect, ShardedTensor, StateDict, Tensor, blocking,
    megatron::TorchCommon,
    model::FlatStateDict,
    plan::{DefaultSavePlanner, Offer, SaveContext, SavePlan, SavePlanner},
    strategy::{
        Action, BackendVersion, LoadShardedStrategy, Registry, Result, SaveCx, SaveLayer,
        SaveSetup, SaveShardedStrategy,
    },
    torch_dist::{TorchDistConfig, TorchDistLoadConfig},
    zarr::{Zarr3Config, ZarrConfig},
};
use reshard_comm::testkit::on_ranks;
use reshard_parallel::{FullyParallelLoad, FullyParallelSave, OneReaderLoad, TwoStageLoad};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

#[test]
fn a_strategy_of_the_registry_takes_layers() {
    let registry = Registry::linked().unwrap();
    let name = BackendVersion::new("zarr3", 1);
    let load = registry.load_sharded(&name).unwrap();
    let load = load.layer(FullyParallelLoad::new().group("dp"));
    let load = load.layer(TwoStageLoad::new());
    let json = serde_json::to_value(&load).unwrap();
    assert_eq!(json["format"], "zarr3/1");
    assert_eq!(json["layers"][0]["type"], "two_stage", "{json}");
    assert_eq!(json["layers"][1]["group"], "dp", "{json}");
    let again: LoadShardedStrategy = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(again).unwrap(), json);
    let save = registry.save_sharded(&name).unwrap();
    let save = FullyParallelSave::new().around(save);
    assert_eq!((save.key(), save.layers.len()), (name, 1));
}

#[test]
fn json_has_a_full_and_a_flat_form() {
    let of = |json| serde_json::from_value::<SaveShardedStrategy>(json).map_err(|e| e.to_string());
    let full = of(json!({ "format": "zarr3", "settings": { "inner_chunk": "1MiB" } })).unwrap();
    let flat = of(json!({ "format": "zarr3/1", "inner_chunk": "1MiB" })).unwrap();
    let typed = SaveShardedStrategy::from(Zarr3Config::default().with_inner_chunk(1 << 20));
    let json = [full, flat, typed].map(|s| serde_json::to_value(s).unwrap());
    assert!(json[0] == json[1] && json[1] == json[2], "{json:?}");
    for (wrong, told) in [
        (json!({ "type": "zarr3" }), "unknown field `type`"),
        (json!({ "settings": {} }), "missing field `format`"),
        (json!({ "format": "zarr4" }), "save_sharded"),
        (
            json!({ "format": "zarr3", "inner": 1 }),
            "unknown field `inner`",
        ),
        (
            json!({ "format": "zarr3", "layers": [], "inner_chunk": 1 }),
            "unknown field `inner_chunk`",
        ),
        (
            json!({ "format": "zarr", "layers": [{ "type": "nobodys" }] }),
            "nobodys",
        ),
        (
            json!({ "format": "torch_dist", "files_per_rank": 2, "file_per_item": true }),
            "exclude each other",
        ),
    ] {
        let e = of(wrong.clone()).unwrap_err();
        assert!(e.contains(told), "{wrong}: {e}");
    }
}

#[test]
fn a_key_that_comes_twice_in_json_is_refused() {
    for json in [
        r#"{ "format": "zarr", "format": "zarr3" }"#,
        r#"{ "format": "zarr3", "inner_chunk": 1, "inner_chunk": 2 }"#,
        r#"{ "format": "zarr3", "settings": { "inner_chunk": 1, "inner_chunk": 2 } }"#,
        r#"{ "format": "zarr", "layers": [{ "type": "fully_parallel", "group": "a", "group": "b" }] }"#,
    ] {
        let e = serde_json::from_str::<SaveShardedStrategy>(json).unwrap_err();
        assert!(e.to_string().contains("comes twice"), "{json}: {e}");
    }
}

#[test]
fn one_reader_is_the_innermost_layer() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    let w = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    state.insert("w", ShardedTensor::full("w", w));
    blocking::save(&state, dir.path()).unwrap();
    let load = |strategy: LoadShardedStrategy| {
        let mut template = StateDict::new();
        template.insert("w", ShardedTensor::template("w", DType::Float32, &[2]));
        let load = reshard::load(template, dir.path()).strategy(strategy);
        blocking::run(load).map_err(|e| e.to_string())
    };
    let format = TorchDistLoadConfig::default;
    let inside = OneReaderLoad::new().around(format());
    assert!(load(FullyParallelLoad::new().around(inside.clone())).is_ok());
    assert!(load(TwoStageLoad::new().around(inside.clone())).is_ok());
    for inner in [
        TwoStageLoad::new().around(format()),
        FullyParallelLoad::new().around(format()),
        inside,
    ] {
        let e = load(OneReaderLoad::new().around(inner)).unwrap_err();
        assert!(e.contains("put it innermost"), "{e}");
    }
}

#[test]
fn the_common_strategy_is_no_part_of_the_sharded_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDict::new();
    let mut saves = SaveShardedStrategy::from(ZarrConfig::default());
    saves.common = Some(Arc::new(TorchCommon));
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let save = reshard::save(&state, dir.path()).dialect(dialect);
        let e = blocking::run(save.strategy(saves.clone())).unwrap_err();
        assert!(e.to_string().contains("`Save::common_strategy`"), "{e}");
    }
    blocking::save(&state, dir.path()).unwrap();
    let mut loads = LoadShardedStrategy::from(TorchDistLoadConfig::default());
    loads.common = Some(Arc::new(TorchCommon));
    let load = reshard::load(state, dir.path()).strategy(loads);
    let e = blocking::run(load).unwrap_err();
    assert!(e.to_string().contains("leave `common` out"), "{e}");
}

#[test]
fn a_program_replaces_the_default_of_an_action() {
    let registry = Registry::linked().unwrap();
    let save = Action::SaveSharded;
    assert_eq!(registry.default_of(save).to_string(), "torch_dist/1");
    let zarr = BackendVersion::new("zarr", 1);
    let other = registry.clone().with_default(save, zarr).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    let w = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    state.insert("w", ShardedTensor::full("w", w));
    for (registry, file) in [(registry.clone(), ".metadata"), (other, "w/.zarray")] {
        let place = dir.path().join(file.replace('/', "-"));
        blocking::run(reshard::save(&state, &place).registry(registry)).unwrap();
        assert!(place.join(file).exists(), "{file}");
        assert!(blocking::run(reshard::Checkpoint::open(&place)).is_ok());
    }
    let e = registry.with_default(save, BackendVersion::new("zarr", 9));
    assert!(e.unwrap_err().to_string().contains("zarr/9"));
    for action in Action::ALL {
        assert_eq!(action.to_string().parse::<Action>().unwrap(), action);
    }
    let e = "save sharded".parse::<Action>().unwrap_err().to_string();
    assert!(e.contains("save_sharded, load_sharded"), "{e}");
}

/// Counts the local plans of a save, and passes on which replicas are offered.
#[derive(Clone, Debug)]
struct Counting {
    base: DefaultSavePlanner,
    calls: Arc<AtomicU32>,
}

impl SavePlanner for Counting {
    fn base(&self) -> &dyn SavePlanner {
        &self.base
    }

    fn with_offer(&self, offer: Offer) -> Option<Arc<dyn SavePlanner>> {
        let mut other = self.clone();
        other.base.offer = offer;
        Some(Arc::new(other))
    }

    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &SaveContext<'_>,
    ) -> reshard::plan::Result<SavePlan> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.base.create_local_plan(state, cx)
    }
}

/// Brings [`Counting`].
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Counted {
    #[serde(skip)]
    calls: Arc<AtomicU32>,
    /// Whether it names a leaf that the state lacks.
    lost: bool,
}

#[typetag::serde(name = "counted")]
#[async_trait::async_trait]
impl SaveLayer for Counted {
    async fn set_up(
        &self,
        mut setup: SaveSetup,
        _: &FlatStateDict,
        _: &SaveCx<'_>,
    ) -> Result<SaveSetup> {
        setup.planner = Arc::new(Counting {
            base: DefaultSavePlanner::DEFAULT,
            calls: Arc::clone(&self.calls),
        });
        if self.lost {
            let path = reshard::model::Path(vec!["nowhere".into()]);
            setup.replicas.push((path, 1u32.into()));
        }
        Ok(setup)
    }
}

fn save_on_two(url: &str, strategy: SaveShardedStrategy) -> Vec<Option<String>> {
    let url: Arc<str> = url.into();
    on_ranks(groups(2), move |group| {
        let (url, strategy) = (Arc::clone(&url), strategy.clone());
        async move {
            let mut state = StateDict::new();
            let w = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
            // No rank has the main replica.
            let w = ShardedTensor::full("w", w).with_replica_id(1 + group.rank().0);
            state.insert("w", w);
            let save = reshard::save(&state, &*url).group(&*group);
            let saved = save.strategy(strategy).overwrite(true).await;
            saved.err().map(|e| e.to_string())
        }
    })
}

#[test]
fn settings_of_a_format_reach_a_planner_that_a_layer_brings() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let layer = Counted::default();
    let any = TorchDistConfig::new().with_keep_only_main_replica(false);
    let strategy = SaveShardedStrategy::from(any).layer(layer.clone());
    assert_eq!(save_on_two(&url, strategy), [None, None]);
    assert_eq!(layer.calls.load(Ordering::Relaxed), 2);
    let strategy = SaveShardedStrategy::from(TorchDistConfig::new()).layer(layer);
    let failed = save_on_two(&url, strategy);
    assert!(failed.iter().all(Option::is_some), "{failed:?}");
}

#[test]
fn a_layer_that_names_a_leaf_that_is_not_there_fails_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let layer = Counted {
        lost: true,
        ..Counted::default()
    };
    let strategy = SaveShardedStrategy::from(ZarrConfig::default()).layer(layer);
    for e in save_on_two(&url, strategy) {
        let e = e.unwrap();
        assert!(e.contains("nowhere") && e.contains("isn't a leaf"), "{e}");
    }
    assert!(!std::path::Path::new(&url).exists());
}
