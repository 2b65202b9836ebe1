//! Strategies with an observer on every hook.

use reshard::{
    strategy::{LoadShardedStrategy, SaveFormat, SaveShardedStrategy, testkit::Observer},
    torch_dist::TorchDistConfig,
};
use reshard_example::ExampleConfig;
use std::sync::Arc;

/// Saves as `torch_dist`, or as the example, behind an observer.
pub fn tapped_save(observer: &Observer, torch: bool) -> SaveShardedStrategy {
    let format: Arc<dyn SaveFormat> = match torch {
        true => Arc::new(TorchDistConfig::new()),
        false => Arc::new(ExampleConfig::default()),
    };
    SaveShardedStrategy::new(observer.on(format))
}

/// Any load strategy behind an observer, with its readers.
pub fn tapped_load(
    observer: &Observer,
    inner: impl Into<LoadShardedStrategy>,
) -> LoadShardedStrategy {
    let mut strategy = inner.into();
    strategy.format = Arc::new(observer.on(strategy.format));
    strategy
}
