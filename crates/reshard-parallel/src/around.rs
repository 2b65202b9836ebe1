//! A load strategy around another one, of which only the load differs.

use async_trait::async_trait;
use reshard_model::FlatStateDict;
use reshard_storage::{Entry, Listing, PlaceKind};
use reshard_strategy::{
    BackendVersion, Detection, LoadCx, LoadFailure, LoadShardedStrategy, Loaded, OpenCx, OwnFile,
    Removal, Result, StorageReader,
};
use std::{fmt::Debug, sync::Arc};

/// How a wrapper loads by its base.
#[async_trait]
pub(crate) trait LoadBy: Debug + Send + Sync + 'static {
    /// As [`LoadShardedStrategy::load`].
    async fn load(
        &self,
        base: &dyn LoadShardedStrategy,
        template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>>;
}

/// The base in everything but the load.
#[derive(Debug)]
pub(crate) struct Around<H> {
    pub(crate) base: Arc<dyn LoadShardedStrategy>,
    pub(crate) how: H,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the base
impl<H: LoadBy> LoadShardedStrategy for Around<H> {
    fn key(&self) -> BackendVersion {
        self.base.key()
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        self.base.open(cx).await
    }

    async fn load(
        &self,
        template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>> {
        self.how.load(&*self.base, template, from, cx).await
    }

    fn detect(&self, top: &Listing) -> Detection {
        self.base.detect(top)
    }

    fn detect_file(&self, file: &Entry) -> Detection {
        self.base.detect_file(file)
    }

    fn probes(&self) -> &'static [&'static str] {
        self.base.probes()
    }

    fn probes_in_folders(&self) -> &'static [&'static str] {
        self.base.probes_in_folders()
    }

    fn own_file(&self, name: &str) -> Option<OwnFile> {
        self.base.own_file(name)
    }

    fn lives_in(&self, kind: PlaceKind) -> bool {
        self.base.lives_in(kind)
    }

    fn check_compatibility(&self, stored: &BackendVersion) -> Result<()> {
        self.base.check_compatibility(stored)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.base.can_handle_sharded_objects()
    }

    async fn remove_sharded_tensors(
        &self,
        from: &Arc<dyn StorageReader>,
        prefix: &str,
    ) -> Result<Removal> {
        self.base.remove_sharded_tensors(from, prefix).await
    }
}
