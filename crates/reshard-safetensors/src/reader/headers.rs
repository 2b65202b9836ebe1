//! Looks at headers that opening has not read.

use super::opened::{SafetensorsReader, tensor};
use crate::unread::CHANGED;
use reshard_plan::ChunkId;
use reshard_strategy::{ReadTensor, Result, Rewritten, Selection, StrategyError};
use std::collections::{BTreeMap, BTreeSet};

impl SafetensorsReader {
    /// Looks at the headers of files of which a read takes what no checksum covers: then nothing else tells that the bytes are those that are wanted.
    /// Returns how many requests that took, and how many bytes.
    ///
    /// # Errors
    /// A header is not the written one.
    pub(super) async fn look_before(
        &self,
        reads: &[ReadTensor],
        verify: bool,
    ) -> Result<(u64, u64)> {
        let of_chunk = ReadTensor::selections(reads.iter().filter(|_| !self.unread.is_empty()));
        let mut needed: BTreeMap<u32, ChunkId> = BTreeMap::new();
        for (id, selections) in of_chunk {
            let unread = self.chunks.get(id.0 as usize);
            let unread = unread.filter(|chunk| self.unread.has(chunk.file));
            let Some(chunk) = unread.filter(|chunk| !needed.contains_key(&chunk.file)) else {
                continue;
            };
            let all = || -> Result<bool> {
                let layout = self.stored(id)?.layout;
                Ok(Selection::cover_once(&selections, layout.elements()))
            };
            if !verify || chunk.crc.is_none() || !all()? {
                needed.insert(chunk.file, id);
            }
        }
        let files: BTreeSet<u32> = needed.keys().copied().collect();
        let read = self.unread.read(&self.store, &self.files, &files).await?;
        for (file, id) in needed {
            if self.unread.is_changed(file) {
                let stored = self.stored(id)?;
                let what = format!("{}: {CHANGED}", tensor(stored.key));
                return Err(StrategyError::corrupt(stored.file, None, what));
            }
        }
        Ok(read)
    }

    /// The files whose headers were not read when the checkpoint was opened, and are not the written ones.
    pub(super) async fn changed(&self) -> Result<BTreeSet<u32>> {
        let all: BTreeSet<u32> = self.unread.files().collect();
        self.unread.read(&self.store, &self.files, &all).await?;
        Ok(all
            .into_iter()
            .filter(|n| self.unread.is_changed(*n))
            .collect())
    }

    /// Those that were read since, with the elements that were described.
    pub(super) fn rewritten_unread(&self) -> Vec<Rewritten> {
        let is_changed = |n: &u32| self.unread.is_changed(*n);
        let changed = self.unread.files().filter(is_changed);
        let of = |n: u32| {
            let all = self.metadata.tensors().flat_map(|t| t.chunks());
            let stored = all.filter_map(|(id, _)| {
                let is_in = self.chunks.get(id.0 as usize)?.file == n;
                is_in.then(|| self.stored(id).ok()).flatten()
            });
            let elements = stored.filter_map(|stored| Some((stored.bytes, stored.crc?)));
            let file = self.files.get(n as usize)?.clone();
            Some(Rewritten::new(file, Some(elements.collect())))
        };
        changed.filter_map(of).collect()
    }
}
