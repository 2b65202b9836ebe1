//! Reads regions of tensors, and objects, of an opened checkpoint.

mod objects;
mod opened;
mod tensors;
mod verify;

use crate::{
    NAME, dicts,
    error::refusal,
    file::{Container, TorchFile},
    names::own_file,
    ranks::{
        RANK_FILES,
        names::{METADATA, ranks},
    },
};
use async_trait::async_trait;
use reshard_model::{Dialect, ObjectCodec, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Entry, Name};
use reshard_strategy::{
    BackendVersion, BoxVerifier, Capabilities, ElementChecksum, FileRole, Producer, ReadCx,
    ReadLimits, ReadObject, ReadTensor, ReaderHooks, Result, StorageInfo, StorageReader, Traffic,
    VerifyRun, torch::TorchObjects,
};
use std::{collections::BTreeSet, sync::Arc};

pub(crate) use opened::{Kind, TorchSaveReader};

impl ReaderHooks for TorchSaveReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for TorchSaveReader {
    fn key(&self) -> BackendVersion {
        match self.kind {
            Kind::File | Kind::Indexed => BackendVersion::new(NAME, 1),
            Kind::Ranks => BackendVersion::new(RANK_FILES, 1),
        }
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        let place = |chunk: ChunkId| {
            let (n, tensor) = self.table.tensors.get(chunk.0 as usize)?;
            let file = self.file(*n).ok()?;
            let range = file.place(&tensor.storage)?;
            Some(StorageInfo::new(file.name.clone(), range))
        };
        place(chunk).into_iter().collect()
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        let file = self.table.objects.get(object.0 as usize);
        let file = file.and_then(|(n, _)| self.file(*n).ok());
        let whole = file.map(|file| StorageInfo::new(file.name.clone(), 0..file.bytes));
        whole.into_iter().collect()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        Arc::new(TorchObjects::new(&self.limits))
    }

    /// Several files with an index hold flat dicts of tensors.
    fn capabilities(&self) -> Capabilities {
        match self.kind {
            Kind::Indexed => Capabilities {
                objects: |_, _| false,
                ..Capabilities::DEFAULT
            },
            Kind::File | Kind::Ranks => Capabilities {
                annotations: |_, _| dicts::KINDS,
                splits_objects: true,
                ..Capabilities::DEFAULT
            },
        }
    }

    fn producer(&self) -> Producer {
        let form = |file: &TorchFile| match &file.container {
            Container::Zip(_) => "PyTorch 1.6 or later (zip archive)",
            Container::Legacy(_) => "PyTorch 0.1.10 to 1.5 (the layout before zip archives)",
            Container::Pickle => "pickle, without PyTorch's container",
            Container::Safetensors(_) => "safetensors",
        };
        let forms: BTreeSet<&str> = self.files.iter().flatten().map(form).collect();
        Producer {
            written_by: forms.into_iter().map(Into::into).collect(),
            warnings: self.warnings(),
            notes: self.notes(),
            ..Producer::default()
        }
        .with_refused(&self.table.refused)
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.table.refused.get(key)?.why_not(key)
    }

    fn lacks(&self, key: &str) -> Option<String> {
        let missing = self.table.absent.get(key)?;
        let others = ranks(missing.iter().copied());
        Some(format!(
            "{others} of its mesh have the rest, and their files are not here"
        ))
    }

    fn permits(&self, key: &str) -> Result<()> {
        if let Some(why) = self.table.refused.get(key) {
            return Err(refusal(why));
        }
        match self.table.repeats.get(key) {
            None => Ok(()),
            Some((bytes, stored)) => Err(ReadLimits::refused(
                format_args!("tensor {key}"),
                *bytes,
                *stored,
                reshard_strategy::REPEATED,
            )),
        }
    }

    fn owns(&self, name: &Name) -> bool {
        own_file(name.as_str()).is_some()
    }

    fn role(&self, file: &Entry) -> FileRole {
        let name = file.name.as_str();
        match own_file(name) {
            _ if self.names().contains(name) => FileRole::Part,
            _ if self.kind == Kind::Ranks && name == METADATA => FileRole::Part,
            Some(_) => FileRole::Leftover,
            None => FileRole::Foreign,
        }
    }

    fn reads_columns_together(&self) -> bool {
        true
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        tensors::read(self, reads, cx).await
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        objects::read(self, reads, cx).await
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        let sum = |chunk: &ChunkId| {
            let (n, tensor) = self.table.tensors.get(chunk.0 as usize)?;
            let sum = self.file(*n).ok()?.checksum(tensor)?;
            Some(ElementChecksum::Crc32(sum))
        };
        Ok(chunks.iter().map(sum).collect())
    }

    fn shared_elements(&self, chunk: ChunkId) -> Option<String> {
        let (n, tensor) = self.table.tensors.get(chunk.0 as usize)?;
        let order = match tensor.layout().ok()?.is_contiguous() {
            true => format!("{} in order", tensor.shape.volume()?),
            false => format!("{} by {}", tensor.shape, tensor.strides),
        };
        let signs = (tensor.conj, tensor.neg);
        let (dtype, storage) = (tensor.dtype, &tensor.storage.key);
        Some(format!(
            "{n}/{storage} {dtype} from {} {order} {signs:?}",
            tensor.offset
        ))
    }

    fn covers(&self, file: &Name) -> bool {
        let mut files = self.files.iter().flatten();
        files.any(|f| f.name == *file && f.has_checksums())
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Ok(Box::new(verify::Verifier::new(self, run).await))
    }
}
