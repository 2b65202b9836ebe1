//! The suites that every strategy has to pass, with the wrapper of saves around each format.

use reshard_parallel::FullyParallelSave;
use reshard_strategy::{LoadShardedStrategy, SaveShardedStrategy, testkit};
use reshard_torch_dist::{TorchDistConfig, TorchDistLoadConfig};
use reshard_zarr::{Zarr3Config, Zarr3LoadConfig, ZarrConfig, ZarrLoadConfig};

fn around(format: impl Into<SaveShardedStrategy>, load: &LoadShardedStrategy) {
    testkit::save_load_contract(&FullyParallelSave::new().around(format), load);
}

#[test]
fn a_shared_save_of_torch_dist_keeps_the_contract() {
    around(
        TorchDistConfig::default(),
        &TorchDistLoadConfig::default().into(),
    );
}

#[test]
fn a_shared_save_of_zarr_keeps_the_contract() {
    around(ZarrConfig::default(), &ZarrLoadConfig::default().into());
}

#[test]
fn a_shared_save_of_zarr3_keeps_the_contract() {
    around(Zarr3Config::default(), &Zarr3LoadConfig::default().into());
}
