//! How a checkpoint is opened.

use super::handle::Checkpoint;
use crate::{Result, error::Context, opened::HowToOpen};
use reshard_storage::{Store, Stores};
use reshard_strategy::{BackendVersion, LoadShardedConfig, ReadLimits, Registry};
use std::sync::Arc;

/// How to open a checkpoint.
#[derive(Debug, Default)]
pub struct OpenOptions {
    how: HowToOpen,
    skip_verify: bool,
}

impl OpenOptions {
    /// The defaults: linked strategies and stores, checksums verified.
    pub fn new() -> Self {
        Self::default()
    }

    /// Strategies to choose from.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.how.registry = Some(registry);
        self
    }

    /// Stores to find the URL's in.
    pub fn stores(mut self, stores: Stores) -> Self {
        self.how.stores = Some(stores);
        self
    }

    /// The place itself, open already, instead of one found by the URL, which then is only its name in messages. It brings its
    /// client, credentials and runtime.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.how.stores = Some(Stores::only(store));
        self
    }

    /// Other settings of the load strategy than its defaults.
    pub fn strategy(mut self, config: impl LoadShardedConfig + 'static) -> Self {
        self.how.config = Some(Box::new(config));
        self
    }

    /// The format, where it is not to be told by the files. Settings of a [`strategy`](Self::strategy) come with their own.
    pub fn format(mut self, format: BackendVersion) -> Self {
        self.how.format = Some(format);
        self
    }

    /// Whether checksums of wholly read items are checked.
    pub fn verify(mut self, verify: bool) -> Self {
        self.skip_verify = !verify;
        self
    }

    /// How much the checkpoint may ask for; see there.
    pub fn limits(mut self, limits: ReadLimits) -> Self {
        self.how.limits = limits;
        self
    }

    /// Opens.
    ///
    /// # Errors
    /// When there is no checkpoint, when it is damaged, or of a strategy that is not linked.
    pub async fn open(self, url: &str) -> Result<Checkpoint> {
        let opened = self.how.open(url).await.during("opening", url)?;
        Ok(Checkpoint { url: url.into(), opened: Arc::new(opened), verify: !self.skip_verify })
    }
}

impl Checkpoint {
    /// Opens with the defaults.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        OpenOptions::new().open(url).await
    }
}
