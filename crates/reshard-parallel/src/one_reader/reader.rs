//! The readers of a load with one reader: before the checkpoint is open, and after its table was sent to all ranks.

use super::description::Description;
use async_trait::async_trait;
use reshard_model::{Dialect, Payload};
use reshard_plan::{ChunkId, LoadPlan, Metadata, ObjectId, Stored};
use reshard_strategy::{
    BackendVersion, BoxVerifier, LoadShardedStrategy, OpenCx, ReadCx, ReadObject, ReadTensor,
    ReaderHooks, Removal, Result, StorageInfo, StorageReader, StrategyError, Traffic, VerifyRun,
};
use std::{collections::BTreeSet, sync::Arc};

/// A checkpoint that is not read before the load begins.
#[derive(Debug)]
pub(super) struct Unread {
    strategy: LoadShardedStrategy,
    cx: OpenCx,
    nothing: Arc<Metadata>,
}

impl Unread {
    pub(super) fn new(strategy: LoadShardedStrategy, cx: OpenCx) -> Self {
        Self {
            strategy,
            cx,
            nothing: Arc::default(),
        }
    }

    pub(super) async fn open(&self) -> Result<Arc<dyn StorageReader>> {
        self.strategy.open(&self.cx).await
    }
}

fn not_here() -> StrategyError {
    StrategyError::Invalid(
        "settings of a load with one reader only load; give those of the format to look into a checkpoint".into(),
    )
}

impl ReaderHooks for Unread {}

#[async_trait]
impl StorageReader for Unread {
    fn key(&self) -> BackendVersion {
        self.strategy.key()
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.nothing
    }

    fn dialect(&self) -> Dialect {
        self.cx.dialect
    }

    fn locate_chunk(&self, _: ChunkId) -> Vec<StorageInfo> {
        Vec::new()
    }

    fn locate_object(&self, _: ObjectId) -> Vec<StorageInfo> {
        Vec::new()
    }

    async fn read_tensors(&self, _: Vec<ReadTensor>, _: &ReadCx<'_>) -> Result<Traffic> {
        Err(not_here())
    }

    async fn read_objects(&self, _: &[ReadObject], _: &ReadCx<'_>) -> Result<Vec<Payload>> {
        Err(not_here())
    }

    async fn verifier<'r>(&'r self, _: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Err(not_here())
    }

    async fn without(&self, _: &str) -> Result<Removal> {
        Err(StrategyError::Invalid(
            "settings of a load with one reader remove nothing; give those of the format".into(),
        ))
    }
}

/// The table of a checkpoint on every rank. Only the coordinator has the files open.
#[derive(Debug)]
pub(super) struct Described {
    key: BackendVersion,
    dialect: Dialect,
    metadata: Arc<Metadata>,
    not_understood: Vec<String>,
    reads_columns_together: bool,
    source: Option<Arc<dyn StorageReader>>,
}

impl Described {
    /// The coordinator passes its open checkpoint, whose table it keeps.
    pub(super) fn new(
        unread: &dyn StorageReader,
        description: Description,
        source: Option<Arc<dyn StorageReader>>,
    ) -> Result<Self> {
        let metadata = match &source {
            Some(source) => Arc::clone(source.metadata()),
            None => description.metadata,
        };
        Ok(Self {
            key: unread.key(),
            dialect: unread.dialect(),
            metadata,
            not_understood: description.not_understood,
            reads_columns_together: description.reads_columns_together,
            source,
        })
    }
}

impl ReaderHooks for Described {
    /// Other ranks can't know whether a tensor may be read, and a planner may have added keys.
    fn prepare_global_plan(&self, plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>> {
        if let Some(source) = &self.source {
            let items = plans.iter().flat_map(LoadPlan::all_items);
            let tensors = items.filter(|item| matches!(item.stored, Stored::Chunk(_)));
            let keys: BTreeSet<&str> = tensors.map(|item| &*item.piece.key).collect();
            keys.into_iter().try_for_each(|key| source.permits(key))?;
        }
        Ok(plans)
    }
}

#[async_trait]
impl StorageReader for Described {
    fn key(&self) -> BackendVersion {
        self.key.clone()
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        let source = self.source.as_ref();
        source.map_or_else(Vec::new, |source| source.locate_chunk(chunk))
    }

    fn locate_object(&self, _: ObjectId) -> Vec<StorageInfo> {
        Vec::new()
    }

    fn not_understood(&self) -> Vec<String> {
        self.not_understood.clone()
    }

    fn reads_columns_together(&self) -> bool {
        self.reads_columns_together
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        match (&self.source, reads.is_empty()) {
            (Some(source), _) => source.read_tensors(reads, cx).await,
            (None, true) => Ok(Traffic::default()),
            (None, false) => Err(StrategyError::Internal(
                "a rank reads that does not have the files open".into(),
            )),
        }
    }

    async fn read_objects(&self, reads: &[ReadObject], _: &ReadCx<'_>) -> Result<Vec<Payload>> {
        match reads {
            [] => Ok(Vec::new()),
            _ => Err(not_here()),
        }
    }

    async fn verifier<'r>(&'r self, _: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Err(not_here())
    }
}
