//! What of an opened checkpoint is in memory.

use super::array::Array;
use crate::{
    names::{ZARR_JSON, ZARRAY, ZMETADATA},
    place::PlaceFiles,
    stated::LONE,
    version::Version,
};
use reshard_model::{Dialect, Layout, Tensor};
use reshard_plan::{ChunkId, Metadata};
use reshard_storage::{Checksum, Name, RecordRead, Store};
use reshard_strategy::{
    Crc32Check, ReadCx, ReadLimits, ReadTensor, Recent, Refused, Result, Rewritten, StrategyError,
    Traffic,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An opened checkpoint.
#[derive(Debug)]
pub(crate) struct ZarrReader {
    /// The format by which it was opened.
    pub(crate) version: &'static Version,
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
    /// Descriptions that are not the written ones, as far as opening has read them.
    pub(crate) rewritten: Vec<Rewritten>,
    /// The record of reshard, if there is one.
    pub(crate) noted_in: &'static str,
    /// Decoded chunks of which only a part was wanted. A program that reads a tensor in blocks decodes each chunk once.
    pub(crate) kept: Mutex<Recent<ChunkId, Tensor>>,
    /// All files of the place.
    pub(crate) files: PlaceFiles,
    /// Paths about which consolidated metadata contradict the descriptions there.
    pub(crate) contradicted: BTreeSet<String>,
}

/// A chunk, or an inner chunk of a shard: its array, and its number there.
pub(crate) struct Chunk<'r> {
    pub(crate) array: &'r Array,
    pub(crate) number: u32,
}

impl ZarrReader {
    pub(super) fn chunk(&self, id: ChunkId) -> Result<Chunk<'_>> {
        let array = self.arrays.partition_point(|array| array.first <= id.0);
        let array = array.checked_sub(1).and_then(|n| self.arrays.get(n));
        let unknown = || StrategyError::Internal(format!("no chunk has number {}", id.0));
        let array = array
            .filter(|array| id.0 - array.first < array.count)
            .ok_or_else(unknown)?;
        let number = id.0 - array.first;
        Ok(Chunk { array, number })
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Recent<ChunkId, Tensor>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which bytes of which file a chunk is. `None` if it is not stored, so that its elements are the fill value.
    ///
    /// # Errors
    /// The file should be there, or it is damaged.
    pub(crate) fn stored(&self, chunk: &Chunk<'_>) -> Result<Option<(Name, Range<u64>)>> {
        chunk.array.stored(chunk.number, &self.files)
    }

    /// Fails if the program that wrote the checkpoint stores a chunk that is not stored. Other programs leave out chunks that have only the fill
    /// value. Megatron Core does not.
    pub(super) fn may_lack(&self, chunk: &Chunk<'_>) -> Result<()> {
        if self.dialect != Dialect::Megatron {
            return Ok(());
        }
        let what = format!(
            "it is missing, and Megatron Core writes all chunks; a load that checks nothing puts the fill value in the place of this part of {}",
            chunk.array.key
        );
        Err(StrategyError::corrupt(
            chunk.array.file(chunk.number)?,
            None,
            what,
        ))
    }

    /// The array in a folder.
    pub(super) fn array_in(&self, folder: &str) -> Option<&Array> {
        let key = if folder.is_empty() { LONE } else { folder };
        self.array(key).filter(|array| *array.folder == *folder)
    }

    /// The array of a key.
    pub(super) fn array(&self, key: &str) -> Option<&Array> {
        let at = self.arrays.binary_search_by(|array| (*array.key).cmp(key));
        at.ok().and_then(|n| self.arrays.get(n))
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
    pub(super) fn refusal(&self, key: &str) -> Option<StrategyError> {
        let why = self.refused.get(key)?.clone();
        let why = why.in_file(self.description(key));
        Some(why.error(key, format_args!("array {key}"), self.version.info.key()))
    }

    /// Puts the fill value into all elements.
    pub(super) fn fill(
        &self,
        array: &Array,
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let one = Tensor::new(array.meta.dtype, &[1], array.meta.fill.clone())?;
        for read in reads {
            let shape = read.into.shape();
            let steps = shape.iter().map(|_| 0).collect();
            let everywhere = Layout::new(array.meta.dtype.size(), 0, shape.into(), steps);
            let everywhere = everywhere
                .ok_or_else(|| StrategyError::Internal("a region is too large".into()))?;
            totals.needed += read.into.bytes();
            cx.progress.add(read.into.bytes());
            read.into.fill_from(&one, &everywhere)?;
        }
        Ok(())
    }

    /// The read of the store for a chunk whose file holds its elements as they are.
    pub(super) fn record(
        &self,
        chunk: &Chunk<'_>,
        at: (Name, Range<u64>),
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
    ) -> Result<RecordRead> {
        let Chunk { array, number } = *chunk;
        let bytes = at.1.end - at.1.start;
        // Padding at the end of an axis is read along.
        let check = || -> Option<Box<dyn Checksum>> {
            let (sum, what) = (array.checksum(number)?, format!("a chunk of {}", array.key));
            Some(Box::new(Crc32Check::new(bytes, sum, &what)))
        };
        ReadTensor::record(reads, at, &array.layout(number)?, cx.verify, check)
    }
}
