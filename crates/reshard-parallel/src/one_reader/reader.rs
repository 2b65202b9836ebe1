//! The readers of such a load: of a checkpoint that nobody has read yet, and of what the templates say of it.

use async_trait::async_trait;
use reshard_model::{Dialect, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::Progress;
use reshard_strategy::{
    BackendVersion, CheckedItems, OpenCx, ReadCx, ReadObject, ReadTensor, ReaderHooks, Result,
    StorageInfo, StorageReader, StrategyError, Traffic, VerifyReport,
};
use std::sync::Arc;

/// A checkpoint that is not read before the load begins.
#[derive(Debug)]
pub(super) struct Unread {
    key: BackendVersion,
    cx: OpenCx,
    nothing: Arc<Metadata>,
}

impl Unread {
    pub(super) fn new(key: BackendVersion, cx: OpenCx) -> Self {
        Self {
            key,
            cx,
            nothing: Arc::default(),
        }
    }

    pub(super) fn cx(&self) -> &OpenCx {
        &self.cx
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
        self.key.clone()
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

    async fn verify_items(&self, _: &CheckedItems, _: &Progress) -> Result<VerifyReport> {
        Err(not_here())
    }
}

/// What the reading rank has open, and its chunk for each chunk of the templates.
type Source = (Arc<dyn StorageReader>, Vec<Option<ChunkId>>);

/// What the templates say is stored. Only one rank can read it.
#[derive(Debug)]
pub(super) struct FromTemplate {
    key: BackendVersion,
    dialect: Dialect,
    metadata: Arc<Metadata>,
    columns: bool,
    source: Option<Source>,
}

impl FromTemplate {
    pub(super) fn new(
        of: &dyn StorageReader,
        metadata: Metadata,
        columns: bool,
        source: Option<Source>,
    ) -> Self {
        Self {
            key: of.key(),
            dialect: of.dialect(),
            metadata: Arc::new(metadata),
            columns,
            source,
        }
    }

    fn stored(&self, chunk: ChunkId) -> Option<ChunkId> {
        let (_, numbers) = self.source.as_ref()?;
        numbers.get(chunk.0 as usize).copied().flatten()
    }
}

impl ReaderHooks for FromTemplate {}

#[async_trait]
impl StorageReader for FromTemplate {
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
        match (&self.source, self.stored(chunk)) {
            (Some((source, _)), Some(stored)) => source.locate_chunk(stored),
            _ => Vec::new(),
        }
    }

    fn locate_object(&self, _: ObjectId) -> Vec<StorageInfo> {
        Vec::new()
    }

    fn reads_columns_together(&self) -> bool {
        self.columns
    }

    async fn read_tensors(&self, mut reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let Some((source, _)) = &self.source else {
            return match reads.is_empty() {
                true => Ok(Traffic::default()),
                false => Err(StrategyError::Internal(
                    "a rank reads that does not have the files open".into(),
                )),
            };
        };
        for read in &mut reads {
            let chunk = read.selection.chunk;
            let lost = || StrategyError::Internal(format!("chunk {} is not stored", chunk.0));
            read.selection.chunk = self.stored(chunk).ok_or_else(lost)?;
        }
        source.read_tensors(reads, cx).await
    }

    async fn read_objects(&self, reads: &[ReadObject], _: &ReadCx<'_>) -> Result<Vec<Payload>> {
        match reads {
            [] => Ok(Vec::new()),
            _ => Err(not_here()),
        }
    }

    async fn verify_items(&self, _: &CheckedItems, _: &Progress) -> Result<VerifyReport> {
        Err(not_here())
    }
}
