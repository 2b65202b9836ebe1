//! How a checkpoint is opened.

use super::handle::Checkpoint;
use crate::{Result, error::Context, opened::OpenOptions, place, whereabouts::explained};
use reshard_storage::{Store, Stores};
use reshard_strategy::{
    BackendVersion, LoadProgress, LoadReporter, LoadShardedStrategy, ReadLimits, Registry,
};
use std::{path::Path, sync::Arc};

impl OpenOptions {
    crate::open_options!();

    /// The defaults: linked strategies and stores, checksums verified.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses a place that is already open, with its client, credentials and runtime. The URL is then only its name in
    /// messages.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.stores = Some(Stores::only(store));
        self
    }

    /// Sets the load strategy: settings of a format, with or without layers around it.
    pub fn strategy(mut self, strategy: impl Into<LoadShardedStrategy>) -> Self {
        self.strategy = Some(strategy.into());
        self
    }

    /// Sets the load strategy's settings for a checkpoint that is of its format. Any other one is opened with the defaults of its own
    /// format. [`strategy`](Self::strategy) refuses it.
    ///
    /// ```
    /// # #[cfg(feature = "safetensors")] {
    /// use reshard::{DType, OpenOptions, safetensors::SafetensorsLoadConfig};
    /// let dequantized = SafetensorsLoadConfig::default().with_dequantize(DType::Float32);
    /// let options = OpenOptions::new().settings(dequantized);
    /// # drop(options);
    /// # }
    /// ```
    pub fn settings(mut self, strategy: impl Into<LoadShardedStrategy>) -> Self {
        self.settings = Some(strategy.into());
        self
    }

    /// Whether to check the checksum of each item that is read as a whole.
    pub fn verify(mut self, verify: bool) -> Self {
        self.load.verify = verify;
        self
    }

    /// Calls `report` when elements of a read have come. Each call that reads tensors counts for itself, from a sum of 0.
    pub fn progress(mut self, report: impl Fn(LoadProgress) + Send + Sync + 'static) -> Self {
        self.load.progress = LoadReporter::new(report);
        self
    }

    /// Opens the checkpoint at a path or URL.
    ///
    /// # Errors
    /// There is no checkpoint, it is damaged, or its strategy is not linked.
    pub async fn open(self, place: impl AsRef<Path>) -> Result<Checkpoint> {
        let url = place::place_text(place);
        let opened = match self.open_at(&url).await.during("opening", &url) {
            Ok(opened) => opened,
            Err(e) => return Err(explained(&self, &url, e).await),
        };
        Ok(Checkpoint {
            url: url.into(),
            opened: Arc::new(opened),
            options: Arc::new(self),
        })
    }
}

impl Checkpoint {
    /// Opens the checkpoint at a path or URL, with default options.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn open(place: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().open(place).await
    }
}
