//! Saves and loads of TensorFlow's checkpoints, on ranks that are threads.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod big_endian;
mod contracts;
mod damaged;
mod laws;

use futures::executor::block_on;
use reshard_model::{DType, Dialect, FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_storage::{Entry, IfExists, Name, Store, StoreExt, testkit::MemoryStore};
use reshard_strategy::{
    LoadFailure, LoadShardedConfig, Loaded, OpenCx, Result, SaveShardedConfig, StorageReader,
    testkit::{Rank, load_on_ranks, save_on_ranks},
};
use reshard_tensor_bundle::{TensorBundleConfig, TensorBundleLoadConfig};
use std::{collections::BTreeMap, sync::Arc};

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn flat(leaves: impl IntoIterator<Item = ShardedTensor>) -> FlatStateDict {
    let leaves = leaves.into_iter().enumerate();
    leaves
        .map(|(n, t)| (Path(vec![format!("{n}").into()]), Sharded::Tensor(t)))
        .collect()
}

fn save(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) {
    save_as(&TensorBundleConfig::default(), store, ranks);
}

fn save_as(config: &TensorBundleConfig, store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) {
    let rank = |leaves| Rank {
        strategy: config.build().unwrap(),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: flat(leaves),
    };
    save_on_ranks(
        store,
        IfExists::Refuse,
        ranks.into_iter().map(rank).collect(),
    )
    .into_iter()
    .for_each(|saved| drop(saved.unwrap()));
}

fn try_load(
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    let rank = |leaves| Rank {
        strategy: TensorBundleLoadConfig::default().build().unwrap(),
        planner: Arc::new(DefaultLoadPlanner::DEFAULT) as _,
        flat: flat(leaves),
    };
    load_on_ranks(store, ranks.into_iter().map(rank).collect())
}

/// The leaves of each rank, in their order.
fn load(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) -> Vec<Vec<Tensor>> {
    let host = |leaf: Sharded| match leaf {
        Sharded::Tensor(t) => t.data.host().unwrap().clone(),
        Sharded::Object(_) => panic!("an object was loaded"),
    };
    let loaded = try_load(store, ranks).into_iter();
    loaded
        .map(|rank| {
            let Loaded { state, .. } = rank.map_err(|f| f.error).unwrap();
            state.into_values().map(host).collect()
        })
        .collect()
}

fn try_open(store: &Arc<dyn Store>) -> Result<Arc<dyn StorageReader>> {
    let cx = OpenCx::new(Arc::clone(store)).with_dialect(Dialect::Dcp);
    block_on(TensorBundleLoadConfig::default().build().unwrap().open(&cx))
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

/// A place with these files.
fn place(files: &BTreeMap<String, Vec<u8>>) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    for (name, bytes) in files {
        store.put(Name::new(name.as_str()).unwrap(), bytes.clone().into());
    }
    Arc::new(store)
}

/// The numbers of a region's elements in its tensor.
fn numbers(shape: &[u64], region: &Region) -> Vec<i32> {
    let strides = Region::whole(shape).strides();
    let number = |e: Region| -> u64 { e.offsets.iter().zip(&*strides).map(|(i, n)| i * n).sum() };
    match region.is_empty() {
        true => Vec::new(),
        false => region.clone().blocks(1).map(|e| number(e) as i32).collect(),
    }
}

/// A leaf of a tensor whose elements are their numbers.
fn piece(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    let data = Tensor::from_vec(&region.lengths, numbers(shape, &region)).unwrap();
    ShardedTensor::region_of(key, DType::Int32, shape, region).with_data(data)
}

/// A leaf without data.
fn wanted(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    ShardedTensor::region_of(key, DType::Int32, shape, region)
}
