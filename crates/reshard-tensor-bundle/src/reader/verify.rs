//! Looks for damage without loading anything.

use super::{BundleReader, crc::differs};
use crate::{
    index::Place,
    table::read::{self, Budget},
};
use reshard_model::ErrorKind;
use reshard_plan::ObjectId;
use reshard_storage::{Name, Progress};
use reshard_strategy::{
    CheckedItems, Damage, Result, StrategyError, Uncovered, VerifyReport, check_steps, unclaimed,
};
use std::{collections::BTreeMap, ops::Range};

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;

pub(super) async fn verify(
    reader: &BundleReader,
    items: &CheckedItems,
    progress: &Progress,
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    for (key, why) in &reader.index.refused {
        report.items += 1;
        let found = Damage {
            key: Some(key.clone()),
            file: Some(reader.index_name()),
            offset: None,
            what: why.what.clone(),
        };
        report.add(why.kind, found);
    }
    for problem in reader.metadata.problems() {
        let found = Damage {
            key: Some(problem.key().into()),
            file: Some(reader.index_name()),
            offset: None,
            what: problem.to_string(),
        };
        report.add(ErrorKind::Corrupt, found);
    }
    missing(reader, &mut report)?;
    overlaps(reader, &mut report);
    for t in reader.metadata.tensors() {
        for (id, _) in t.chunks() {
            report.items += 1;
            let place = reader.chunk(id)?;
            if is_lost(reader, place) {
                continue;
            }
            match entry(reader, t.key(), place, items.has_chunk(id), progress).await {
                Ok(bytes) => report.bytes += bytes,
                Err(e) => report.add(e.kind(), Damage::of(Some(t.key()), &e)),
            }
        }
    }
    for (id, key) in reader.metadata.objects() {
        report.items += 1;
        let parts = reader.index.objects.get(id.0 as usize).map(|o| &o.parts);
        if parts
            .into_iter()
            .flatten()
            .any(|(_, place)| is_lost(reader, place))
        {
            continue;
        }
        match object(reader, key, id, items.has_object(id), progress).await {
            Ok(bytes) => report.bytes += bytes,
            Err(e) => report.add(e.kind(), Damage::of(Some(key), &e)),
        }
    }
    if items.is_all() {
        between(reader, &mut report);
        if let Err(e) = table(reader, &mut report).await {
            report.add(e.kind(), Damage::of(None, &e));
        }
    }
    Ok(report)
}

/// Counts the bytes of data files that no entry has.
fn between(reader: &BundleReader, report: &mut VerifyReport) {
    let mut all: Vec<(u32, Range<u64>)> = places(reader)
        .map(|(place, _)| (place.shard, place.range()))
        .collect();
    all.sort_unstable_by_key(|(shard, range)| (*shard, range.start));
    for (name, &size) in &reader.files {
        let of_file = |shard: u32| reader.data_file(shard).is_ok_and(|file| file == *name);
        let ranges = all.chunk_by(|a, b| a.0 == b.0);
        let ranges = ranges
            .filter(|part| part.first().is_some_and(|(shard, _)| of_file(*shard)))
            .flatten();
        let free = unclaimed(size, ranges.map(|(_, range)| range.clone()));
        let covered = &mut report.not_covered;
        covered.add(name.as_str(), Uncovered::Between, free);
    }
}

/// Checks the bytes of the index that a reader does not need.
async fn table(reader: &BundleReader, report: &mut VerifyReport) -> Result<()> {
    let name = Name::new(reader.index_name())?;
    let bytes = reader.limits.read(&reader.store, &name).await?;
    let Some(bytes) = bytes else {
        return Err(StrategyError::corrupt(name, None, "it is missing"));
    };
    let memory = reader.limits.memory(bytes.len() as u64);
    let free = read::unclaimed(&bytes, Budget(memory));
    let free = free.map_err(|fault| StrategyError::corrupt(&name, fault.offset, fault.what))?;
    let covered = &mut report.not_covered;
    covered.add(name.as_str(), Uncovered::Between, free);
    Ok(())
}

/// Whether the file of an entry is missing, which is said once.
fn is_lost(reader: &BundleReader, place: &Place) -> bool {
    let name = reader.data_file(place.shard);
    name.is_ok_and(|name| !reader.files.contains_key(&name))
}

/// Reports the data files that are missing.
fn missing(reader: &BundleReader, report: &mut VerifyReport) -> Result<()> {
    let all = places(reader);
    let mut lost: BTreeMap<u32, (u64, &str)> = BTreeMap::new();
    for (place, key) in all {
        if is_lost(reader, place) {
            lost.entry(place.shard).or_insert((0, key)).0 += 1;
        }
    }
    for (shard, (entries, key)) in lost {
        let found = Damage {
            key: None,
            file: Some(reader.data_file(shard)?.to_string()),
            offset: None,
            what: match entries {
                1 => format!("it is missing, and an entry of {key} lies in it"),
                _ => format!("it is missing; {entries} entries lie in it, such as one of {key}"),
            },
        };
        report.add(ErrorKind::Corrupt, found);
    }
    Ok(())
}

/// All entries with their keys.
fn places(reader: &BundleReader) -> impl Iterator<Item = (&Place, &str)> {
    let chunks = reader.metadata.tensors().flat_map(|t| {
        let key = t.key();
        t.chunks().map(move |(id, _)| (id, key)).collect::<Vec<_>>()
    });
    let chunks = chunks.filter_map(|(id, key)| Some((reader.chunk(id).ok()?, key)));
    let objects = reader.metadata.objects().flat_map(|(id, key)| {
        let parts = reader
            .index
            .objects
            .get(id.0 as usize)
            .into_iter()
            .flat_map(|o| &o.parts);
        parts.map(move |(_, place)| (place, key))
    });
    chunks.chain(objects)
}

/// Reports entries that have bytes of others. No program writes such.
fn overlaps(reader: &BundleReader, report: &mut VerifyReport) {
    let mut all: Vec<(&Place, &str)> = places(reader).filter(|(place, _)| place.size > 0).collect();
    all.sort_by_key(|(place, key)| (place.shard, place.offset, place.size, *key));
    let mut last: Option<(&Place, &str)> = None;
    for (place, key) in all {
        if let Some((before, of)) = last
            && before.shard == place.shard
            && before.range().end > place.offset
        {
            let found = Damage {
                key: Some(key.into()),
                file: reader
                    .data_file(place.shard)
                    .ok()
                    .map(|name| name.to_string()),
                offset: Some(place.offset),
                what: format!("its entry shares bytes with one of {of}"),
            };
            report.add(ErrorKind::Corrupt, found);
        }
        if last.is_none_or(|(before, _)| {
            before.shard != place.shard || before.range().end < place.range().end
        }) {
            last = Some((place, key));
        }
    }
}

/// Returns the number of bytes that were read.
async fn entry(
    reader: &BundleReader,
    key: &str,
    place: &Place,
    full: bool,
    progress: &Progress,
) -> Result<u64> {
    let name = reader.there(place, key)?;
    if !full {
        return Ok(0);
    }
    let mut crc = 0;
    for at in check_steps(&*reader.store, place.range(), STEP) {
        let part = reader.store.read(&name, at.clone()).await?;
        crc = crc32c::crc32c_append(crc, &part);
        progress.add(at.end - at.start);
    }
    match crc == place.crc {
        true => Ok(place.size),
        false => Err(StrategyError::corrupt(
            name,
            Some(place.offset),
            differs(key, crc, place.crc),
        )),
    }
}

/// Returns the number of bytes that were read.
async fn object(
    reader: &BundleReader,
    key: &str,
    id: ObjectId,
    full: bool,
    progress: &Progress,
) -> Result<u64> {
    let parts = reader
        .index
        .objects
        .get(id.0 as usize)
        .into_iter()
        .flat_map(|o| &o.parts);
    for (_, place) in parts {
        reader.there(place, key)?;
    }
    if !full {
        return Ok(0);
    }
    let (_, bytes) = reader.read_object(id, true).await?;
    progress.add(bytes);
    Ok(bytes)
}
