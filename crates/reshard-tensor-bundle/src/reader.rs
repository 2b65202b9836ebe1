//! Reads regions of the tensors of an opened bundle, and its objects.

mod crc;
mod objects;
mod opened;
mod swapped;
mod verify;

use crate::{
    dtype,
    names::{DataFile, KEY, RECORD, STATE, VERSION},
    object::{CODEC, Codec},
    strings::Order,
};
use async_trait::async_trait;
use reshard_model::{Dialect, ObjectCodec, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Entry, Name};
use reshard_strategy::{
    BackendVersion, BoxVerifier, Capabilities, ElementChecksum, FileRole, Producer, ReadCx,
    ReadObject, ReadTensor, ReaderHooks, Result, StorageInfo, StorageReader, Traffic, VerifyRun,
};
use reshard_torch_format::{Limits, LoadOptions, TorchSave, archive::ArchiveOptions};
use std::sync::Arc;

pub(crate) use opened::BundleReader;

impl ReaderHooks for BundleReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for BundleReader {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(KEY, VERSION)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dtypes: |dtype| dtype::number(dtype).is_some(),
            ..Capabilities::DEFAULT
        }
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        let place = self.index.chunks.get(chunk.0 as usize);
        place
            .and_then(|place| self.info(place))
            .into_iter()
            .collect()
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        let parts = self.parts(object).iter();
        parts.filter_map(|(_, place)| self.info(place)).collect()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        let limits = Limits {
            memory: self.limits.max_memory,
            slack: self.limits.slack,
            ..Limits::default()
        };
        let options = LoadOptions::default().with_limits(limits);
        Arc::new(Codec {
            torch: TorchSave::new(options, ArchiveOptions::default()),
        })
    }

    fn producer(&self) -> Producer {
        let by = match self.has_record {
            true => "reshard",
            false => "TensorFlow, or another program that writes its checkpoints",
        };
        let mut notes = Vec::new();
        if self.index.order == Order::Big {
            notes.push("its numbers are big-endian".into());
        }
        if self.index.escaped > 0 {
            let n = self.index.escaped;
            notes.push(format!(
                "the names of {n} tensors are no UTF-8; their other bytes are written as \\xff"
            ));
        }
        if self.index.strays > 0 {
            let n = self.index.strays;
            notes.push(format!(
                "{n} entries are of slices that no tensor has; nobody reads them"
            ));
        }
        let sliced = self.metadata.tensors().filter(|t| {
            let is_whole = t.chunks().nth(1).is_none();
            !is_whole && !dtype::is_sliced(t.dtype())
        });
        let sliced: Vec<_> = sliced.map(|t| (t.key(), t.dtype())).collect();
        if let Some((key, dtype)) = sliced.first() {
            let tensors = match sliced.len() {
                1 => "1 tensor lies".into(),
                n => format!("{n} tensors lie"),
            };
            notes.push(format!(
                "{tensors} in slices of a type that TensorFlow reads only whole, such as {key} of {dtype}; a conversion to tensor_bundle stores them whole"
            ));
        }
        Producer {
            written_by: vec![by.into()],
            loadable_by: match sliced.is_empty() {
                true => vec!["TensorFlow".into()],
                false => Vec::new(),
            },
            notes,
            ..Producer::default()
        }
        .with_refused(&self.index.refused)
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.index.refused.get(key)?.why_not(key)
    }

    fn permits(&self, key: &str) -> Result<()> {
        if let Some(refusal) = self.refusal(key) {
            return Err(refusal);
        }
        if let Some(t) = self.metadata.tensor(key) {
            return self.sound(key, t.chunks().filter_map(|(id, _)| self.chunk(id).ok()));
        }
        Ok(())
    }

    fn owns(&self, name: &Name) -> bool {
        let name = name.as_str();
        // A SavedModel has more than its variables.
        !self.stem.contains('/')
            && (name == self.index_name()
                || name.strip_prefix(&*self.stem) == Some(RECORD)
                || DataFile::parse(name).is_some_and(|file| file.stem == self.stem)
                || (!self.stem.is_empty() && name == STATE))
    }

    fn role(&self, file: &Entry) -> FileRole {
        let name = file.name.as_str();
        match DataFile::parse(name) {
            Some(data) if data.stem == self.stem && data.of == self.index.shards => FileRole::Part,
            // Of a save with another number of files.
            Some(data) if data.stem == self.stem => FileRole::Leftover,
            None if name == self.index_name() || name.strip_prefix(&*self.stem) == Some(RECORD) => {
                FileRole::Part
            }
            None if name == STATE && !self.stem.is_empty() => FileRole::Part,
            _ => FileRole::Foreign,
        }
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let (mut totals, mut records) = (Traffic::default(), Vec::new());
        for (id, reads) in ReadTensor::by_chunk(reads) {
            let word = self.metadata.chunk(id).map_or(1, |(t, _)| t.dtype().word());
            if self.index.order == Order::Big && word > 1 {
                self.read_swapped(id, word, reads, cx, &mut totals).await?;
                continue;
            }
            let record = self.record(id, reads, cx)?;
            totals.verified += u64::from(record.check.is_some());
            records.push(record);
        }
        let read = self.store.read_into(records, cx.progress.clone()).await?;
        totals += read;
        Ok(totals)
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        let mut out = Vec::with_capacity(reads.len());
        for read in reads {
            let (object, _) = self.read_object(read.object, cx.verify).await?;
            out.push(Payload::Encoded {
                codec: CODEC,
                bytes: object.to_bytes(),
            });
        }
        Ok(out)
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        let mut out = Vec::with_capacity(chunks.len());
        for id in chunks {
            let (place, layout) = (self.chunk(*id)?, self.layout(*id)?);
            let word = self
                .metadata
                .chunk(*id)
                .map_or(1, |(t, _)| t.dtype().word());
            // The checksum is that of the stored bytes, and a reader has them in the other order.
            let is_theirs =
                place.size == layout.bytes() && (self.index.order == Order::Little || word == 1);
            out.push(is_theirs.then_some(ElementChecksum::Crc32c(place.crc)));
        }
        Ok(out)
    }

    fn covers(&self, file: &Name) -> bool {
        file.as_str() == self.index_name() || self.files.contains_key(file)
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Ok(Box::new(verify::Verifier::new(self, run)?))
    }
}
