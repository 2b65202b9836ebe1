//! Looks for damage without loading anything.

use super::opened::TorchSaveReader;
use crate::{
    error::{lost, unreadable},
    file::{Container, TorchFile, Zip, length},
    names::INDEX,
    ranks::compare,
};
use async_trait::async_trait;
use reshard_model::ErrorKind;
use reshard_plan::Fault;
use reshard_storage::{Progress, StorageError};
use reshard_strategy::{
    CheckedItems, ChunkCheck, Crc32, Damage, ItemVerifier, ObjectCheck, ReadCx, ReadObject, Result,
    StorageReader, StrategyError, VerifyReport, VerifyRun, crc_of, torch::add_uncovered,
};
use reshard_torch_format::{
    LegacyHead,
    archive::{Framing, Inflate, Method, Record, Unconfirmed},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;
/// By so many bytes the beginning of an old file is known.
const BEGINNING: u64 = 32;

/// Tensors may share storages, and archives have other records. So files are checked as a whole, before their tensors are counted.
pub(super) struct Verifier<'r>(&'r TorchSaveReader);

impl<'r> Verifier<'r> {
    pub(super) async fn new(reader: &'r TorchSaveReader, run: &mut VerifyRun<'r>) -> Self {
        for (key, why) in &reader.table.refused {
            run.refuse(key, why);
        }
        for (key, file) in &reader.table.unnamed {
            let what = format!("the file holds it, but {INDEX} does not name it");
            let found = Damage::new(what).of_key(&**key).in_file(file);
            run.report.add(ErrorKind::Corrupt, found);
        }
        for key in reader.table.repeats.keys() {
            if let Err(e) = reader.permits(key) {
                run.error(key, &e);
            }
        }
        for why in &reader.table.broken {
            let found = Damage {
                file: why.file.clone(),
                offset: why.offset,
                ..Damage::new(&*why.what)
            };
            run.report.add(why.kind, found);
        }
        let missing = reader.table.missing.iter().map(Damage::new);
        run.report.incomplete.extend(missing);
        let storages = storages(reader, run.items);
        for (number, file) in (0u32..).zip(&reader.files) {
            let Some(file) = file else { continue };
            let is_read = |storage: &str| match &storages {
                None => run.items.is_all(),
                Some(these) => these.contains(&(number, storage)),
            };
            let (report, progress) = (&mut run.report, run.progress);
            let check = FileCheck {
                reader,
                number,
                file,
                progress,
            };
            match &file.container {
                Container::Zip(zip) => {
                    check.archive(zip, &is_read, report).await;
                    if run.items.is_all() {
                        check.frame(zip, report).await;
                    }
                }
                Container::Legacy(head) => check.legacy(head, &is_read, report).await,
                Container::Safetensors(tensors) => {
                    check.safetensors(tensors, &is_read, report).await
                }
                Container::Pickle => {}
            }
        }
        compare_replicas(reader, run).await;
        Self(reader)
    }
}

#[async_trait]
impl<'r> ItemVerifier<'r> for Verifier<'r> {
    /// A hole that missing files explain is reported once, with these.
    fn fault(&self, key: &'r str, fault: &Fault, run: &mut VerifyRun<'r>) {
        if !matches!(fault, Fault::Hole { .. }) || !self.0.table.absent.contains_key(key) {
            run.corrupt(key, fault.text());
        }
    }

    async fn chunk(&mut self, _: ChunkCheck<'r>, _: &mut VerifyRun<'r>) -> Result<u64> {
        Ok(0)
    }

    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        if item.read {
            let (object, cx) = (item.id, ReadCx::new(false, run.progress));
            self.0.read_objects(&[ReadObject { object }], &cx).await?;
        }
        Ok(0)
    }
}

/// Compares the pieces that several ranks hold. Without their checksums, they are read only if their tensor is.
async fn compare_replicas<'r>(reader: &'r TorchSaveReader, run: &mut VerifyRun<'r>) {
    for replica in &reader.table.replicas {
        let Some((tensor, region)) = reader.metadata.chunk(replica.of) else {
            continue;
        };
        let key = tensor.key();
        let Some((n, read)) = reader.table.tensors.get(replica.of.0 as usize) else {
            continue;
        };
        let (one, other) = ((*n, read), (replica.file, &replica.tensor));
        let same = match compare::by_checksum(reader, one, other) {
            Some(same) => Ok(same),
            None if run.items.has_chunk(replica.of) => compare::same(reader, key, one, other).await,
            None => continue,
        };
        let name = |n: u32| reader.file(n).map_or("", |file| file.name.as_str());
        match same {
            Ok(true) => {}
            Ok(false) => {
                let what = format!(
                    "its replicas differ: {region} has other elements here than in {}",
                    name(*n)
                );
                let found = Damage::new(what).of_key(key).in_file(name(replica.file));
                run.report.add(ErrorKind::Corrupt, found);
            }
            Err(e) => run.error(key, &e),
        }
    }
}

/// The storages of chosen tensors, with the numbers of their files; `None` if nothing is chosen by itself.
fn storages<'r>(
    reader: &'r TorchSaveReader,
    items: &CheckedItems,
) -> Option<BTreeSet<(u32, &'r str)>> {
    let CheckedItems::Some { chunks, .. } = items else {
        return None;
    };
    let tensors = chunks
        .iter()
        .filter_map(|c| reader.table.tensors.get(c.0 as usize));
    Some(tensors.map(|(file, t)| (*file, &*t.storage.key)).collect())
}

/// The storage that a record is.
fn storage<'r>(zip: &Zip, record: &'r Record) -> Option<&'r str> {
    let name = record.name.strip_prefix(zip.directory.prefix())?;
    name.strip_prefix("/data/")
}

/// The key of a tensor in a record.
fn holder(reader: &TorchSaveReader, zip: &Zip, record: &Record) -> Option<String> {
    let storage = storage(zip, record)?;
    let mut all = (0u32..).zip(&reader.table.tensors);
    let (chunk, _) = all.find(|(_, (_, tensor))| *tensor.storage.key == *storage)?;
    let (tensor, _) = reader.metadata.chunk(reshard_plan::ChunkId(chunk))?;
    Some(tensor.key().into())
}

/// Whether a storage is read.
type IsRead<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// The check of a file.
struct FileCheck<'a> {
    reader: &'a TorchSaveReader,
    /// The number of the file.
    number: u32,
    file: &'a TorchFile,
    progress: &'a Progress,
}

impl FileCheck<'_> {
    fn lost(&self, e: StorageError) -> StrategyError {
        lost(e, self.file.name.as_str())
    }

    /// All records are where the directory says, and have their checksums.
    async fn archive(&self, zip: &Zip, is_read: IsRead<'_>, report: &mut VerifyReport) {
        let (reader, file) = (self.reader, self.file);
        // All headers in one call. If one is damaged, each record is asked for by itself.
        let all: Vec<&Record> = zip.directory.records().collect();
        drop(zip.places(&reader.store, &file.name, &all).await);
        if all.iter().any(|record| record.checksum().is_none()) {
            let tensors = reader.table.tensors.iter();
            let own = tensors.filter(|(n, _)| *n == self.number);
            report.without_checksum += own.count() as u64;
        }
        for record in all {
            let full = is_read(storage(zip, record).unwrap_or_default());
            match self.record(zip, record, full).await {
                Ok(bytes) => report.bytes += bytes,
                Err(e) => report.add_error(holder(reader, zip, record).as_deref(), &e),
            }
        }
    }

    async fn record(&self, zip: &Zip, record: &Record, full: bool) -> Result<u64> {
        let (reader, name, progress) = (self.reader, &self.file.name, self.progress);
        let at = zip.places(&reader.store, name, &[record]).await?;
        let at = at.into_iter().next().unwrap_or_default();
        if !full {
            return Ok(0);
        }
        let bytes = length(&at);
        let damaged = |e| unreadable(e, &format!("record {:?}", record.name), name.as_str());
        if record.method != Method::Stored {
            let what = format!("record {:?} of {name}", record.name);
            reader.limits.whole(&what, bytes)?;
            reader.limits.whole(&what, record.size)?;
            let stored = reader.store.read(name, at).await;
            let stored = stored.map_err(|e| self.lost(e))?;
            let content = Inflate::new(record, stored).and_then(Inflate::check);
            content.map_err(damaged)?;
            progress.add(bytes);
            return Ok(bytes);
        }
        let (store, range) = (&*reader.store, at.clone());
        let found = crc_of::<Crc32>(store, name, range, STEP, progress).await;
        let found = found.map_err(|e| self.lost(e))?;
        let stored = record.checksum().filter(|_| record.size > 0);
        if let Some(stored) = stored.filter(|stored| found != *stored) {
            let what = format!(
                "record {:?} is damaged: its CRC-32 is {found:08x}, but the archive says {stored:08x}",
                record.name
            );
            return Err(StrategyError::corrupt(name, Some(at.start), what));
        }
        Ok(bytes)
    }

    /// What no checksum of an archive covers is as torch writes it, or is counted.
    async fn frame(&self, zip: &Zip, report: &mut VerifyReport) {
        match self.unconfirmed(zip).await {
            Ok(left) => add_uncovered(&mut report.not_covered, self.file.name.as_str(), left),
            // A damaged header was told with its record.
            Err(_) if !report.damage.is_empty() => {}
            Err(e) => report.add_error(None, &e),
        }
    }

    async fn unconfirmed(&self, zip: &Zip) -> Result<Unconfirmed> {
        let (file, store) = (self.file, &self.reader.store);
        let name = &file.name;
        let records: Vec<&Record> = zip.directory.records().collect();
        let places = zip.places(store, name, &records).await?;
        let headers = records.iter().zip(&places);
        let headers = headers.map(|(record, data)| record.header..data.start);
        let ranges = headers.chain(std::iter::once(zip.directory.offset()..file.bytes));
        let read = store.read_ranges(ranges.map(|at| (name.clone(), at)).collect());
        let (mut read, _) = read.await.map_err(|e| self.lost(e))?;
        let tail = read.pop().unwrap_or_default();
        let mut frame = Framing::new(&zip.directory, file.bytes, &tail);
        for (record, header) in records.iter().zip(&read) {
            frame.header(record, header);
        }
        let left = frame.finish();
        left.map_err(|e| unreadable(e, "the archive", name.as_str()))
    }

    /// Files of safetensors have no checksums. What is read shows at least that the bytes are there.
    async fn safetensors(
        &self,
        tensors: &BTreeMap<Box<str>, Range<u64>>,
        is_read: IsRead<'_>,
        report: &mut VerifyReport,
    ) {
        let (store, name) = (&*self.reader.store, &self.file.name);
        for (key, at) in tensors {
            if !is_read(key) {
                continue;
            }
            match crc_of::<Crc32>(store, name, at.clone(), STEP, self.progress).await {
                Ok(_) => {
                    report.bytes += length(at);
                    report.without_checksum += 1;
                }
                Err(e) => report.add_error(Some(key), &self.lost(e)),
            }
        }
    }

    /// Old files have no checksums, but each storage says how many elements it has.
    async fn legacy(&self, head: &LegacyHead, is_read: IsRead<'_>, report: &mut VerifyReport) {
        let (reader, file) = (self.reader, self.file);
        let all = &head.storages;
        let ranges = all
            .values()
            .map(|s| (file.name.clone(), s.count..s.count.saturating_add(8)));
        let counts = reader.store.read_ranges(ranges.collect()).await;
        let counts = match counts {
            Ok((counts, _)) => counts,
            Err(e) => return report.add_error(None, &self.lost(e)),
        };
        for ((key, storage), count) in all.iter().zip(counts) {
            let count = count.first_chunk().map(|c| u64::from_le_bytes(*c));
            if count != Some(storage.elements) {
                let what = format!(
                    "storage {key} says that it has {} elements, but the pickle says {}",
                    count.unwrap_or_default(),
                    storage.elements
                );
                let e = StrategyError::corrupt(&file.name, Some(storage.count), what);
                report.add_error(None, &e);
            }
            if is_read(key) {
                report.bytes += length(&storage.data);
            }
        }
        if head.end < file.bytes {
            report.add_error(None, &self.behind(head.end).await);
        }
    }

    /// What is wrong with the bytes behind the last storage of an old file.
    async fn behind(&self, end: u64) -> StrategyError {
        let (reader, file) = (self.reader, self.file);
        let what = format!("{} bytes follow its last storage", file.bytes - end);
        let next = end..file.bytes.min(end.saturating_add(BEGINNING));
        match reader.store.read(&file.name, next).await {
            // A program called `torch.save` again with the same open file.
            Ok(next) if LegacyHead::is_legacy(&next) => StrategyError::Undecoded {
                what: format!(
                    "reading the next object of `torch.save` in {} (at byte {end}; {what})",
                    file.name
                ),
            },
            Ok(_) => StrategyError::corrupt(&file.name, Some(end), what),
            Err(e) => self.lost(e),
        }
    }
}
