//! Reads what opening has not read, because the record of reshard says the same: indexes of shards, and descriptions of arrays.

use super::{
    array::{Array, changed},
    opened::{Chunk, ZarrReader},
    shards,
};
use reshard_strategy::{
    ReadTensor, Refused, Result, Selection, StrategyError, Traffic, UnreadPart,
};
use std::collections::{BTreeMap, BTreeSet};

impl ZarrReader {
    /// Looks at descriptions and indexes before reads of which no checksum covers all: then nothing else tells that the bytes are those that are wanted.
    ///
    /// # Errors
    /// A description is not the written one. What is wrong with an index is said by who reads its shard.
    pub(super) async fn look_before(&self, reads: &[ReadTensor], verify: bool) -> Result<Traffic> {
        let is_unread = |read: &&ReadTensor| {
            let chunk = self.chunk(read.selection.chunk);
            chunk.is_ok_and(|Chunk { array, number }| {
                array.unread.is_some() || array.without_index(number).is_some()
            })
        };
        let of_chunk = ReadTensor::selections(reads.iter().filter(is_unread));
        let mut needed: BTreeMap<u32, (&Array, BTreeSet<u64>)> = BTreeMap::new();
        for (id, selections) in of_chunk {
            let Chunk { array, number } = self.chunk(id)?;
            let is_checked = || -> Result<bool> {
                let layout = array.layout(number)?;
                Ok(Selection::cover_once(&selections, layout.elements()))
            };
            if !verify || array.checksum(number).is_none() || !is_checked()? {
                let of = needed.entry(array.first);
                of.or_insert_with(|| (array, BTreeSet::new()))
                    .1
                    .extend(array.without_index(number));
            }
        }
        let arrays = needed.values().map(|(array, _)| *array);
        let mut traffic = self.read_descriptions(arrays.clone()).await?;
        for array in arrays {
            if let Some(why) = self.changed(array) {
                let file = self.description(&array.key);
                let what = format!("array {}: {}", array.key, why.what);
                return Err(StrategyError::corrupt(file, None, what));
            }
        }
        let mut unread = Vec::new();
        for (array, needed) in needed.values() {
            unread.extend(array.unread_indexes(&self.files, |n, _| needed.contains(&n))?);
        }
        traffic += shards::read(&self.store, unread).await?;
        Ok(traffic)
    }

    /// Reads all indexes that were not read yet.
    pub(super) async fn read_all_indexes(&self) -> Result<()> {
        let mut unread = Vec::new();
        for array in &self.arrays {
            unread.extend(array.unread_indexes(&self.files, |_, _| true)?);
        }
        shards::read(&self.store, unread).await?;
        Ok(())
    }

    /// Reads the descriptions of these arrays that were not read yet.
    pub(super) async fn read_descriptions(
        &self,
        arrays: impl Iterator<Item = &Array>,
    ) -> Result<Traffic> {
        let unread = arrays.filter_map(|array| array.unread.as_ref());
        UnreadPart::read(&*self.store, unread).await
    }

    /// What is wrong with the description of an array that was read since opening, and is not the written one.
    pub(super) fn changed(&self, array: &Array) -> Option<Refused> {
        let unread = array.unread.as_ref().filter(|unread| unread.is_changed())?;
        Some(changed(unread.file().as_str(), self.noted_in))
    }
}
