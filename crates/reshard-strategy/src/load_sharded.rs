//! Strategies that load sharded leaves: a format with its settings, and layers around its planning.

use crate::{
    BackendVersion, FormatInfo, LoadCommonStrategy, LoadCx, LoadFailure, LoadPipelineOptions,
    Loaded, OpenCx, Result, StorageReader, UniqueJson, common::compatible, config::Config, objects,
    pipeline::load_in,
};
use async_trait::async_trait;
use reshard_comm::ProcessGroup;
use reshard_model::FlatStateDict;
use reshard_plan::LoadPlanner;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{fmt, sync::Arc};

/// A format with its settings: how it opens a checkpoint.
#[async_trait]
pub trait LoadFormat: fmt::Debug + Send + Sync {
    /// Name of the format, and how it is recognised.
    fn info(&self) -> &FormatInfo;

    /// All settings as JSON, such as [`settings_of(self)`](crate::settings_of), or `{}` if there are none. Ranks compare them.
    fn settings(&self) -> Json;

    /// Checks the settings. The default accepts all.
    ///
    /// # Errors
    /// Settings that contradict each other.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Reads the description of a checkpoint: its items, and where they are stored. It reads no tensor.
    ///
    /// # Errors
    /// The place has no checkpoint of this format, or a damaged one.
    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>>;
}

/// Changes how a load is planned, whatever its format. A layer never changes data. It is data itself, with a tag that is written by hand:
/// `{ "type": "two_stage" }`.
#[typetag::serde(tag = "type")]
#[async_trait]
pub trait LoadLayer: fmt::Debug + Send + Sync {
    /// Opens a checkpoint with the strategy inside of the layer. It isn't collective: places are opened before the ranks of a load are known.
    ///
    /// # Errors
    /// Those of the strategy.
    async fn open(
        &self,
        inner: &LoadShardedStrategy,
        cx: &OpenCx,
    ) -> Result<Arc<dyn StorageReader>> {
        inner.open(cx).await
    }

    /// Returns planner, reader, options and group of the load. `setup` comes from the layer outside of this one, or from the caller.
    ///
    /// # Collective
    /// Every rank calls it. If one rank fails, all ranks get an error that names it.
    async fn set_up(
        &self,
        setup: LoadSetup,
        template: &FlatStateDict,
        cx: &LoadCx<'_>,
    ) -> Result<LoadSetup>;
}

/// The parts of a load that a [layer](LoadLayer) can change.
#[derive(Clone, Debug)]
pub struct LoadSetup {
    /// The planner.
    pub planner: Arc<dyn LoadPlanner>,
    /// The open checkpoint.
    pub reader: Arc<dyn StorageReader>,
    /// The options, as the layer outside of this one, or the caller, has set them.
    pub options: LoadPipelineOptions,
    /// A group of all ranks in which the load runs instead. The pipeline reports its failures to the whole group, too.
    pub group: Option<Arc<dyn ProcessGroup>>,
}

/// Loads sharded leaves into a template's buffers.
///
/// A [`LoadFormat`] becomes a strategy without layers. As JSON, a strategy is `{ "format": …, "settings": { … }, "layers": [ … ] }`.
/// `Deserialize` finds the format in the linked crates, and [`from_json`](Self::from_json) in a registry. `Serialize` writes all settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Config<Arc<dyn LoadLayer>>", try_from = "UniqueJson")]
pub struct LoadShardedStrategy {
    /// The format with its settings.
    pub format: Arc<dyn LoadFormat>,
    /// Layers around it, the outermost first.
    pub layers: Vec<Arc<dyn LoadLayer>>,
    /// Loads sharded objects if the format loads none. `reshard::load` sets it to the one that the checkpoint names, and refuses one that
    /// is set.
    pub common: Option<Arc<dyn LoadCommonStrategy>>,
}

impl<F: LoadFormat + 'static> From<F> for LoadShardedStrategy {
    fn from(format: F) -> Self {
        Self::new(format)
    }
}

impl LoadShardedStrategy {
    /// A strategy without layers.
    pub fn new(format: impl LoadFormat + 'static) -> Self {
        Self {
            format: Arc::new(format),
            layers: Vec::new(),
            common: None,
        }
    }

    /// Adds a layer around the others.
    #[must_use]
    pub fn layer(mut self, layer: impl LoadLayer + 'static) -> Self {
        self.layers.insert(0, Arc::new(layer));
        self
    }

    /// Name of the format, and how it is recognised.
    pub fn info(&self) -> &FormatInfo {
        self.format.info()
    }

    /// Name and version of the format.
    pub fn key(&self) -> BackendVersion {
        self.info().key()
    }

    /// Checks that the format can load another name or version. The error contains the reason.
    ///
    /// # Errors
    /// The name differs or the version is newer, and the format does not [load that, too](FormatInfo::also_loads).
    pub fn check_compatibility(&self, stored: &BackendVersion) -> Result<()> {
        let info = self.info();
        match info.backend == &*stored.backend && info.also_loads.contains(&stored.version) {
            true => Ok(()),
            false => compatible(&self.key(), stored),
        }
    }

    /// Whether the format loads sharded objects, or else the common strategy.
    pub fn can_handle_sharded_objects(&self) -> bool {
        self.info().loads_objects || self.common.is_some()
    }

    /// Reads the description of a checkpoint: its items, and where they are stored. It reads no tensor.
    ///
    /// # Errors
    /// The place has no checkpoint of this format, or a damaged one.
    pub async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let reader = match self.layers.split_first() {
            None => {
                self.format.check()?;
                self.format.open(cx).await?
            }
            Some((outer, inner)) => {
                let inner = Self {
                    format: Arc::clone(&self.format),
                    layers: inner.to_vec(),
                    common: None,
                };
                outer.open(&inner, cx).await?
            }
        };
        objects::open(self, reader, cx).await
    }

    /// Fills the template.
    ///
    /// # Collective
    /// Every rank calls it. If one rank fails, all ranks get an error that names it.
    ///
    /// # Errors
    /// The error contains the template. Its buffers are unchanged or partly filled.
    pub async fn load(
        &self,
        template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>> {
        match self.info().loads_objects {
            true => load_in(&self.layers, template, from, cx).await,
            false => objects::load(self, template, from, cx).await,
        }
    }
}
