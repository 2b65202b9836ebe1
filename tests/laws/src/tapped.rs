//! Strategies with a tap on every hook, as configurations: what a test hands to a save or load.

use reshard::{
    strategy::{
        LoadShardedConfig, LoadShardedStrategy, Planned, Result, SaveShardedConfig,
        SaveShardedStrategy, testkit::Tap,
    },
    torch_dist::TorchDistConfig,
};
use reshard_example::ExampleWriter;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The writer of `torch_dist`, or the example's, behind a tap.
#[derive(Debug, Serialize, Deserialize)]
pub struct TappedSave {
    torch: bool,
    #[serde(skip)]
    tap: Option<Tap>,
}

impl TappedSave {
    /// One of both behind `tap`.
    pub fn new(tap: Tap, torch: bool) -> Self {
        Self {
            torch,
            tap: Some(tap),
        }
    }
}

#[typetag::serde(name = "laws_tapped")]
impl SaveShardedConfig for TappedSave {
    fn build(&self) -> Result<Arc<dyn SaveShardedStrategy>> {
        let tap = self.tap.clone().unwrap_or_else(|| Tap::new(|_| Ok(())));
        Ok(match self.torch {
            true => Arc::new(Planned::new(tap.on(TorchDistConfig::new().writer()?))),
            false => Arc::new(Planned::new(tap.on(ExampleWriter))),
        })
    }
}

/// Any load strategy behind a tap, with its readers.
#[derive(Debug, Serialize, Deserialize)]
pub struct TappedLoad {
    inner: Box<dyn LoadShardedConfig>,
    #[serde(skip)]
    tap: Option<Tap>,
}

impl TappedLoad {
    /// `inner` behind `tap`.
    pub fn new(tap: Tap, inner: impl LoadShardedConfig + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            tap: Some(tap),
        }
    }
}

#[typetag::serde(name = "laws_tapped")]
impl LoadShardedConfig for TappedLoad {
    fn build(&self) -> Result<Arc<dyn LoadShardedStrategy>> {
        let tap = self.tap.clone().unwrap_or_else(|| Tap::new(|_| Ok(())));
        Ok(Arc::new(tap.on(self.inner.build()?)))
    }
}
