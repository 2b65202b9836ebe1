//! Files of `torch.save`, saved and loaded on ranks that are threads.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod contracts;
mod damaged;
mod dear;
mod fixtures;
mod interop;
mod laws;
mod saved;

use futures::executor::block_on;
use reshard_model::{Dialect, FlatStateDict, StateDict, split};
use reshard_plan::{DefaultSavePlanner, PlannerData};
use reshard_storage::{Entry, IfExists, Name, Store, StoreExt, testkit::MemoryStore};
use reshard_strategy::{
    LoadShardedStrategy, OpenCx, Result, SaveShardedStrategy, StorageReader,
    testkit::{Rank, save_on_ranks},
};
use reshard_torch_save::{TorchSaveConfig, TorchSaveLoadConfig};
use std::{collections::BTreeMap, sync::Arc};

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// A place with these files.
fn place<'f>(files: impl IntoIterator<Item = (&'f str, Vec<u8>)>) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    for (name, bytes) in files {
        store.put(Name::new(name).unwrap(), bytes.into());
    }
    Arc::new(store)
}

fn try_open(store: &Arc<dyn Store>) -> Result<Arc<dyn StorageReader>> {
    let strategy = LoadShardedStrategy::new(TorchSaveLoadConfig::default());
    block_on(strategy.open(&OpenCx::new(Arc::clone(store))))
}

fn open(store: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
    try_open(store).unwrap()
}

/// All files with their bytes.
fn files(store: &Arc<dyn Store>) -> BTreeMap<String, Vec<u8>> {
    let all = block_on(store.files()).unwrap();
    let read = |e: &Entry| block_on(store.read(&e.name, 0..e.bytes)).unwrap().to_vec();
    all.iter().map(|e| (e.name.to_string(), read(e))).collect()
}

/// The leaves of a state in PyTorch's dialect, and their paths.
fn leaves(state: StateDict) -> (FlatStateDict, PlannerData) {
    let parts = split(state, Dialect::Dcp).unwrap();
    (parts.flat, PlannerData::Paths(parts.paths))
}

/// Gives each key its path, as the facade does.
#[derive(Debug)]
struct WithPaths(PlannerData);

impl reshard_plan::SavePlanner for WithPaths {
    fn base(&self) -> &dyn reshard_plan::SavePlanner {
        &DefaultSavePlanner::DCP
    }

    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &reshard_plan::SaveContext<'_>,
    ) -> reshard_plan::Result<reshard_plan::SavePlan> {
        let plan = self.base().create_local_plan(state, cx)?;
        Ok(plan.with_planner_data(self.0.clone()))
    }
}

/// Saves the states of ranks, in PyTorch's dialect.
fn save(store: &Arc<dyn Store>, ranks: Vec<StateDict>) {
    save_as(&TorchSaveConfig::default().into(), store, ranks);
}

fn save_as(config: &SaveShardedStrategy, store: &Arc<dyn Store>, ranks: Vec<StateDict>) {
    let rank = |state| {
        let (flat, paths) = leaves(state);
        Rank {
            strategy: config.clone().into(),
            planner: Arc::new(WithPaths(paths)) as _,
            flat,
        }
    };
    let saved = save_on_ranks(
        store,
        IfExists::Refuse,
        ranks.into_iter().map(rank).collect(),
    );
    saved.into_iter().for_each(|rank| drop(rank.unwrap()));
}
