//! Saves and loads of safetensors, on ranks that are threads.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod contracts;
mod damaged;
mod dear;
mod files;
mod interop;
mod laws;
mod objects;
mod quantized;
mod refused;
mod verdicts;

use futures::executor::block_on;
use reshard_model::{Dialect, Region, ShardedTensor, Tensor};
use reshard_safetensors::{SafetensorsConfig, SafetensorsLoadConfig};
use reshard_storage::Store;
use reshard_strategy::{
    LoadFailure, LoadShardedStrategy, Loaded, OpenCx, Result, Saved, StorageReader,
    testkit::numbered::{self, Files, files, numbers, piece, place, store, wanted},
};
use std::sync::Arc;

fn try_save(
    store: &Arc<dyn Store>,
    config: &SafetensorsConfig,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Saved>> {
    numbered::try_save(config, store, ranks)
}

fn save(store: &Arc<dyn Store>, config: &SafetensorsConfig, ranks: Vec<Vec<ShardedTensor>>) {
    numbered::save(config, store, ranks);
}

fn try_load(
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    numbered::try_load(&SafetensorsLoadConfig::default(), store, ranks)
}

/// The leaves of each rank, in their order.
fn load(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) -> Vec<Vec<Tensor>> {
    numbered::load(&SafetensorsLoadConfig::default(), store, ranks)
}

fn try_open(store: &Arc<dyn Store>) -> Result<Arc<dyn StorageReader>> {
    let cx = OpenCx::new(Arc::clone(store)).with_dialect(Dialect::Dcp);
    let strategy = LoadShardedStrategy::new(SafetensorsLoadConfig::default());
    block_on(strategy.open(&cx))
}

fn open(store: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
    try_open(store).unwrap()
}

fn whole(key: &str, shape: &[u64]) -> ShardedTensor {
    piece(key, shape, Region::whole(shape))
}

/// A header, read without this crate, and the bytes behind it.
fn header_of(file: &[u8]) -> (serde_json::Map<String, serde_json::Value>, &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    assert_eq!((8 + length) % 64, 0, "tensors begin at a multiple of 64");
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
