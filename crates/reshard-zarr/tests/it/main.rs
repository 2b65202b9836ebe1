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
mod dear;
mod interop;
mod laws;
mod refused;
mod zarr3;

use futures::executor::block_on;
use reshard_model::{Dialect, Region, ShardedTensor, Tensor};
use reshard_storage::Store;
use reshard_strategy::{
    LoadFailure, LoadShardedStrategy, Loaded, OpenCx, Result, Saved, StorageReader,
    testkit::numbered::{self, files, flat, numbers, piece, place, store, wanted},
};
use reshard_zarr::{ZarrConfig, ZarrLoadConfig};
use std::{collections::BTreeMap, sync::Arc};

fn try_save(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) -> Vec<Result<Saved>> {
    numbered::try_save(&ZarrConfig::default(), store, ranks)
}

fn save(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) {
    numbered::save(&ZarrConfig::default(), store, ranks);
}

fn try_load(
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    numbered::try_load(&ZarrLoadConfig::default(), store, ranks)
}

/// The leaves of each rank, in their order.
fn load(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) -> Vec<Vec<Tensor>> {
    numbered::load(&ZarrLoadConfig::default(), store, ranks)
}

fn open(store: &Arc<dyn Store>, dialect: Dialect) -> Arc<dyn StorageReader> {
    let cx = OpenCx::new(Arc::clone(store)).with_dialect(dialect);
    let strategy = LoadShardedStrategy::new(ZarrLoadConfig::default());
    block_on(strategy.open(&cx)).unwrap()
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
