//! Saves and loads take the steps that Megatron Core documents, in its order, each once; and strategies of other versions are found or
//! refused by name.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use async_trait::async_trait;
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, ErrorKind, Registry, ShardedObject, ShardedTensor, StateDict,
    Tensor, Value, ValueTree, blocking,
    megatron::TorchCommon,
    model::{FlatStateDict, LocalNonpersistent, Payload, Sharded, ShardedTensorFactory, Tree},
    plan::{
        Declared, DefaultLoadPlanner, DefaultSavePlanner, LoadContext, LoadPlan, LoadPlanner,
        Metadata, ReadItem, Result as PlanResult, SavePlan, SavePlanner, WriteData, WriteItem,
    },
    storage::FileBody,
    strategy::{
        LoadCommonStrategy, Make, OpenCx, Registration, Result, SaveCommonStrategy,
        SaveShardedStrategy, StorageReader,
    },
    torch_dist::TorchDistConfig,
};
use reshard_storage::testkit::{Action, ActionLog};
use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
};

/// The steps so far. There is one test that takes them.
static STEPS: Mutex<Vec<&str>> = Mutex::new(Vec::new());

fn step(name: &'static str) {
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    if steps.last() != Some(&name) {
        steps.push(name);
    }
}

fn steps() -> Vec<&'static str> {
    std::mem::take(&mut STEPS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Debug)]
struct Noted;

impl SavePlanner for Noted {
    fn validate(&self, ranks: &[Arc<Declared>]) -> PlanResult<()> {
        step("validate the sharding");
        DefaultSavePlanner::DEFAULT.validate(ranks)
    }

    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &reshard::plan::SaveContext<'_>,
    ) -> PlanResult<SavePlan> {
        step("split sharded leaves from common ones");
        let sharded = |leaf: &Sharded| ["half.a", "half.b", "rng"].contains(&leaf.key());
        assert!(state.values().all(sharded));
        DefaultSavePlanner::DEFAULT.create_local_plan(state, cx)
    }

    fn create_global_plan(&self, plans: Vec<SavePlan>) -> PlanResult<(Vec<SavePlan>, Metadata)> {
        DefaultSavePlanner::DEFAULT.create_global_plan(plans)
    }

    fn lookup_object(&self, item: &WriteItem, state: &FlatStateDict) -> PlanResult<WriteData> {
        step(match item.tensor() {
            Some(_) => "save sharded tensors",
            None => "save sharded objects",
        });
        DefaultSavePlanner::DEFAULT.lookup_object(item, state)
    }
}

impl LoadPlanner for Noted {
    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> PlanResult<LoadPlan> {
        step("compare what is asked for with what is stored");
        DefaultLoadPlanner::DEFAULT.create_local_plan(template, cx)
    }

    fn load_object(&self, _: &ReadItem, object: Payload) -> PlanResult<Payload> {
        step("load sharded objects");
        Ok(object)
    }

    fn commit_tensor(&self, _: &ReadItem, _: &ShardedTensor) -> PlanResult<()> {
        step("load sharded tensors");
        Ok(())
    }
}

/// The common strategy, noted, as some version of a name of its own.
#[derive(Debug)]
struct Common(u32);

impl SaveCommonStrategy for Common {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("noted", self.0)
    }

    fn layout_common(&self, common: &ValueTree) -> Result<Vec<FileBody>> {
        step("save common state");
        assert!(common.get("here").is_none() && common.get("step").is_some());
        TorchCommon.layout_common(common)
    }

    fn layout_objects(&self, objects: &[ShardedObject]) -> Result<Option<Vec<FileBody>>> {
        if !objects.is_empty() {
            step("the common strategy saves objects");
        }
        TorchCommon.layout_objects(objects)
    }
}

#[async_trait]
impl LoadCommonStrategy for Common {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("noted", self.0)
    }

    async fn load_common(&self, cx: &OpenCx, from: &dyn StorageReader) -> Result<ValueTree> {
        step("load common state");
        TorchCommon.load_common(cx, from).await
    }

    fn can_handle_sharded_objects(&self) -> bool {
        true
    }

    async fn load_sharded_metadata(&self, cx: &OpenCx) -> Result<Vec<ShardedObject>> {
        TorchCommon.load_sharded_metadata(cx).await
    }

    async fn load_sharded_objects(
        &self,
        objects: Vec<ShardedObject>,
        cx: &OpenCx,
    ) -> Result<Vec<ShardedObject>> {
        step("the common strategy loads objects");
        TorchCommon.load_sharded_objects(objects, cx).await
    }
}

fn registration(version: u32, make: Make) -> Registration {
    Registration {
        backend: "noted",
        version,
        origin: "noted-crate",
        origin_version: "3.1.0",
        make,
    }
}

/// A factory that cuts a tensor into halves with keys of their own.
fn state(data: Option<Tensor>) -> StateDict {
    let halves = data.clone();
    let factory = ShardedTensorFactory::new(
        "half",
        data.unwrap_or_else(|| Tensor::from_vec(&[1], vec![0f32]).unwrap()),
        move |_| {
            step("expand factories");
            let mut out = Tree::new();
            for (i, key) in ["half.a", "half.b"].into_iter().enumerate() {
                let leaf = match &halves {
                    Some(t) => {
                        let rows = reshard::Region::new([2 * i as u64], [2]);
                        ShardedTensor::full(key, t.narrow(&rows))
                    }
                    None => ShardedTensor::template(key, reshard::DType::Float32, &[2]),
                };
                out.insert_tree(key, Tree::Leaf(Sharded::Tensor(leaf)));
            }
            Ok(out)
        },
        |_, loaded| {
            step("merge factories");
            assert!(loaded.get("half.a").is_some() && loaded.get("half.b").is_some());
            Ok(Value::Int(4))
        },
    );
    let mut state = StateDict::new();
    state.insert("whole", factory);
    let cell = ShardedObject::new("rng", Value::Int(9), &[1], &[0], 0);
    state.insert("rng", cell.unwrap());
    state.insert("here", LocalNonpersistent::new(5u8));
    state.insert("step", 7);
    state
}

/// A format that stores objects, and one whose objects the common strategy stores. Of the latter, objects and tensors are planned apart.
#[test]
fn saves_and_loads_take_the_documented_steps_in_order() {
    let planned = [
        "split sharded leaves from common ones",
        "validate the sharding",
    ];
    let compared = "compare what is asked for with what is stored";
    saves_and_loads(
        TorchDistConfig::new().into(),
        &[
            &["expand factories"][..],
            &planned,
            &["save common state", "save sharded objects"],
            &["save sharded tensors"],
        ]
        .concat(),
        &[
            "load common state",
            "expand factories",
            compared,
            "load sharded objects",
            "load sharded tensors",
            "merge factories",
        ],
    );
    #[cfg(feature = "zarr")]
    saves_and_loads(
        reshard::zarr::ZarrConfig::default().into(),
        &[
            &["expand factories"][..],
            &planned,
            &planned,
            &["save common state", "save sharded objects"],
            &["the common strategy saves objects"],
            &["save sharded tensors"],
        ]
        .concat(),
        &[
            "load common state",
            "expand factories",
            compared,
            "the common strategy loads objects",
            "load sharded objects",
            compared,
            "load sharded tensors",
            "merge factories",
        ],
    );
}

/// The steps of a save and of a load.
fn saves_and_loads(format: SaveShardedStrategy, saves: &[&str], loads: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let home = fs::canonicalize(dir.path()).unwrap();
    let url = home.join("ckpt").display().to_string();
    let log = ActionLog::below(&home);
    let data = Tensor::from_vec(&[4], vec![1f32, 2., 3., 4.]).unwrap();
    let full = state(Some(data));
    let save = reshard::save(&full, &url)
        .planner(Noted)
        .strategy(format)
        .common_strategy(Common(2));
    blocking::run(save).unwrap();
    assert_eq!(steps(), saves);
    // The sixth and the seventh: the format record, and last metadata.json.
    let mut written: Vec<String> = Vec::new();
    for action in log.seen() {
        if let Action::Wrote(path) = action {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if written.last() != Some(&name) {
                written.push(name);
            }
        }
    }
    let at = |name: &str| written.iter().position(|w| w == name).unwrap();
    if written.iter().any(|name| name == ".metadata") {
        assert!(at("common.pt") < at("__0_0.distcp") && at("__0_0.distcp") < at(".metadata"));
    } else {
        assert!(at("common.pt") < at("shard_0_1.pt") && at("shard_0_1.pt") < at("0"));
    }
    assert_eq!(at("metadata.json"), written.len() - 1, "{written:?}");

    // A later version of the strategy says that it loads the stored one.
    let mut registry = Registry::linked().unwrap();
    let make = Make::LoadCommon(|| Arc::new(Common(3)));
    registry.register(registration(3, make)).unwrap();
    let load = reshard::load(state(None), &url)
        .registry(registry)
        .planner(Noted);
    let loaded = blocking::run(load).unwrap();
    assert_eq!(steps(), loads);
    let int = |key: &str| loaded.get(key).unwrap().leaf().unwrap().as_int();
    assert_eq!((int("whole"), int("step")), (Some(4), Some(7)));
    assert_eq!(int("rng"), Some(9));
    assert!(loaded.get("here").is_some());
}

#[test]
fn a_newer_version_names_the_crate_to_update() {
    let mut registry = Registry::default();
    let make = Make::LoadCommon(|| Arc::new(Common(3)));
    registry.register(registration(3, make)).unwrap();
    for version in [1, 2, 3] {
        let found = registry.load_common(&BackendVersion::new("noted", version));
        assert_eq!(found.unwrap().key().version, 3);
    }
    let e = registry
        .load_common(&BackendVersion::new("noted", 4))
        .unwrap_err();
    let said = e.to_string();
    assert!(
        said.contains("noted/4 is newer") && said.contains("noted-crate 3.1.0"),
        "{said}"
    );
    // One of an unknown name is no older version of anything.
    let e = registry
        .load_common(&BackendVersion::new("other", 1))
        .unwrap_err();
    assert!(e.to_string().starts_with("no strategy is linked"), "{e}");

    // So does a checkpoint of a later version.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ckpt");
    let url = path.display().to_string();
    let mut plain = StateDict::new();
    plain.insert("step", 7);
    blocking::save(&plain, &url).unwrap();
    let json = fs::read_to_string(path.join("metadata.json")).unwrap();
    let newer = json.replace(
        "\"sharded_backend_version\": 1",
        "\"sharded_backend_version\": 2",
    );
    fs::write(path.join("metadata.json"), newer).unwrap();
    let e = block_on(Checkpoint::open(&url)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let said = e.to_string();
    assert!(
        said.contains("torch_dist/2") && said.contains("reshard-torch-dist"),
        "{said}"
    );
}
