//! A load strategy around another one, of which only the load differs.

use async_trait::async_trait;
use reshard_model::FlatStateDict;
use reshard_strategy::{
    FormatInfo, LoadCx, LoadFailure, LoadShardedStrategy, Loaded, OpenCx, Removal, Result,
    StorageReader,
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
    fn info(&self) -> &FormatInfo {
        self.base.info()
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
