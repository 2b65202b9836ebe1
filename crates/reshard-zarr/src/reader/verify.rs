//! Looks for damage without loading anything.

use super::{
    array::{Array, Refused, UnreadDescription},
    opened::{Chunk, ZarrReader},
};
use crate::array::{
    meta::{Codec, Encoding, Sharding},
    shard::Shard,
};
use bytes::Bytes;
use reshard_storage::{Name, Progress};
use reshard_strategy::{
    CheckedItems, Damage, Result, StorageReader, StrategyError, Uncovered, VerifyReport,
    check_steps, crc32_differs, unclaimed,
};
use std::{collections::BTreeMap, ops::Range};

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;
/// The most chunks that are read in one call.
const AHEAD: usize = 1024;

pub(super) async fn verify(
    reader: &ZarrReader,
    items: &CheckedItems,
    progress: &Progress,
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    // What opening took from the record, or left to the first read, is looked at now.
    reader.read_all_indexes().await?;
    let changed = changed(reader).await?;
    let refused = reader.refused.iter().map(|(key, why)| (&**key, why));
    let refused: BTreeMap<&str, &Refused> = refused
        .chain(changed.iter().map(|(key, why)| (*key, *why)))
        .collect();
    for (key, why) in refused {
        report.items += 1;
        let found = Damage {
            key: Some(key.to_owned()),
            file: Some(reader.description(key)),
            offset: None,
            what: why.what.clone(),
        };
        report.add(why.kind, found);
    }
    let sound = |array: &&Array| !changed.contains_key(&*array.key);
    for array in reader.arrays.iter().filter(sound) {
        indexes(array, &mut report);
        let mut permitted = None;
        let mut ahead = ReadAhead::default();
        for number in 0..array.count {
            report.items += 1;
            // What is wrong with the index of a shard is said once, and not for each chunk in it.
            if array.is_lost(number) {
                continue;
            }
            let chunk = Chunk { array, number };
            let mut full = items.has_chunk(chunk.id());
            if full && !array.meta.stored().codecs.is_empty() {
                full = *permitted.get_or_insert_with(|| is_permitted(reader, array, &mut report));
            }
            let bytes = ahead.take(reader, &chunk, items).await;
            match check(reader, &chunk, full, bytes, progress).await {
                Ok(read) => {
                    report.bytes += read;
                    let unchecked = read > 0 && !has_checksum(&chunk);
                    report.without_checksum += u64::from(unchecked);
                    if let Some(why) = uncovered(&chunk)
                        && let Ok(file) = array.file(number)
                    {
                        report.not_covered.add(file.as_str(), why, read);
                    }
                }
                Err(e) => report.add(e.kind(), Damage::of(Some(&array.key), &e)),
            }
        }
        if let (true, Encoding::Sharded(sharding)) = (items.is_all(), &array.meta.encoding) {
            between(reader, (array, sharding), &mut report);
        }
    }
    Ok(report)
}

/// Whether chunks of an array may be decoded. Elements that are too much to load are not decoded for a check either, which is reported once
/// for the array.
fn is_permitted(reader: &ZarrReader, array: &Array, report: &mut VerifyReport) -> bool {
    match reader.permits(&array.key) {
        Ok(()) => true,
        Err(e) => {
            report.add(e.kind(), Damage::of(Some(&array.key), &e));
            false
        }
    }
}

/// The arrays whose descriptions were not read when the checkpoint was opened, and are not the written ones.
async fn changed(reader: &ZarrReader) -> Result<BTreeMap<&str, &Refused>> {
    reader
        .read_descriptions(&reader.arrays.iter().collect::<Vec<_>>())
        .await?;
    let mut out = BTreeMap::new();
    for Array { key, unread, .. } in &reader.arrays {
        if let Some(Some(why)) = unread.as_ref().and_then(UnreadDescription::found) {
            out.insert(&**key, why);
        }
    }
    Ok(out)
}

/// Counts the bytes of shards that no inner chunk has, except those of an index with a checksum.
fn between(reader: &ZarrReader, (array, sharding): (&Array, &Sharding), report: &mut VerifyReport) {
    let shard = Shard::of(&array.meta, sharding);
    let mut claimed: BTreeMap<Name, Vec<Range<u64>>> = BTreeMap::new();
    for number in 0..array.count {
        if let Ok(Some((file, at))) = array.stored(number, &reader.files) {
            claimed.entry(file).or_default().push(at);
        }
    }
    for (file, mut ranges) in claimed {
        let size = reader.files.get(&file).copied().unwrap_or(0);
        ranges.extend(shard.index(size).ok().filter(|_| sharding.index_crc));
        ranges.sort_unstable_by_key(|range| range.start);
        let free = unclaimed(size, ranges);
        let covered = &mut report.not_covered;
        covered.add(file.as_str(), Uncovered::Between, free);
    }
}

/// Reports the indexes of shards that are damaged.
fn indexes(array: &Array, report: &mut VerifyReport) {
    for (position, fault) in array.damaged_indexes() {
        let found = Damage {
            key: Some(array.key.to_string()),
            file: array.file_at(&position).ok().map(|name| name.to_string()),
            offset: None,
            what: fault.what.clone(),
        };
        report.add(fault.kind.of_error(), found);
    }
}

/// Whether a change of its bytes is found: by its CRC-32 in the record, or by a checksum of its encoding. Those of zstd are optional, and
/// blosc has none.
fn has_checksum(chunk: &Chunk<'_>) -> bool {
    let Chunk { array, number } = chunk;
    let of_codec = |codec: &Codec| match codec {
        Codec::Gzip | Codec::Zlib | Codec::Crc32c { .. } => true,
        Codec::Zstd | Codec::Blosc => false,
    };
    let recorded = array.checksum(*number).is_some();
    recorded || array.meta.stored().codecs.iter().any(of_codec)
}

/// Why a change of its bytes is not found for sure.
fn uncovered(chunk: &Chunk<'_>) -> Option<Uncovered> {
    let Chunk { array, number } = chunk;
    let codecs = &array.meta.stored().codecs;
    match codecs.last() {
        _ if array.checksum(*number).is_some() => None,
        // It is the sum of all bytes that it is behind.
        Some(Codec::Crc32c { .. }) => None,
        _ if has_checksum(chunk) => Some(Uncovered::Packed),
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

/// Returns the bytes of a chunk that were read ahead, or else reads the range.
async fn read(
    reader: &ZarrReader,
    file: &Name,
    range: &Range<u64>,
    ahead: &Option<Bytes>,
) -> Result<Bytes> {
    match ahead {
        Some(stored) => Ok(stored.clone()),
        None => Ok(reader.store.read(file, range.clone()).await?),
    }
}

/// Returns the number of bytes that were read, here or `ahead`.
async fn check(
    reader: &ZarrReader,
    chunk: &Chunk<'_>,
    full: bool,
    ahead: Option<Bytes>,
    progress: &Progress,
) -> Result<u64> {
    let Chunk { array, number } = chunk;
    let Some((file, at)) = reader.stored(chunk)? else {
        return reader.may_lack(chunk).map(|()| 0);
    };
    if !full {
        return Ok(0);
    }
    if !array.meta.stored().codecs.is_empty() {
        reader.affords(chunk, &at)?;
        let stored = read(reader, &file, &at, &ahead).await?;
        progress.add(stored.len() as u64);
        reader.decoded(chunk, &file, &at, stored)?;
        return Ok(at.end - at.start);
    }
    let mut crc = crc32fast::Hasher::new();
    for step in check_steps(&*reader.store, at.clone(), STEP) {
        let part = read(reader, &file, &step, &ahead).await?;
        crc.update(&part);
        progress.add(step.end - step.start);
    }
    match (crc.finalize(), array.checksum(*number)) {
        (found, Some(written)) if found != written => {
            let what = crc32_differs(&format!("a chunk of {}", array.key), found, written);
            // Of a file that is one chunk it is said as a whole.
            let offset = Some(at.start).filter(|at| *at > 0);
            Err(StrategyError::corrupt(file, offset, what))
        }
        _ => Ok(at.end - at.start),
    }
}
