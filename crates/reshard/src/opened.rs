//! What loads and [`Checkpoint`](crate::Checkpoint) have in common: finding the strategies of what lies at a URL.

use crate::sidecar::Sidecar;
use reshard_model::Plain;
use reshard_storage::{Name, Store, Stores};
use reshard_strategy::{
    BackendVersion, LoadCommonStrategy, LoadShardedConfig, LoadShardedStrategy, Registry, StorageReader,
    StrategyError,
};
use reshard_torch_dist::{METADATA, METADATA_JSON, MetadataJson};
use std::sync::Arc;

type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// How to open.
#[derive(Debug, Default)]
pub(crate) struct HowToOpen {
    pub(crate) registry: Option<Registry>,
    pub(crate) stores: Option<Stores>,
    pub(crate) config: Option<Box<dyn LoadShardedConfig>>,
}

/// A checkpoint of which nothing is loaded.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sharded: Arc<dyn LoadShardedStrategy>,
    pub(crate) reader: Arc<dyn StorageReader>,
    /// Only Megatron Core's checkpoints have it.
    pub(crate) common: Option<Arc<dyn LoadCommonStrategy>>,
    pub(crate) name: BackendVersion,
}

impl HowToOpen {
    pub(crate) async fn open(&self, url: &str) -> Result<Opened> {
        let linked;
        let registry = match &self.registry {
            Some(r) => r,
            None => {
                linked = Registry::linked()?;
                &linked
            }
        };
        let store = match &self.stores {
            Some(s) => s.open(url)?,
            None => Stores::linked()?.open(url)?,
        };
        // What is there now stays readable, and of one save, while somebody replaces it.
        let store = store.pinned().await?.unwrap_or(store);
        let json = Name::new(METADATA_JSON)?;
        let (name, common) = match store.len(&json).await? {
            Some(len) => {
                let json = MetadataJson::parse(&store.read(&json, 0..len).await?)?;
                let common = registry.load_common(&json.common())?;
                common.check_compatibility(&json.common())?;
                (json.sharded(), Some(common))
            }
            None => (unnamed(&store).await?, None),
        };
        let sharded = match &self.config {
            Some(c) => c.build()?,
            None => registry.load_sharded(&name)?.build()?,
        };
        sharded.check_compatibility(&name)?;
        let reader = sharded.open(&store).await?;
        Ok(Opened { store, sharded, reader, common, name })
    }
}

/// The strategy of a checkpoint without `metadata.json`: PyTorch's own, unless reshard noted another one.
async fn unnamed(store: &Arc<dyn Store>) -> Result<BackendVersion> {
    let default = BackendVersion::new(reshard_torch_dist::NAME, 1);
    if store.exists(&Name::new(METADATA)?).await? {
        return Ok(default);
    }
    Ok(Sidecar::read(store).await.0.and_then(|s| s.strategy).unwrap_or(default))
}

impl Opened {
    pub(crate) async fn common(&self) -> Result<Plain> {
        match &self.common {
            Some(c) => c.load_common(&self.store).await,
            None => Ok(Plain::new()),
        }
    }

    pub(crate) async fn sidecar(&self) -> (Option<Sidecar>, Option<String>) {
        Sidecar::read(&self.store).await
    }
}
