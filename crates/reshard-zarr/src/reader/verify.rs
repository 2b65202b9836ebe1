//! Looks for damage without loading anything.

use super::{
    array::Array,
    opened::{Chunk, ZarrReader},
};
use crate::array::{
    meta::{Codec, Encoding, Sharding},
    shard::Shard,
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_plan::TensorRef;
use reshard_storage::{Name, Progress};
use reshard_strategy::{
    CheckedItems, ChunkCheck, Crc32, Damage, ItemVerifier, ObjectCheck, Refused, Result,
    StorageReader, StrategyError, Uncovered, VerifyRun, crc_of, crc32_differs,
};
use std::{collections::BTreeMap, ops::Range};

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;
/// The most chunks that are read in one call.
const AHEAD: usize = 1024;

pub(super) struct Verifier<'r> {
    reader: &'r ZarrReader,
    /// Arrays whose descriptions are not the written ones.
    changed: BTreeMap<&'r str, Refused>,
    /// Whether chunks of the array may be decoded, if that was looked at. Elements that are too much to load are not decoded for a check either.
    permitted: Option<bool>,
    ahead: ReadAhead,
}

impl<'r> Verifier<'r> {
    pub(super) async fn new(reader: &'r ZarrReader, run: &mut VerifyRun<'r>) -> Result<Self> {
        // What opening took from the record, or left to the first read, is looked at now.
        reader.read_all_indexes().await?;
        let changed = changed(reader).await?;
        let refused = reader.refused.iter().map(|(key, why)| (&**key, why));
        for (key, why) in refused.chain(changed.iter().map(|(key, why)| (*key, why))) {
            run.refuse(key, &why.clone().in_file(reader.description(key)));
        }
        Ok(Self {
            reader,
            changed,
            permitted: None,
            ahead: ReadAhead::default(),
        })
    }

    /// Checks a chunk of which the next bytes may have been read `ahead`. Returns how many bytes it has.
    async fn check(
        &self,
        chunk: &Chunk<'_>,
        (file, at): (&Name, Range<u64>),
        ahead: Option<Bytes>,
        progress: &Progress,
    ) -> Result<u64> {
        let (reader, Chunk { array, number }) = (self.reader, chunk);
        let (store, bytes) = (&*reader.store, at.end - at.start);
        if !array.meta.stored().codecs.is_empty() {
            reader.affords(chunk, &at)?;
            let stored = match ahead {
                Some(stored) => stored,
                None => store.read(file, at.clone()).await?,
            };
            progress.add(bytes);
            reader.decoded(chunk, file, &at, stored)?;
            return Ok(bytes);
        }
        let found = match ahead {
            Some(stored) => {
                progress.add(bytes);
                crc32fast::hash(&stored)
            }
            None => {
                let at = at.clone();
                crc_of::<Crc32>(store, file, at, STEP, progress).await?
            }
        };
        match array.checksum(*number).filter(|written| *written != found) {
            None => Ok(bytes),
            Some(written) => {
                let what = crc32_differs(&format!("a chunk of {}", array.key), found, written);
                // Of a file that is one chunk it is said as a whole.
                let offset = Some(at.start).filter(|at| *at > 0);
                Err(StrategyError::corrupt(file, offset, what))
            }
        }
    }
}

#[async_trait]
impl<'r> ItemVerifier<'r> for Verifier<'r> {
    fn is_grid(&self) -> bool {
        true
    }

    async fn tensor(&mut self, t: &TensorRef<'r>, run: &mut VerifyRun<'r>) -> bool {
        if self.changed.contains_key(t.key()) {
            return false;
        }
        (self.permitted, self.ahead) = (None, ReadAhead::default());
        if let Some(array) = self.reader.array(t.key()) {
            indexes(array, run);
            if let (true, Encoding::Sharded(sharding)) = (run.items.is_all(), &array.meta.encoding)
            {
                between(self.reader, (array, sharding), run);
            }
        }
        true
    }

    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let (reader, chunk) = (self.reader, self.reader.chunk(item.id)?);
        let Chunk { array, number } = chunk;
        // What is wrong with the index of a shard is said once, and not for each chunk in it.
        if array.is_lost(number) {
            return Ok(0);
        }
        let mut read = item.read;
        if read && !array.meta.stored().codecs.is_empty() {
            read = *self.permitted.get_or_insert_with(|| {
                let permitted = reader.permits(item.key);
                // It is said once for the array.
                permitted.map_err(|e| run.error(item.key, &e)).is_ok()
            });
        }
        let ahead = self.ahead.take(reader, &chunk, run.items).await;
        let Some((file, at)) = reader.stored(&chunk)? else {
            return reader.may_lack(&chunk).map(|()| 0);
        };
        if !read {
            return Ok(0);
        }
        let at = (&file, at);
        let bytes = self.check(&chunk, at, ahead, run.progress).await?;
        if let Some(why) = uncovered(&chunk) {
            run.report.without_checksum += u64::from(bytes > 0 && why == Uncovered::NoChecksum);
            run.report.not_covered.add(file.as_str(), why, bytes);
        }
        Ok(bytes)
    }

    async fn object(&mut self, _: ObjectCheck<'r>, _: &mut VerifyRun<'r>) -> Result<u64> {
        Ok(0)
    }
}

/// The arrays whose descriptions were not read when the checkpoint was opened, and are not the written ones.
async fn changed(reader: &ZarrReader) -> Result<BTreeMap<&str, Refused>> {
    reader.read_descriptions(reader.arrays.iter()).await?;
    let arrays = reader.arrays.iter();
    let changed = arrays.filter_map(|array| Some((&*array.key, reader.changed(array)?)));
    Ok(changed.collect())
}

/// Counts the bytes of shards that no inner chunk has, except those of an index with a checksum.
fn between(reader: &ZarrReader, (array, sharding): (&Array, &Sharding), run: &mut VerifyRun<'_>) {
    let shard = Shard::of(&array.meta, sharding);
    let mut claimed: BTreeMap<Name, Vec<Range<u64>>> = BTreeMap::new();
    for number in 0..array.count {
        if let Ok(Some((file, at))) = array.stored(number, &reader.files) {
            let indexes = || array.inner_indexes(&array.place(number).0).to_vec();
            claimed.entry(file).or_insert_with(indexes).push(at);
        }
    }
    for (file, mut ranges) in claimed {
        let size = reader.files.get(&file).copied().unwrap_or(0);
        ranges.extend(shard.index(size).ok().filter(|_| sharding.index_crc));
        let covered = &mut run.report.not_covered;
        covered.add_between(file.as_str(), size, ranges);
    }
}

/// Reports the indexes of shards that are damaged.
fn indexes(array: &Array, run: &mut VerifyRun<'_>) {
    for (position, fault) in array.damaged_indexes() {
        let mut found = Damage::new(&*fault.what).of_key(&*array.key);
        found.file = array.file_at(&position).ok().map(|name| name.to_string());
        run.report.add(fault.kind, found);
    }
}

/// Why a change of its bytes is not found for sure, neither by its CRC-32 in the record nor by a checksum of its encoding.
fn uncovered(Chunk { array, number }: &Chunk<'_>) -> Option<Uncovered> {
    let codecs = &array.meta.stored().codecs;
    match codecs.last() {
        _ if array.checksum(*number).is_some() => None,
        // It is the sum of all bytes that it is behind.
        Some(Codec::Checksum { .. }) => None,
        _ if codecs.iter().any(|codec| codec.has_sum()) => Some(Uncovered::Packed),
        _ => Some(Uncovered::NoChecksum),
    }
}

/// The next chunks of an array, read in one call: a shard may have many small inner chunks, and a request for each would take longer than
/// their bytes.
#[derive(Default)]
struct ReadAhead {
    /// The first chunk that was not considered yet.
    end: u32,
    chunks: BTreeMap<u32, Bytes>,
}

impl ReadAhead {
    /// The stored bytes of a chunk. `None` if `check` has to read them: the chunk is large, or they can't be read.
    async fn take(
        &mut self,
        reader: &ZarrReader,
        chunk: &Chunk<'_>,
        items: &CheckedItems,
    ) -> Option<Bytes> {
        if chunk.number >= self.end {
            self.read(reader, chunk, items).await;
        }
        self.chunks.remove(&chunk.number)
    }

    async fn read(&mut self, reader: &ZarrReader, first: &Chunk<'_>, items: &CheckedItems) {
        let array = first.array;
        let (mut numbers, mut ranges, mut left) = (Vec::new(), Vec::new(), STEP);
        self.end = first.number;
        while self.end < array.count && ranges.len() < AHEAD {
            let number = self.end;
            let chunk = Chunk { array, number };
            if !array.is_lost(number)
                && items.has_chunk(chunk.id())
                && let Ok(Some((file, at))) = reader.stored(&chunk)
            {
                let Some(rest) = left.checked_sub(at.end - at.start) else {
                    break;
                };
                left = rest;
                numbers.push(number);
                ranges.push((file, at));
            }
            self.end += 1;
        }
        // A large chunk comes alone, and in steps.
        self.end = self.end.max(first.number + 1);
        self.chunks.clear();
        // After an error each chunk is read alone, which finds the one that can't be read.
        if let Ok((bytes, _)) = reader.store.read_ranges(ranges).await {
            self.chunks.extend(numbers.into_iter().zip(bytes));
        }
    }
}
