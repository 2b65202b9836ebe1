//! An opened bundle: its index, and where its items are stored.

use super::crc;
use crate::{
    index::{Index, Place},
    names::{self, INDEX},
};
use reshard_model::{Dialect, Layout, Region};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Checksum, Name, RecordRead, Store};
use reshard_strategy::{
    ReadCx, ReadLimits, ReadTensor, Result, StorageInfo, StorageReader, StrategyError,
};
use std::{collections::BTreeMap, sync::Arc};

/// An opened bundle.
#[derive(Debug)]
pub(crate) struct BundleReader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) limits: ReadLimits,
    pub(crate) dialect: Dialect,
    pub(crate) metadata: Arc<Metadata>,
    /// The prefix of its files in the place.
    pub(crate) stem: String,
    pub(crate) index: Index,
    /// The data files that are there.
    pub(crate) files: BTreeMap<Name, u64>,
    /// Whether reshard has noted anything.
    pub(crate) has_record: bool,
}

impl BundleReader {
    pub(super) fn index_name(&self) -> String {
        format!("{}{INDEX}", self.stem)
    }

    pub(super) fn data_file(&self, shard: u32) -> Result<Name> {
        Ok(Name::new(names::data(
            &self.stem,
            shard,
            self.index.shards,
        ))?)
    }

    /// The file of an entry, in which all of the entry lies.
    ///
    /// # Errors
    /// The file is not there, or too short.
    pub(super) fn there(&self, place: &Place, key: &str) -> Result<Name> {
        let name = self.data_file(place.shard)?;
        match self.files.get(&name) {
            Some(bytes) if place.range().end <= *bytes => Ok(name),
            Some(bytes) => {
                let what = format!(
                    "it has {bytes} bytes, but {key} lies in {}..{} of it; it was cut, or belongs to another checkpoint",
                    place.offset,
                    place.range().end
                );
                Err(StrategyError::corrupt(name, Some(place.offset), what))
            }
            None => {
                let what = format!("it is missing, and {key} lies in it");
                Err(StrategyError::corrupt(name, None, what))
            }
        }
    }

    pub(super) fn chunk(&self, id: ChunkId) -> Result<&Place> {
        let unknown = || StrategyError::Internal(format!("no chunk has number {}", id.0));
        self.index.chunks.get(id.0 as usize).ok_or_else(unknown)
    }

    /// The entries of an object.
    pub(super) fn parts(&self, id: ObjectId) -> &[(Region, Place)] {
        let stored = self.index.objects.get(id.0 as usize);
        stored.map_or(&[], |stored| &stored.parts)
    }

    pub(super) fn refusal(&self, key: &str) -> Option<StrategyError> {
        let why = self.index.refused.get(key)?.clone();
        Some(why.in_file(self.index_name()).error(key, key, self.key()))
    }

    /// Checks that entries lie in their files, and that not many entries share their bytes.
    pub(super) fn sound<'p>(
        &self,
        key: &str,
        places: impl IntoIterator<Item = &'p Place>,
    ) -> Result<()> {
        for place in places {
            let name = self.there(place, key)?;
            let claimed = self.index.claimed.get(&place.shard).copied().unwrap_or(0);
            let stored = self.files.get(&name).copied().unwrap_or(0);
            self.limits
                .repeated(format_args!("{name}, in which {key} lies"), claimed, stored)?;
        }
        Ok(())
    }

    /// The read of the store for a chunk.
    pub(super) fn record(
        &self,
        id: ChunkId,
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
    ) -> Result<RecordRead> {
        let (place, layout, key) = (self.chunk(id)?, self.layout(id)?, self.key_of(id));
        let at = (self.there(place, &key)?, place.range());
        let check = || -> Option<Box<dyn Checksum>> { Some(Box::new(crc::check(place, &key))) };
        ReadTensor::record(reads, at, &layout, cx.verify, check)
    }

    pub(super) fn key_of(&self, id: ChunkId) -> String {
        self.metadata
            .chunk(id)
            .map(|(t, _)| t.key().to_owned())
            .unwrap_or_default()
    }

    pub(super) fn layout(&self, id: ChunkId) -> Result<Layout> {
        let stored = self.metadata.chunk(id);
        let layout =
            stored.and_then(|(t, region)| Layout::contiguous(t.dtype().size(), &region.lengths));
        layout.ok_or_else(|| StrategyError::Internal(format!("no chunk has number {}", id.0)))
    }

    pub(super) fn info(&self, place: &Place) -> Option<StorageInfo> {
        Some(StorageInfo::new(
            self.data_file(place.shard).ok()?,
            place.range(),
        ))
    }
}
