//! Reads regions of the arrays of an opened checkpoint.

mod array;
mod crc;
mod files;
mod kept;
mod packed;
mod shards;
mod verify;

use crate::array::find::{LONE, ZARR_JSON, ZARRAY, ZMETADATA};
use async_trait::async_trait;
use crc::Crc;
use packed::Packed;
use reshard_model::{Dialect, ErrorKind, Layout, Payload, Tensor};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Checksum, Entry, Name, Part, Progress, RecordRead, Store};
use reshard_strategy::{
    BackendVersion, FileRole, Producer, ReadCx, ReadLimits, ReadObject, ReadTensor, ReaderHooks,
    Result, Selection, StorageInfo, StorageReader, StrategyError, Traffic, VerifyReport,
};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

pub(crate) use array::{Array, Refused};
pub(crate) use kept::Kept;
pub(crate) use shards::Shards;

/// An opened checkpoint.
#[derive(Debug)]
pub(crate) struct ZarrReader {
    /// The format by which it was opened.
    pub(crate) key: BackendVersion,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) limits: ReadLimits,
    pub(crate) dialect: Dialect,
    pub(crate) metadata: Arc<Metadata>,
    /// In the order of their tensors, which is that of their keys.
    pub(crate) arrays: Vec<Array>,
    /// Arrays that can't be read, by key.
    pub(crate) refused: BTreeMap<String, Refused>,
    /// Whether reshard wrote it.
    pub(crate) has_record: bool,
    /// Decoded chunks.
    pub(crate) kept: Kept,
    /// All files of the place.
    pub(crate) files: BTreeMap<Name, u64>,
}

/// A chunk, or an inner chunk of a shard: its array, and its number there.
pub(crate) struct Chunk<'r> {
    pub(crate) array: &'r Array,
    pub(crate) number: u32,
}

impl ZarrReader {
    fn chunk(&self, id: ChunkId) -> Result<Chunk<'_>> {
        let array = self.arrays.partition_point(|array| array.first <= id.0);
        let array = array.checked_sub(1).and_then(|n| self.arrays.get(n));
        let unknown = || StrategyError::Internal(format!("no chunk has number {}", id.0));
        let array = array
            .filter(|array| id.0 - array.first < array.count)
            .ok_or_else(unknown)?;
        let number = id.0 - array.first;
        Ok(Chunk { array, number })
    }

    /// Which bytes of which file a chunk is. `None` if it is not stored, so that its elements are the fill value.
    ///
    /// # Errors
    /// The file should be there, or it is damaged.
    pub(crate) fn stored(&self, chunk: &Chunk<'_>) -> Result<Option<(Name, Range<u64>)>> {
        chunk.array.stored(chunk.number, &self.files)
    }

    /// The array in a folder.
    fn array_in(&self, folder: &str) -> Option<&Array> {
        let key = if folder.is_empty() { LONE } else { folder };
        let at = self.arrays.binary_search_by(|array| (*array.key).cmp(key));
        at.ok()
            .and_then(|n| self.arrays.get(n))
            .filter(|array| *array.folder == *folder)
    }

    /// The file that describes an array.
    pub(crate) fn description(&self, key: &str) -> String {
        let usual = format!("{key}/{ZARRAY}");
        let names = [
            format!("{key}/{ZARR_JSON}"),
            usual.clone(),
            ZARR_JSON.into(),
            ZMETADATA.into(),
            ZARRAY.into(),
        ];
        let there = |name: &String| Name::new(&**name).is_ok_and(|n| self.files.contains_key(&n));
        names.into_iter().find(there).unwrap_or(usual)
    }

    /// Why an array can't be read.
    fn refusal(&self, key: &str) -> Option<StrategyError> {
        let Refused { kind, what } = self.refused.get(key)?;
        Some(match kind {
            ErrorKind::Corrupt => {
                let file = self.description(key);
                StrategyError::corrupt(file, None, format!("array {key}: {what}"))
            }
            _ => StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: format!("reading {key} ({what})"),
            },
        })
    }

    /// Puts the fill value into all elements.
    fn fill(&self, array: &Array, reads: Vec<ReadTensor>, totals: &mut Traffic) -> Result<()> {
        let one = Tensor::new(array.meta.dtype, &[1], array.meta.fill.clone())?;
        for read in reads {
            let shape = read.into.shape();
            let steps = shape.iter().map(|_| 0).collect();
            let everywhere = Layout::new(array.meta.dtype.size(), 0, shape.into(), steps);
            let everywhere = everywhere
                .ok_or_else(|| StrategyError::Internal("a region is too large".into()))?;
            totals.needed += read.into.bytes();
            read.into.fill_from(&one, &everywhere)?;
        }
        Ok(())
    }

    /// The read of the store for a chunk whose file holds its elements as they are.
    fn record(
        &self,
        chunk: &Chunk<'_>,
        (name, record): (Name, Range<u64>),
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
    ) -> Result<RecordRead> {
        let bytes = record.end - record.start;
        let layout = chunk.array.layout(chunk.number)?;
        let selections: Vec<_> = reads.iter().map(|read| &read.selection).collect();
        // Padding at the end of an axis is read along.
        let all = cx.verify && Selection::cover_once(&selections, layout.elements());
        let sum = chunk.array.checksum(chunk.number).filter(|_| all);
        let check = sum
            .map(|sum| -> Box<dyn Checksum> { Box::new(Crc::new(bytes, sum, &chunk.array.key)) });
        let parts: Vec<Part> = reads
            .into_iter()
            .map(|read| read.part(&layout))
            .collect::<Result<_>>()?;
        Ok(RecordRead {
            name,
            record,
            parts,
            check,
        })
    }
}

impl ReaderHooks for ZarrReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for ZarrReader {
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

    fn why_not(&self, key: &str) -> Option<String> {
        let Refused { kind, what } = self.refused.get(key)?;
        (*kind != ErrorKind::Corrupt).then(|| format!("reading {key} ({what})"))
    }

    fn permits(&self, key: &str) -> Result<()> {
        if let Some(refusal) = self.refusal(key) {
            return Err(refusal);
        }
        let at = self.arrays.binary_search_by(|array| (*array.key).cmp(key));
        let Some(array) = at.ok().and_then(|n| self.arrays.get(n)) else {
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
        files::role(self, file)
    }

    fn reads_columns_together(&self) -> bool {
        true
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let mut by_chunk: BTreeMap<ChunkId, Vec<ReadTensor>> = BTreeMap::new();
        for read in reads {
            by_chunk.entry(read.selection.chunk).or_default().push(read);
        }
        let (mut totals, mut records) = (Traffic::default(), Vec::with_capacity(by_chunk.len()));
        let mut packed = Vec::new();
        for (id, reads) in by_chunk {
            let chunk = self.chunk(id)?;
            let meta = &chunk.array.meta;
            match self.stored(&chunk)? {
                None => self.fill(chunk.array, reads, &mut totals)?,
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
        totals.needed += read.needed;
        totals.bytes += read.bytes;
        totals.beside += read.beside;
        totals.requests += read.requests;
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

    async fn verify(&self, full: bool, progress: &Progress) -> Result<VerifyReport> {
        verify::verify(self, full, progress).await
    }
}
