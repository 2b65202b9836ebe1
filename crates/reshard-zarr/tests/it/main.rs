//! Saves and loads of the zarr format, on ranks that are threads.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod arrays;
mod chunks;
mod contracts;
mod damaged;
mod interop;
mod laws;
mod refused;
mod zarr3;

use futures::executor::block_on;
use reshard_model::{DType, Dialect, FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner, SavePlanner};
use reshard_storage::{Entry, IfExists, Name, Store, StoreExt, testkit::MemoryStore};
use reshard_strategy::{
    LoadFailure, LoadShardedConfig, Loaded, OpenCx, Result, SaveShardedConfig, Saved,
    StorageReader,
    testkit::{Rank, load_on_ranks, save_on_ranks},
};
use reshard_zarr::{ZarrConfig, ZarrLoadConfig};
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

/// Pieces may lie in chunks as they like. The default planner refuses grids that ranks declare differently.
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

fn try_save(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) -> Vec<Result<Saved>> {
    let rank = |leaves| Rank {
        strategy: ZarrConfig::default().build().unwrap(),
        planner: Arc::new(Unvalidated) as _,
        flat: flat(leaves),
    };
    save_on_ranks(
        store,
        IfExists::Refuse,
        ranks.into_iter().map(rank).collect(),
    )
}

fn save(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) {
    try_save(store, ranks)
        .into_iter()
        .for_each(|saved| drop(saved.unwrap()));
}

fn try_load(
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    let rank = |leaves| Rank {
        strategy: ZarrLoadConfig::default().build().unwrap(),
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

fn open(store: &Arc<dyn Store>, dialect: Dialect) -> Arc<dyn StorageReader> {
    let cx = OpenCx::new(Arc::clone(store)).with_dialect(dialect);
    let strategy = ZarrLoadConfig::default().build().unwrap();
    block_on(strategy.open(&cx)).unwrap()
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

fn wanted(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    ShardedTensor::region_of(key, DType::Int32, shape, region)
}

/// An array, read by its `.zarray` and its chunks alone: what another program sees.
fn as_others_read(files: &BTreeMap<String, Vec<u8>>, key: &str) -> (Vec<u64>, Vec<u64>, Vec<i32>) {
    let json: serde_json::Value =
        serde_json::from_slice(&files[&format!("{key}/.zarray")]).unwrap();
    let dims = |name: &str| -> Vec<u64> {
        let list = json[name].as_array().unwrap();
        list.iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let (shape, chunks) = (dims("shape"), dims("chunks"));
    assert_eq!(
        (&json["dtype"], &json["order"]),
        (&"<i4".into(), &"C".into())
    );
    let in_chunk = Region::whole(&chunks).strides();
    let element = |at: &[u64]| {
        let name: Vec<String> = at
            .iter()
            .zip(&chunks)
            .map(|(i, n)| (i / n).to_string())
            .collect();
        let name = if name.is_empty() {
            "0".into()
        } else {
            name.join(".")
        };
        let chunk = &files[&format!("{key}/{name}")];
        assert_eq!(
            chunk.len() as u64,
            4 * chunks.iter().product::<u64>(),
            "{key}/{name} is whole"
        );
        let n: u64 = (0..at.len()).map(|a| at[a] % chunks[a] * in_chunk[a]).sum();
        i32::from_le_bytes(chunk[4 * n as usize..][..4].try_into().unwrap())
    };
    let all = match shape.contains(&0) {
        true => Vec::new(),
        false => Region::whole(&shape)
            .blocks(1)
            .map(|e| element(&e.offsets))
            .collect(),
    };
    (shape, chunks, all)
}
