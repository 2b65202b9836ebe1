//! Looks for damage without loading anything.

use super::{
    BundleReader,
    crc::{Crc32c, differs},
};
use crate::{
    index::Place,
    names,
    table::read::{self, Budget},
};
use async_trait::async_trait;
use reshard_model::ErrorKind;
use reshard_plan::Fault;
use reshard_storage::Name;
use reshard_strategy::{
    ChunkCheck, Damage, ItemVerifier, ObjectCheck, Result, StrategyError, Uncovered, VerifyReport,
    VerifyRun, crc_of, item_parts, overlapping,
};
use std::collections::BTreeMap;

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;

pub(super) struct Verifier<'r>(&'r BundleReader);

impl<'r> Verifier<'r> {
    pub(super) fn new(reader: &'r BundleReader, run: &mut VerifyRun<'r>) -> Result<Self> {
        for (key, why) in &reader.index.refused {
            run.refuse(key, &why.clone().in_file(reader.index_name()));
        }
        missing(reader, &mut run.report)?;
        overlaps(reader, &mut run.report);
        Ok(Self(reader))
    }
}

#[async_trait]
impl<'r> ItemVerifier<'r> for Verifier<'r> {
    fn fault(&self, key: &'r str, fault: &Fault, run: &mut VerifyRun<'r>) {
        let found = || {
            Damage::new(fault.text())
                .of_key(key)
                .in_file(self.0.index_name())
        };
        run.add(ErrorKind::Corrupt, key, found);
    }

    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let (reader, place) = (self.0, self.0.chunk(item.id)?);
        if is_lost(reader, place) {
            return Ok(0);
        }
        let name = reader.there(place, item.key)?;
        if !item.read {
            return Ok(0);
        }
        let (store, at, progress) = (&*reader.store, place.range(), run.progress);
        let crc = crc_of::<Crc32c>(store, &name, at, STEP, progress).await?;
        match crc == place.crc {
            true => Ok(place.size),
            false => {
                let what = differs(item.key, crc, place.crc);
                Err(StrategyError::corrupt(name, Some(place.offset), what))
            }
        }
    }

    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let reader = self.0;
        let parts = reader.parts(item.id);
        if parts.iter().any(|(_, place)| is_lost(reader, place)) {
            return Ok(0);
        }
        for (_, place) in parts {
            reader.there(place, item.key)?;
        }
        if !item.read {
            return Ok(0);
        }
        let (_, bytes) = reader.read_object(item.id, true).await?;
        run.progress.add(bytes);
        Ok(bytes)
    }

    async fn rest(&mut self, run: &mut VerifyRun<'r>) -> Result<()> {
        if run.items.is_all() {
            run.between(&self.0.files, item_parts(self.0));
            if let Err(e) = table(self.0, &mut run.report).await {
                run.report.add_error(None, &e);
            }
        }
        Ok(())
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
    let mut lost: BTreeMap<u32, (u64, &str)> = BTreeMap::new();
    for (place, key) in places(reader) {
        if is_lost(reader, place) {
            lost.entry(place.shard).or_insert((0, key)).0 += 1;
        }
    }
    for (shard, (entries, key)) in lost {
        let found = Damage::new(match entries {
            1 => format!("it is missing, and an entry of {key} lies in it"),
            _ => format!("it is missing; {entries} entries lie in it, such as one of {key}"),
        });
        let found = found.in_file(reader.data_file(shard)?);
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
    let objects = reader.metadata.objects();
    let objects =
        objects.flat_map(|(id, key)| (reader.parts(id).iter()).map(move |(_, place)| (place, key)));
    chunks.chain(objects)
}

/// Reports entries that have bytes of others. No program writes such.
fn overlaps(reader: &BundleReader, report: &mut VerifyReport) {
    let mut all: Vec<(&Place, &str)> = places(reader).filter(|(place, _)| place.size > 0).collect();
    all.sort_by_key(|(place, key)| (place.shard, place.offset, place.size, *key));
    for ((_, of), (place, key)) in overlapping(all, |(place, _)| (place.shard, place.range())) {
        let found = Damage::new(format!("its entry shares bytes with one of {of}"));
        let file = names::data(&reader.stem, place.shard, reader.index.shards);
        let found = found.of_key(key).in_file(file).at(place.offset);
        report.add(ErrorKind::Corrupt, found);
    }
}
