//! Saves and loads of safetensors, on ranks that are threads.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod contracts;
mod damaged;
mod files;
mod interop;
mod laws;
mod objects;
mod refused;

use futures::executor::block_on;
use reshard_model::{DType, Dialect, FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner, SavePlanner};
use reshard_safetensors::{SafetensorsConfig, SafetensorsLoadConfig};
use reshard_storage::{Entry, IfExists, Name, Store, StoreExt, testkit::MemoryStore};
use reshard_strategy::{
    LoadFailure, LoadShardedConfig, Loaded, OpenCx, Result, SaveShardedConfig, Saved,
    StorageReader,
    testkit::{Rank, load_on_ranks, save_on_ranks},
};
use std::{collections::BTreeMap, sync::Arc};

type Files = BTreeMap<String, Vec<u8>>;

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn flat(leaves: impl IntoIterator<Item = ShardedTensor>) -> FlatStateDict {
    let leaves = leaves.into_iter().enumerate();
    leaves
        .map(|(n, t)| (Path(vec![format!("{n}").into()]), Sharded::Tensor(t)))
        .collect()
}

/// Pieces may be any boxes. The default planner refuses grids that ranks declare differently.
#[derive(Debug)]
struct Unvalidated;

impl SavePlanner for Unvalidated {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DEFAULT
    }

    fn validates(&self) -> bool {
        false
    }
}

fn try_save(
    store: &Arc<dyn Store>,
    config: &SafetensorsConfig,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Saved>> {
    let rank = |leaves| Rank {
        strategy: config.build().unwrap(),
        planner: Arc::new(Unvalidated) as _,
        flat: flat(leaves),
    };
    save_on_ranks(
        store,
        IfExists::Refuse,
        ranks.into_iter().map(rank).collect(),
    )
}

fn save(store: &Arc<dyn Store>, config: &SafetensorsConfig, ranks: Vec<Vec<ShardedTensor>>) {
    try_save(store, config, ranks)
        .into_iter()
        .for_each(|saved| drop(saved.unwrap()));
}

fn try_load(
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    let rank = |leaves| Rank {
        strategy: SafetensorsLoadConfig::default().build().unwrap(),
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
            let state = rank.map_err(|f| f.error).unwrap().state;
            state.into_values().map(host).collect()
        })
        .collect()
}

fn try_open(store: &Arc<dyn Store>) -> Result<Arc<dyn StorageReader>> {
    let cx = OpenCx::new(Arc::clone(store)).with_dialect(Dialect::Dcp);
    let strategy = SafetensorsLoadConfig::default().build().unwrap();
    block_on(strategy.open(&cx))
}

fn open(store: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
    try_open(store).unwrap()
}

/// All files with their bytes.
fn files(store: &Arc<dyn Store>) -> Files {
    let all = block_on(store.files()).unwrap();
    let read = |e: &Entry| block_on(store.read(&e.name, 0..e.bytes)).unwrap().to_vec();
    all.iter().map(|e| (e.name.to_string(), read(e))).collect()
}

/// A place with these files.
fn place(files: &Files) -> Arc<dyn Store> {
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

fn whole(key: &str, shape: &[u64]) -> ShardedTensor {
    piece(key, shape, Region::whole(shape))
}

fn wanted(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    ShardedTensor::region_of(key, DType::Int32, shape, region)
}

/// A header, read without this crate, and the bytes behind it.
fn header_of(file: &[u8]) -> (serde_json::Map<String, serde_json::Value>, &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    assert_eq!(length % 8, 0, "tensors begin at a multiple of 8");
    let header = serde_json::from_slice(&file[8..8 + length]).unwrap();
    (header, &file[8 + length..])
}

/// What another program sees of a tensor: shape and elements.
fn as_others_read(file: &[u8], key: &str) -> (Vec<u64>, Vec<i32>) {
    let (header, data) = header_of(file);
    let entry = &header[key];
    assert_eq!(entry["dtype"], "I32");
    let list = |name: &str| -> Vec<u64> {
        let list = entry[name].as_array().unwrap();
        list.iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let (shape, at) = (list("shape"), list("data_offsets"));
    let bytes = &data[at[0] as usize..at[1] as usize];
    let elements = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| i32::from_le_bytes(*b));
    (shape, elements.collect())
}
