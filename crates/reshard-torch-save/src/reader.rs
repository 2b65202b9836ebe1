//! Reads regions of tensors, and objects, of an opened checkpoint.

mod objects;
mod tensors;
mod values;
mod verify;

use crate::{
    NAME, dicts,
    error::refusal,
    file::{Container, TorchFile},
    names::{INDEX, WEIGHTS, own_file},
    table::Table,
};
use async_trait::async_trait;
use reshard_model::{Dialect, ObjectCodec, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Entry, Name, Store};
use reshard_strategy::{
    BackendVersion, BoxVerifier, Capabilities, ElementChecksum, FileRole, OpenCx, Producer, ReadCx,
    ReadLimits, ReadObject, ReadTensor, ReaderHooks, Result, StorageInfo, StorageReader,
    StrategyError, Traffic, VerifyRun, few,
    torch::{Kept, TorchObjects},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use values::Values;

#[derive(Debug)]
pub(crate) struct TorchSaveReader {
    store: Arc<dyn Store>,
    limits: ReadLimits,
    dialect: Dialect,
    metadata: Arc<Metadata>,
    table: Table,
    /// Those that could be opened.
    files: Vec<Option<TorchFile>>,
    /// Whether there is an index.
    indexed: bool,
    /// Whether the file of a whole model is next to the index, which does not name it.
    rival: bool,
    /// Unpacked parts of storages.
    kept: Kept,
    /// Objects that were decoded.
    values: Mutex<Values>,
}

impl TorchSaveReader {
    pub(crate) fn new(
        cx: &OpenCx,
        files: Vec<Option<TorchFile>>,
        mut table: Table,
        indexed: bool,
    ) -> Self {
        let metadata = std::mem::take(&mut table.metadata);
        Self {
            store: Arc::clone(&cx.store),
            limits: cx.limits,
            dialect: cx.dialect,
            metadata: Arc::new(metadata),
            kept: Kept::new(cx.limits.kept()),
            values: Mutex::new(Values::new(files.len())),
            table,
            files,
            indexed,
            rival: false,
        }
    }

    /// The same, next to the file of a whole model that its index does not name.
    pub(crate) fn with_rival(self, rival: bool) -> Self {
        Self { rival, ..self }
    }

    /// Reasons why another program may read other tensors from these files.
    fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.rival {
            out.push(format!(
                "{WEIGHTS} is next to {INDEX}: transformers reads {WEIGHTS}, and reshard the files of the index; to read {WEIGHTS}, name that file, and move away the one of the two that is out of date"
            ));
        }
        if !self.table.unnamed.is_empty() {
            let keys = few(self.table.unnamed.iter().map(|(key, _)| &**key));
            out.push(format!("{INDEX} does not list {keys}, which its files have; reshard leaves them out, and other programs may not"));
        }
        for file in self.files.iter().flatten() {
            if let Some((record, folder)) = file.outside() {
                out.push(format!(
                    "{} has the record {record:?} outside of its folder {folder:?}: reshard reads the file, and torch.load refuses it",
                    file.name
                ));
            }
        }
        out
    }

    fn file(&self, number: u32) -> Result<&TorchFile> {
        let file = self.files.get(number as usize).and_then(Option::as_ref);
        file.ok_or_else(|| StrategyError::Internal(format!("there is no file {number}")))
    }

    /// The number of a file.
    fn number(&self, file: &TorchFile) -> Option<u32> {
        let is = |other: &Option<TorchFile>| other.as_ref().is_some_and(|o| o.name == file.name);
        u32::try_from(self.files.iter().position(is)?).ok()
    }

    /// Names of the files that it consists of.
    fn names(&self) -> BTreeSet<&str> {
        let files = self.files.iter().flatten();
        let index = self.indexed.then_some(INDEX);
        files.map(|file| file.name.as_str()).chain(index).collect()
    }
}

impl ReaderHooks for TorchSaveReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for TorchSaveReader {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
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
        match self.indexed {
            true => Capabilities {
                objects: |_, _| false,
                ..Capabilities::DEFAULT
            },
            false => Capabilities {
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
        };
        let forms: BTreeSet<&str> = self.files.iter().flatten().map(form).collect();
        Producer {
            written_by: forms.into_iter().map(Into::into).collect(),
            warnings: self.warnings(),
            ..Producer::default()
        }
        .with_refused(&self.table.refused)
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.table.refused.get(key)?.why_not(key)
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
