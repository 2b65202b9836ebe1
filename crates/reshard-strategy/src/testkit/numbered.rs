//! Tensors whose elements are their numbers, saved and loaded in memory by ranks that are threads, and the files that this makes.

use super::{Rank, load_on_ranks, save_on_ranks};
use crate::{LoadFailure, LoadShardedStrategy, Loaded, Result, SaveShardedStrategy, Saved};
use futures_executor::block_on;
use reshard_model::{DType, FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner, SavePlanner};
use reshard_storage::{
    CountingStore, Entry, Hints, IfExists, Name, Store, StoreExt, testkit::MemoryStore,
};
use std::{collections::BTreeMap, sync::Arc};

/// Files by name, with their bytes.
pub type Files = BTreeMap<String, Vec<u8>>;

/// An empty place.
pub fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// All files of a place.
pub fn files(store: &Arc<dyn Store>) -> Files {
    let all = block_on(store.files()).unwrap();
    let read = |e: &Entry| block_on(store.read(&e.name, 0..e.bytes)).unwrap().to_vec();
    all.iter().map(|e| (e.name.to_string(), read(e))).collect()
}

/// A place with these files.
pub fn place(files: &Files) -> Arc<dyn Store> {
    Arc::new(filled(MemoryStore::new(), files))
}

/// A place with these files, in which requests are dear, and are counted.
pub fn dear(files: &Files) -> CountingStore {
    let hints = Hints::default().with_coalesce_gap(64 << 10);
    let store = filled(MemoryStore::new().with_hints(hints), files);
    CountingStore::new(Arc::new(store))
}

fn filled(store: MemoryStore, files: &Files) -> MemoryStore {
    for (name, bytes) in files {
        store.put(Name::new(name.as_str()).unwrap(), bytes.clone().into());
    }
    store
}

/// The state of a rank with these leaves.
pub fn flat(leaves: impl IntoIterator<Item = ShardedTensor>) -> FlatStateDict {
    let leaves = leaves.into_iter().enumerate();
    leaves
        .map(|(n, t)| (Path(vec![format!("{n}").into()]), Sharded::Tensor(t)))
        .collect()
}

/// The numbers of a region's elements in its tensor.
pub fn numbers(shape: &[u64], region: &Region) -> Vec<i32> {
    let strides = Region::whole(shape).strides();
    let number = |e: Region| -> u64 { e.offsets.iter().zip(&*strides).map(|(i, n)| i * n).sum() };
    match region.is_empty() {
        true => Vec::new(),
        false => region.clone().blocks(1).map(|e| number(e) as i32).collect(),
    }
}

/// One step in cutting a shape: of which of the boxes so far, along which axis, and where. Numbers that are too large wrap around.
pub type Cut = (usize, usize, u64);

/// Disjoint boxes that make up a shape: each step cuts one of them in two, if it is long enough.
pub fn boxes(shape: &[u64], cuts: &[Cut]) -> Vec<Region> {
    let mut boxes = vec![Region::whole(shape)];
    for (which, axis, at) in cuts {
        if shape.is_empty() {
            break;
        }
        let (n, axis) = (which % boxes.len(), axis % shape.len());
        let length = boxes[n].lengths[axis];
        if length < 2 {
            continue;
        }
        let at = 1 + at % (length - 1);
        let mut rest = boxes[n].clone();
        rest.offsets[axis] += at;
        rest.lengths[axis] -= at;
        boxes[n].lengths[axis] = at;
        boxes.push(rest);
    }
    boxes
}

/// Each box goes to one of some ranks; with another seed to another one.
pub fn deal<T>(boxes: Vec<T>, ranks: usize, seed: usize) -> Vec<Vec<T>> {
    let mut out: Vec<Vec<T>> = (0..ranks).map(|_| Vec::new()).collect();
    for (n, b) in boxes.into_iter().enumerate() {
        out[(n * 7 + seed * (n + 1)) % ranks].push(b);
    }
    out
}

/// A leaf of a tensor whose elements are their numbers.
pub fn piece(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    let data = Tensor::from_vec(&region.lengths, numbers(shape, &region)).unwrap();
    wanted(key, shape, region).with_data(data)
}

/// A leaf of such a tensor without data.
pub fn wanted(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    ShardedTensor::region_of(key, DType::Int32, shape, region)
}

/// Pieces may be any boxes. The default planner refuses grids that ranks declare differently.
#[derive(Debug)]
pub struct Unvalidated;

impl SavePlanner for Unvalidated {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DEFAULT
    }

    fn validates(&self) -> bool {
        false
    }
}

/// Saves the leaves of each rank.
pub fn try_save(
    config: &(impl Clone + Into<SaveShardedStrategy>),
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Saved>> {
    let config: &SaveShardedStrategy = &config.clone().into();
    let rank = |leaves| Rank {
        strategy: config.clone().into(),
        planner: Arc::new(Unvalidated) as _,
        flat: flat(leaves),
    };
    let ranks = ranks.into_iter().map(rank).collect();
    save_on_ranks(store, IfExists::Refuse, ranks)
}

/// Saves the leaves of each rank, which succeeds.
pub fn save(
    config: &(impl Clone + Into<SaveShardedStrategy>),
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) {
    let config: &SaveShardedStrategy = &config.clone().into();
    let saved = try_save(config, store, ranks).into_iter();
    saved.for_each(|saved| drop(saved.unwrap()));
}

/// Loads the leaves of each rank.
pub fn try_load(
    config: &(impl Clone + Into<LoadShardedStrategy>),
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    let config: &LoadShardedStrategy = &config.clone().into();
    let rank = |leaves| Rank {
        strategy: config.clone().into(),
        planner: Arc::new(DefaultLoadPlanner::DEFAULT) as _,
        flat: flat(leaves),
    };
    load_on_ranks(store, ranks.into_iter().map(rank).collect())
}

/// The loaded tensors of each rank, in the order of its leaves.
pub fn load(
    config: &(impl Clone + Into<LoadShardedStrategy>),
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Vec<Tensor>> {
    let config: &LoadShardedStrategy = &config.clone().into();
    let host = |leaf: Sharded| match leaf {
        Sharded::Tensor(t) => t.data.host().unwrap().clone(),
        Sharded::Object(_) => panic!("an object was loaded"),
    };
    let of_rank = |rank: Result<Loaded, LoadFailure>| {
        let state = rank.map_err(|f| f.error).unwrap().state;
        state.into_values().map(host).collect()
    };
    let loaded = try_load(config, store, ranks).into_iter();
    loaded.map(of_rank).collect()
}
