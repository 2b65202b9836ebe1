//! Strategies with an observer on every hook, as configurations: what a test hands to a save or load.

use reshard::{
    strategy::{
        LoadShardedConfig, LoadShardedStrategy, Result, SaveFormat, SaveShardedConfig,
        SaveShardedStrategy, testkit::Observer,
    },
    torch_dist::TorchDistConfig,
};
use reshard_example::ExampleConfig;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The writer of `torch_dist`, or the example's, behind an observer.
#[derive(Debug, Serialize, Deserialize)]
pub struct TappedSave {
    torch: bool,
    #[serde(skip)]
    observer: Option<Observer>,
}

impl TappedSave {
    /// One of both behind `observer`.
    pub fn new(observer: Observer, torch: bool) -> Self {
        Self {
            torch,
            observer: Some(observer),
        }
    }
}

#[typetag::serde(name = "laws_tapped")]
impl SaveShardedConfig for TappedSave {
    fn build(&self) -> Result<SaveShardedStrategy> {
        let observer = self
            .observer
            .clone()
            .unwrap_or_else(|| Observer::new(|_| Ok(())));
        let format: Arc<dyn SaveFormat> = match self.torch {
            true => Arc::new(TorchDistConfig::new()),
            false => Arc::new(ExampleConfig::default()),
        };
        Ok(SaveShardedStrategy::new(observer.on(format)))
    }
}

/// Any load strategy behind an observer, with its readers.
#[derive(Debug, Serialize, Deserialize)]
pub struct TappedLoad {
    inner: Box<dyn LoadShardedConfig>,
    #[serde(skip)]
    observer: Option<Observer>,
}

impl TappedLoad {
    /// `inner` behind `observer`.
    pub fn new(observer: Observer, inner: impl LoadShardedConfig + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            observer: Some(observer),
        }
    }
}

#[typetag::serde(name = "laws_tapped")]
impl LoadShardedConfig for TappedLoad {
    fn build(&self) -> Result<LoadShardedStrategy> {
        let observer = self
            .observer
            .clone()
            .unwrap_or_else(|| Observer::new(|_| Ok(())));
        let mut strategy = self.inner.build()?;
        strategy.format = Arc::new(observer.on(strategy.format));
        Ok(strategy)
    }
}
