//! Looks at headers that opening has not read.

use super::opened::{SafetensorsReader, tensor};
use crate::record::CHANGED;
use reshard_plan::ChunkId;
use reshard_strategy::{
    ReadTensor, Result, Rewritten, Selection, StrategyError, Traffic, UnreadPart,
};
use std::collections::{BTreeMap, BTreeSet};

impl SafetensorsReader {
    /// Looks at the headers of files of which a read takes what no checksum covers: then nothing else tells that the bytes are those that are wanted.
    ///
    /// # Errors
    /// A header is not the written one.
    pub(super) async fn look_before(&self, reads: &[ReadTensor], verify: bool) -> Result<Traffic> {
        let of_chunk = ReadTensor::selections(reads.iter().filter(|_| !self.unread.is_empty()));
        let mut needed: BTreeMap<u32, (&UnreadPart, ChunkId)> = BTreeMap::new();
        for (id, selections) in of_chunk {
            let chunk = self.chunks.get(id.0 as usize);
            let unread = chunk.and_then(|chunk| Some((chunk, self.unread.get(&chunk.file)?)));
            let Some((chunk, unread)) = unread.filter(|(c, _)| !needed.contains_key(&c.file))
            else {
                continue;
            };
            let all = || -> Result<bool> {
                let layout = self.stored(id)?.layout;
                Ok(Selection::cover_once(&selections, layout.elements()))
            };
            if !verify || chunk.crc.is_none() || !all()? {
                needed.insert(chunk.file, (unread, id));
            }
        }
        let parts = needed.values().map(|(part, _)| *part);
        let traffic = UnreadPart::read(&*self.store, parts).await?;
        for (part, id) in needed.into_values() {
            if part.is_changed() {
                let stored = self.stored(id)?;
                let what = format!("{}: {CHANGED}", tensor(stored.key));
                return Err(StrategyError::corrupt(stored.file, None, what));
            }
        }
        Ok(traffic)
    }

    /// The files whose headers were not read when the checkpoint was opened, and are not the written ones.
    pub(super) async fn changed(&self) -> Result<BTreeSet<u32>> {
        UnreadPart::read(&*self.store, self.unread.values()).await?;
        Ok(self.changed_files().collect())
    }

    fn changed_files(&self) -> impl Iterator<Item = u32> {
        let changed = self.unread.iter().filter(|(_, part)| part.is_changed());
        changed.map(|(n, _)| *n)
    }

    /// Those that were read since, with the elements that were described.
    pub(super) fn rewritten_unread(&self) -> Vec<Rewritten> {
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
        self.changed_files().filter_map(of).collect()
    }
}
