//! Ranks that save and load with sub-groups.

use futures::executor::block_on;
use reshard::{
    Checkpoint, DType, LoadError, LoadReport, LocalGroup, ProcessGroup, Result, SaveReport,
    ShardedTensor, StateDict, Tensor, ValueTree,
    plan::{Cast, DefaultLoadPlanner, LoadPlan, LoadPlanner},
    strategy::{LoadShardedStrategy, SaveShardedStrategy},
};
use reshard_comm::testkit::on_ranks;
use reshard_torch_dist as _;
use serde_json::json;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

pub(crate) type Group = Arc<dyn ProcessGroup>;

pub(crate) fn groups(ranks: usize) -> Vec<Group> {
    LocalGroup::new(ranks as u32)
        .into_iter()
        .map(|group| Arc::new(group) as Group)
        .collect()
}

/// What a rank saves with which settings, and the number of its sub-group, which is called "dp".
pub(crate) struct Saver {
    pub(crate) group: Group,
    pub(crate) color: Option<u32>,
    pub(crate) state: StateDict,
    pub(crate) settings: SaveShardedStrategy,
}

pub(crate) fn save(savers: Vec<Saver>, url: &str) -> Vec<Result<SaveReport>> {
    let url: Arc<str> = url.into();
    on_ranks(savers, move |saver| {
        let url = Arc::clone(&url);
        async move {
            let Saver {
                group,
                color,
                state,
                settings,
            } = saver;
            let mut save = reshard::save(&state, &*url)
                .group(&*group)
                .overwrite(true)
                .strategy(settings);
            if let Some(color) = color {
                let dp = group.split(Some(color), group.rank().0).await.unwrap();
                save = save.sub_group("dp", dp.unwrap());
            }
            save.await
        }
    })
}

/// The rank that wrote each chunk, by key and offset.
pub(crate) fn writers(url: &str) -> BTreeMap<(String, Vec<u64>), u32> {
    let opened = block_on(Checkpoint::open(url)).unwrap();
    let mut out = BTreeMap::new();
    for tensor in opened.metadata().tensors() {
        for chunk in opened.tensor(tensor.key()).unwrap().chunks() {
            let file = chunk.parts[0].file.to_string();
            let rank = file.trim_start_matches("__").split('_').next().unwrap();
            let at = (tensor.key().to_owned(), chunk.region.offsets.to_vec());
            assert!(out.insert(at, rank.parse().unwrap()).is_none());
        }
    }
    out
}

/// What a rank loads, and the number of its sub-group, which is called "dp".
pub(crate) struct Loader {
    pub(crate) group: Group,
    pub(crate) color: Option<u32>,
    pub(crate) template: StateDict,
    /// Settings in JSON.
    pub(crate) settings: serde_json::Value,
    pub(crate) memory: u64,
    /// Gets the rank's finished plan.
    pub(crate) plan: Arc<Mutex<Option<LoadPlan>>>,
}

impl Loader {
    pub(crate) fn new(group: Group, template: StateDict, settings: &serde_json::Value) -> Self {
        Self {
            group,
            color: None,
            template,
            settings: settings.clone(),
            memory: 64 << 20,
            plan: Arc::default(),
        }
    }
}

/// The settings of a plain load.
pub(crate) fn plain() -> serde_json::Value {
    json!({ "format": "torch_dist" })
}

pub(crate) type Loads = Vec<Result<(ValueTree, LoadReport), LoadError>>;

pub(crate) fn load(loaders: Vec<Loader>, url: &str) -> Loads {
    let url: Arc<str> = url.into();
    on_ranks(loaders, move |loader| {
        let url = Arc::clone(&url);
        async move {
            let mut load = reshard::load(loader.template, &*url)
                .group(&*loader.group)
                .exchange_memory(loader.memory)
                .planner(Recorder(
                    loader.plan,
                    DefaultLoadPlanner::DEFAULT.cast(Cast::Any),
                ))
                .strategy(strategy(loader.settings));
            if let Some(color) = loader.color {
                let dp = loader
                    .group
                    .split(Some(color), loader.group.rank().0)
                    .await
                    .unwrap();
                load = load.sub_group("dp", dp.unwrap());
            }
            load.with_report().await
        }
    })
}

/// Keeps the finished plan, and allows casts.
#[derive(Debug)]
struct Recorder(Arc<Mutex<Option<LoadPlan>>>, DefaultLoadPlanner);

impl LoadPlanner for Recorder {
    fn base(&self) -> &dyn LoadPlanner {
        &self.1
    }

    fn finish_plan(&self, plan: LoadPlan) -> reshard::plan::Result<LoadPlan> {
        *self.0.lock().unwrap() = Some(plan.clone());
        Ok(plan)
    }
}

/// The load strategy of a JSON.
fn strategy(json: serde_json::Value) -> LoadShardedStrategy {
    serde_json::from_value(json).unwrap()
}

/// A strategy with a layer around it.
pub(crate) fn layered(layer: serde_json::Value, base: &serde_json::Value) -> serde_json::Value {
    reshard::strategy::testkit::layered(layer, base)
}

/// Saves with as many ranks as there are states.
pub(crate) fn store(states: Vec<StateDict>, url: &str) {
    store_as("torch_dist", states, url);
}

/// [`store`] in a format, by the tag of its settings.
pub(crate) fn store_as(format: &str, states: Vec<StateDict>, url: &str) {
    let savers = groups(states.len()).into_iter().zip(states);
    let settings = layered(
        json!({ "type": "fully_parallel" }),
        &json!({ "format": format }),
    );
    let settings: SaveShardedStrategy = serde_json::from_value(settings).unwrap();
    let savers = savers.map(|(group, state)| Saver {
        group,
        color: None,
        state,
        settings: settings.clone(),
    });
    save(savers.collect(), url)
        .into_iter()
        .for_each(|saved| drop(saved.unwrap()));
}

/// Four tensors of which each rank has a replica.
pub(crate) fn replicated(rank: u32) -> StateDict {
    let mut state = StateDict::new();
    for key in ["a", "b", "c", "d"] {
        let data = Tensor::zeros(key, DType::Float32, &[8]).unwrap();
        state.insert(key, ShardedTensor::full(key, data).with_replica_id(rank));
    }
    state
}
