//! Reads what opening has not read, because the record of reshard says the same: indexes of shards, and descriptions of arrays.

use super::{
    array::{Array, UnreadDescription},
    opened::{Chunk, ZarrReader},
    shards,
};
use crate::array::find::at_once;
use reshard_strategy::{ReadTensor, Result, Selection, StrategyError};
use std::collections::{BTreeMap, BTreeSet};

impl ZarrReader {
    /// Looks at descriptions and indexes before reads of which no checksum covers all: then nothing else tells that the bytes are those that are wanted.
    /// Returns how many requests that took, and how many bytes.
    ///
    /// # Errors
    /// A description is not the written one. What is wrong with an index is said by who reads its shard.
    pub(super) async fn look_before(
        &self,
        reads: &[ReadTensor],
        verify: bool,
    ) -> Result<(u64, u64)> {
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
        let arrays: Vec<&Array> = needed.values().map(|(array, _)| *array).collect();
        let (mut requests, mut bytes) = self.read_descriptions(&arrays).await?;
        for array in arrays {
            if let Some(Some(why)) = array.unread.as_ref().and_then(UnreadDescription::found) {
                let file = self.description(&array.key);
                let what = format!("array {}: {}", array.key, why.what);
                return Err(StrategyError::corrupt(file, None, what));
            }
        }
        let mut unread = Vec::new();
        for (array, needed) in needed.values() {
            unread.extend(array.unread_indexes(&self.files, |n, _| needed.contains(&n))?);
        }
        let read = shards::read(&self.store, unread).await?;
        requests += read.0;
        bytes += read.1;
        Ok((requests, bytes))
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

    /// Reads the descriptions of these arrays that were not read yet. Returns how many requests that took, and how many bytes.
    pub(super) async fn read_descriptions(&self, arrays: &[&Array]) -> Result<(u64, u64)> {
        let mut all: Vec<(&UnreadDescription, u64)> = Vec::new();
        for array in arrays.iter().filter(|array| array.is_assumed()) {
            if let Some(unread) = &array.unread {
                let bytes = self.files.get(&unread.file).copied().unwrap_or(0);
                all.push((unread, bytes));
            }
        }
        let (mut requests, mut read) = (0, 0);
        let mut left = &all[..];
        while !left.is_empty() {
            let (part, rest) = left.split_at(at_once(left.iter().map(|(_, bytes)| *bytes)));
            left = rest;
            let ranges = part
                .iter()
                .map(|(unread, bytes)| (unread.file.clone(), 0..*bytes));
            let (texts, traffic) = self.store.read_ranges(ranges.collect()).await?;
            requests += traffic.requests;
            read += traffic.bytes + traffic.beside;
            for ((unread, _), text) in part.iter().zip(texts) {
                unread.take(&text);
            }
        }
        Ok((requests, read))
    }
}
