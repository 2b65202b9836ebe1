//! Reads regions of the arrays of an opened checkpoint.

mod array;
mod files;
mod indexes;
mod opened;
mod packed;
mod removal;
mod shards;
mod verify;

use async_trait::async_trait;
use opened::Chunk;
use packed::Packed;
use reshard_model::{Dialect, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Entry, Name};
use reshard_strategy::{
    BackendVersion, BoxVerifier, Capabilities, FileRole, Producer, ReadCx, ReadObject, ReadTensor,
    ReaderHooks, Removal, Result, Rewritten, StorageInfo, StorageReader, StrategyError, Traffic,
    VerifyRun,
};
use std::sync::Arc;

pub(crate) use array::{Array, Shards, changed};
use files::role;
pub(crate) use opened::ZarrReader;
pub(crate) use shards::read as read_indexes;

impl ReaderHooks for ZarrReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for ZarrReader {
    fn key(&self) -> BackendVersion {
        self.version.info.key()
    }

    /// The common strategy of Megatron Core's dialect stores objects.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            objects: |_, _| false,
            ..self.version.capabilities
        }
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        let info = |chunk: Chunk<'_>| match self.stored(&chunk) {
            Ok(Some(stored)) => Some(stored),
            // The value of elements that are not stored stands in the description.
            Ok(None) => Some((Name::new(self.description(&chunk.array.key)).ok()?, 0..0)),
            // Its file may be damaged.
            Err(_) => {
                let file = chunk.array.file(chunk.number).ok()?;
                let bytes = *self.files.get(&file)?;
                Some((file, 0..bytes))
            }
        };
        let found = self.chunk(chunk).ok().and_then(info).into_iter();
        found.map(|(file, at)| StorageInfo::new(file, at)).collect()
    }

    fn locate_object(&self, _: ObjectId) -> Vec<StorageInfo> {
        Vec::new()
    }

    fn producer(&self) -> Producer {
        files::producer(self)
    }

    /// Each load asks for it, and the notes of a producer need a look at every chunk.
    fn not_understood(&self) -> Vec<String> {
        files::unknown(self).map(|(key, _)| key.clone()).collect()
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.refused.get(key)?.why_not(key)
    }

    fn permits(&self, key: &str) -> Result<()> {
        if let Some(refusal) = self.refusal(key) {
            return Err(refusal);
        }
        let Some(array) = self.array(key) else {
            return Ok(());
        };
        // Chunks that are not stored cost nothing in the checkpoint, and all of their elements in memory.
        let bytes =
            |elements: Option<u64>| elements.map(|n| n.saturating_mul(array.meta.dtype.size()));
        let elements = bytes(array.meta.shape.volume()).unwrap_or(u64::MAX);
        if !reshard_strategy::repeats(elements, 0) || elements <= reshard_strategy::REPEATED {
            return Ok(());
        }
        self.limits.repeated(
            format_args!("tensor {key}"),
            elements,
            array.stored_bytes(&self.files),
        )
    }

    fn owns(&self, name: &Name) -> bool {
        files::owns(name)
    }

    fn role(&self, file: &Entry) -> FileRole {
        role(self, file)
    }

    fn is_whole(&self) -> Result<(), String> {
        files::is_whole(self)
    }

    fn rewritten(&self) -> Vec<Rewritten> {
        let unread = self.arrays.iter().filter_map(|array| array.unread.as_ref());
        let found = unread.filter(|unread| unread.is_changed());
        let found = found.map(|unread| Rewritten::new(unread.file().clone(), None));
        self.rewritten.iter().cloned().chain(found).collect()
    }

    fn reads_columns_together(&self) -> bool {
        true
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let (mut records, mut packed) = (Vec::new(), Vec::new());
        let mut totals = self.look_before(&reads, cx.verify).await?;
        for (id, reads) in ReadTensor::by_chunk(reads) {
            let chunk = self.chunk(id)?;
            let meta = &chunk.array.meta;
            match self.stored(&chunk)? {
                None => {
                    if cx.verify {
                        self.may_lack(&chunk)?;
                    }
                    self.fill(chunk.array, reads, cx, &mut totals)?
                }
                Some(at) if meta.stored().is_plain(meta.dtype) => {
                    let record = self.record(&chunk, at, reads, cx)?;
                    totals.verified += u64::from(record.check.is_some());
                    records.push(record);
                }
                Some((file, at)) => packed.push(Packed {
                    chunk,
                    file,
                    at,
                    reads,
                }),
            }
        }
        self.read_packed(packed, cx, &mut totals).await?;
        let read = self.store.read_into(records, cx.progress.clone()).await?;
        totals += read;
        Ok(totals)
    }

    async fn read_objects(&self, reads: &[ReadObject], _: &ReadCx<'_>) -> Result<Vec<Payload>> {
        match reads {
            [] => Ok(Vec::new()),
            [ReadObject { object }, ..] => {
                let what = format!("no object has number {}", object.0);
                Err(StrategyError::Internal(what))
            }
        }
    }

    fn covers(&self, file: &Name) -> bool {
        files::covers(self, file)
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Ok(Box::new(verify::Verifier::new(self, run).await?))
    }

    async fn without(&self, prefix: &str) -> Result<Removal> {
        let noted = self.version.noted(&self.store, &self.limits).await?;
        removal::without(self, noted, prefix).await
    }
}
