//! Reads regions of the tensors of an opened checkpoint.

mod files;
mod headers;
mod objects;
mod opened;
mod verify;

use crate::OBJECTS;
use async_trait::async_trait;
use opened::{Stored, tensor};
use reshard_model::{Dialect, ObjectCodec, Payload, SafetensorsDType};
use reshard_plan::{AnnotationKind, ChunkId, Metadata, ObjectId};
use reshard_storage::{Checksum, Entry, Name};
use reshard_strategy::{
    BackendVersion, BoxVerifier, Capabilities, Crc32Check, ElementChecksum, FileRole, Producer,
    ReadCx, ReadObject, ReadTensor, ReaderHooks, Result, Rewritten, StorageInfo, StorageReader,
    Traffic, VerifyRun, torch::TorchObjects,
};
use std::sync::Arc;

pub(crate) use opened::{Chunk, Object, SafetensorsReader};

impl ReaderHooks for SafetensorsReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for SafetensorsReader {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(crate::NAME, 1)
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        let info = |stored: Stored<'_>| StorageInfo::new(stored.file.clone(), stored.bytes);
        self.stored(chunk).map(info).into_iter().collect()
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        objects::locate(self, object).into_iter().collect()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        Arc::new(TorchObjects::new(&self.limits))
    }

    /// Objects have a place only where a save was asked to keep them.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dtypes: |dtype| SafetensorsDType::named(dtype).is_some(),
            objects: match self.objects.is_empty() {
                true => |_, _| false,
                false => |_, _| true,
            },
            annotations: |_, _| &[AnnotationKind::Text, AnnotationKind::TensorSubclass],
            ..Capabilities::DEFAULT
        }
    }

    fn producer(&self) -> Producer {
        files::producer(self)
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.refused.get(key)?.why_not(key)
    }

    fn permits(&self, key: &str) -> Result<()> {
        if let Some(why) = self.refused.get(key) {
            let item = match why.file.as_deref() {
                Some(OBJECTS) => format!("object {key}"),
                _ => tensor(key),
            };
            return Err(why.error(key, item, self.key()));
        }
        // The pieces of ranks may lie anywhere in a tensor, which then costs memory and nothing in the files.
        match self.metadata.tensor(key) {
            Some(t) if self.is_sharded => {
                let pieces = t.chunks().filter_map(|(_, region)| region.volume());
                let stored = pieces.fold(0, u64::saturating_add);
                let stored = stored.saturating_mul(t.dtype().size());
                let all = t.shape().volume().unwrap_or(u64::MAX);
                let all = all.saturating_mul(t.dtype().size());
                self.limits.repeated(tensor(key), all, stored)
            }
            _ => Ok(()),
        }
    }

    fn owns(&self, name: &Name) -> bool {
        files::owns(name)
    }

    fn role(&self, file: &Entry) -> FileRole {
        files::role(self, file)
    }

    fn rewritten(&self) -> Vec<Rewritten> {
        let mut all = self.rewritten.clone();
        all.extend(self.rewritten_unread());
        all
    }

    fn reads_columns_together(&self) -> bool {
        true
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let (mut verified, mut records) = (0, Vec::new());
        let looked = self.look_before(&reads, cx.verify).await?;
        for (id, reads) in ReadTensor::by_chunk(reads) {
            let stored = self.stored(id)?;
            let bytes = stored.bytes.end - stored.bytes.start;
            let check = || -> Option<Box<dyn Checksum>> {
                let check = Crc32Check::new(bytes, stored.crc?, &tensor(stored.key));
                Some(Box::new(check))
            };
            let at = (stored.file.clone(), stored.bytes);
            let record = ReadTensor::record(reads, at, &stored.layout, cx.verify, check)?;
            verified += u64::from(record.check.is_some());
            records.push(record);
        }
        let mut totals = self.store.read_into(records, cx.progress.clone()).await?;
        totals.verified += verified;
        totals += looked;
        Ok(totals)
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        objects::read(self, reads, cx.verify).await
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        let sum = |id: &ChunkId| {
            let crc = self.chunks.get(id.0 as usize)?.crc?;
            Some(ElementChecksum::Crc32(crc))
        };
        Ok(chunks.iter().map(sum).collect())
    }

    fn covers(&self, file: &Name) -> bool {
        files::covers(self, file)
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Ok(Box::new(verify::Verifier::new(self, run).await?))
    }
}
