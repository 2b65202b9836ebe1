//! Saves and loads of TensorFlow's checkpoints, on ranks that are threads.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod big_endian;
mod contracts;
mod damaged;
mod laws;
mod places;

use futures::executor::block_on;
use reshard_model::{Dialect, ShardedTensor, Tensor};
use reshard_storage::Store;
use reshard_strategy::{
    LoadFailure, LoadShardedStrategy, Loaded, OpenCx, Result, StorageReader,
    testkit::numbered::{self, files, numbers, piece, place, store, wanted},
};
use reshard_tensor_bundle::{TensorBundleConfig, TensorBundleLoadConfig};
use std::sync::Arc;

fn save(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) {
    save_as(&TensorBundleConfig::default(), store, ranks);
}

fn save_as(config: &TensorBundleConfig, store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) {
    numbered::save(config, store, ranks);
}

fn try_load(
    store: &Arc<dyn Store>,
    ranks: Vec<Vec<ShardedTensor>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    numbered::try_load(&TensorBundleLoadConfig::default(), store, ranks)
}

/// The leaves of each rank, in their order.
fn load(store: &Arc<dyn Store>, ranks: Vec<Vec<ShardedTensor>>) -> Vec<Vec<Tensor>> {
    numbered::load(&TensorBundleLoadConfig::default(), store, ranks)
}

fn try_open(store: &Arc<dyn Store>) -> Result<Arc<dyn StorageReader>> {
    let cx = OpenCx::new(Arc::clone(store)).with_dialect(Dialect::Dcp);
    block_on(LoadShardedStrategy::new(TensorBundleLoadConfig::default()).open(&cx))
}

fn open(store: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
    try_open(store).unwrap()
}
