//! Strategies that save sharded leaves: a format with its settings, and layers around its planning.

use crate::{
    BackendVersion, Capabilities, PipelineOptions, PreparedSave, Result, SaveCommonStrategy,
    SaveCx, StorageWriter, StrategyError, UniqueJson, config::Config, objects,
    pipeline::plan_branch,
};
use async_trait::async_trait;
use reshard_model::{FlatStateDict, Path, ReplicaId, Sharded};
use reshard_plan::SavePlanner;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{any::Any, fmt, sync::Arc};

/// A format with its settings, before the place of a save is known.
pub trait SaveFormat: Any + fmt::Debug + Send + Sync {
    /// Name and version of the format.
    fn key(&self) -> BackendVersion;

    /// All settings as JSON, such as [`settings_of(self)`](crate::settings_of), or `{}` if there are none. Ranks compare them.
    fn settings(&self) -> Json;

    /// Checks the settings. The default accepts all.
    ///
    /// # Errors
    /// Settings that contradict each other.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// What the format can write. The default is every dialect and element type, in folders.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Makes the writer of one save.
    ///
    /// # Errors
    /// Options of the save that the settings contradict.
    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>>;
}

/// Changes how a save is planned, whatever its format. A layer never changes data. It is data itself, with a tag that is written by hand:
/// `{ "type": "fully_parallel", "group": "dp" }`.
#[typetag::serde(tag = "type")]
#[async_trait]
pub trait SaveLayer: fmt::Debug + Send + Sync {
    /// Checks the options of a save before anything is planned. The default accepts all.
    ///
    /// # Errors
    /// Options that the layer doesn't support.
    fn permits(&self, _options: &PipelineOptions) -> Result<()> {
        Ok(())
    }

    /// Returns the planner and the replica ids of the save. `setup` comes from the layer outside of this one, or from the caller.
    ///
    /// # Collective
    /// Every rank calls it. If one rank fails, all ranks get an error that names it.
    async fn set_up(
        &self,
        setup: SaveSetup,
        state: &FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<SaveSetup>;
}

/// The parts of a save that a [layer](SaveLayer) can change.
#[derive(Clone, Debug)]
pub struct SaveSetup {
    /// The planner.
    pub planner: Arc<dyn SavePlanner>,
    /// New replica ids of leaves. Ranks still declare the old ids, which the planner validates.
    pub replicas: Vec<(Path, ReplicaId)>,
}

/// Saves sharded leaves in separate phases. An ordinary save awaits [`prepare`](Self::prepare), [`write`](PreparedSave::write) and
/// [`finish`](PreparedSave::finish) one after the other. An asynchronous save stages after `prepare`, and runs `write` elsewhere.
///
/// A [`SaveFormat`] becomes a strategy without layers. As JSON, a strategy is `{ "format": …, "settings": { … }, "layers": [ … ] }`.
/// `Deserialize` finds the format in the linked crates, and [`from_json`](Self::from_json) in a registry. `Serialize` writes all settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Config<Arc<dyn SaveLayer>>", try_from = "UniqueJson")]
pub struct SaveShardedStrategy {
    /// The format with its settings.
    pub format: Arc<dyn SaveFormat>,
    /// Layers around it, the outermost first.
    pub layers: Vec<Arc<dyn SaveLayer>>,
    /// Stores sharded objects if the format stores none. `reshard::save` sets it from its own common strategy, and refuses one that is set.
    pub common: Option<Arc<dyn SaveCommonStrategy>>,
}

impl<F: SaveFormat + 'static> From<F> for SaveShardedStrategy {
    fn from(format: F) -> Self {
        Self::new(format)
    }
}

impl SaveShardedStrategy {
    /// A strategy without layers.
    pub fn new(format: impl SaveFormat + 'static) -> Self {
        Self {
            format: Arc::new(format),
            layers: Vec::new(),
            common: None,
        }
    }

    /// Adds a layer around the others.
    #[must_use]
    pub fn layer(mut self, layer: impl SaveLayer + 'static) -> Self {
        self.layers.insert(0, Arc::new(layer));
        self
    }

    /// Name and version of the format.
    pub fn key(&self) -> BackendVersion {
        self.format.key()
    }

    /// What the format can write.
    pub fn capabilities(&self) -> Capabilities {
        self.format.capabilities()
    }

    /// Whether the format stores sharded objects, or else the common strategy. PyTorch's dialect has no common strategy: a save whose
    /// state has other leaves than tensors fails there if the format stores none.
    pub fn can_handle_sharded_objects(&self) -> bool {
        self.common.is_some() || self.capabilities().no_sharded_objects.is_none()
    }

    /// Checks the settings, and the options of a save.
    ///
    /// # Errors
    /// [`StrategyError::Unsupported`] for a rank-local save that the format can't write; settings that contradict each other; options that
    /// a layer doesn't support.
    pub fn permits(&self, options: &PipelineOptions) -> Result<()> {
        self.format.check()?;
        if options.rank_local
            && let Some(why) = self.capabilities().no_rank_local
        {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: format!("a rank-local checkpoint, because {why},"),
            });
        }
        self.layers
            .iter()
            .try_for_each(|layer| layer.permits(options))
    }

    /// Decides what each rank writes. It moves no bytes. The layout of files is made later, at the beginning of
    /// [`write`](PreparedSave::write).
    ///
    /// # Collective
    /// Every rank calls it. If one rank fails, all ranks get an error that names it.
    ///
    /// # Errors
    /// [Options](Self::permits) that don't work with the strategy; leaves that can't be planned.
    pub async fn prepare(&self, state: FlatStateDict, cx: &SaveCx<'_>) -> Result<PreparedSave> {
        self.permits(cx.options)?;
        match self.capabilities().no_sharded_objects {
            None => self.prepare_format(state, cx).await,
            Some(_) => objects::prepare(self, state, cx).await,
        }
    }

    /// Plans the leaves that the format stores.
    pub(crate) async fn prepare_format(
        &self,
        mut state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<PreparedSave> {
        let mut cx = cx.clone();
        let set_up = self.set_up(&mut state, &mut cx).await?;
        let writer = set_up.and_then(|()| self.format.writer(&cx));
        let takes_folder = self.capabilities().takes_folder;
        let branch = plan_branch(writer, takes_folder, state, &cx).await?;
        Ok(PreparedSave::new(branch))
    }

    /// Applies the layers, the outermost first. Each sees the replica ids of the layers before it. The inner error is that of this rank
    /// alone, which the others don't know yet.
    async fn set_up(&self, state: &mut FlatStateDict, cx: &mut SaveCx<'_>) -> Result<Result<()>> {
        let mut done = Ok(());
        for layer in &self.layers {
            let setup = SaveSetup {
                planner: Arc::clone(&cx.planner),
                replicas: Vec::new(),
            };
            let SaveSetup { planner, replicas } = layer.set_up(setup, state, cx).await?;
            cx.planner = planner;
            // Ids that an outer layer has replaced are declared already.
            let mut declares = (*cx.declares).clone();
            for (path, now) in replicas {
                let id = match state.get_mut(&path) {
                    Some(Sharded::Tensor(t)) => &mut t.replica_id,
                    Some(Sharded::Object(o)) => &mut o.replica_id,
                    None => {
                        let what = format!(
                            "{layer:?} replaces the replica id of {path}, which isn't a leaf of the state"
                        );
                        done = Err(StrategyError::Internal(what));
                        continue;
                    }
                };
                let was = std::mem::replace(id, now);
                declares.replicas.entry(path).or_insert(was);
            }
            cx.declares = Arc::new(declares);
        }
        Ok(done)
    }
}
