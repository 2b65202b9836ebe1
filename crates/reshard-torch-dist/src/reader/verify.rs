//! Looks for damage without loading anything.

use super::{
    head::{SMALL, Wanted},
    names::named,
    opened::TorchDistReader,
};
use crate::{
    limits::unreadable,
    lost::Lost,
    table::{Item, Place},
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{ErrorKind, Payload};
use reshard_plan::{Fault, TensorRef};
use reshard_storage::{Name, Progress, StorageError, StoreExt};
use reshard_strategy::{
    ChunkCheck, Crc32, Damage, ItemVerifier, ObjectCheck, Result, StorageInfo, StorageReader,
    StrategyError, VerifyRun, crc_of, item_files,
    torch::{add_uncovered, check_decodes, check_framing},
};
use reshard_torch_format::{
    TorchSave,
    archive::{Directory, Framing, Inflate, Method, Record, Tail, Unconfirmed, Verify, unpack},
};
use std::{collections::BTreeMap, ops::Range};

pub(super) struct Verifier<'r> {
    r: &'r TorchDistReader,
    /// The files that the metadata name.
    sizes: BTreeMap<Name, u64>,
    /// What is said of files that are not listed.
    absent: BTreeMap<Name, String>,
    /// Whether the tensor of the next chunks may be read.
    is_affordable: bool,
    /// Whether its data are refused for their waste. Then they are not unpacked here either.
    is_wasteful: bool,
    progress: &'r Progress,
}

#[async_trait]
impl<'r> ItemVerifier<'r> for Verifier<'r> {
    /// Whether a tensor may be read.
    async fn tensor(&mut self, tensor: &TensorRef<'r>, run: &mut VerifyRun<'r>) -> bool {
        let (r, key) = (self.r, tensor.key());
        if let Err(e) = r.permits(key) {
            run.add(e.kind(), key, || self.damage(key, &e));
        }
        self.is_affordable = r.affords(key).is_ok();
        self.is_wasteful = r.waste.contains_key(key);
        true
    }

    /// Of a tensor of which ranks say different things it is not known what its chunks must cover.
    fn fault(&self, key: &'r str, fault: &Fault, run: &mut VerifyRun<'r>) {
        if !self.r.table.contradictions.contains_key(key) {
            run.corrupt(key, fault.text());
        }
    }

    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let (r, chunk) = (self.r, item.id);
        let Some(place) = r.table.chunk(chunk) else {
            // PyTorch need not store anything for a chunk without elements.
            let region = r.table.metadata.chunk(chunk).map(|(_, region)| region);
            return match region.is_some_and(|region| region.is_empty()) {
                true => Ok(0),
                false => r.wanted(chunk).map(|_| 0),
            };
        };
        let (of, read) = (Item::Chunk(chunk), item.read && !self.is_wasteful);
        let name = || r.name_of(chunk);
        match self.item((of, item.key), place, name, read, run).await {
            // It is said of the tensor.
            Err(StrategyError::Limit { .. }) if !self.is_affordable => Ok(0),
            found => found,
        }
    }

    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let ObjectCheck { key, id, read, .. } = item;
        self.r.agreed("object", key)?;
        let Some(place) = self.r.table.object(id) else {
            run.corrupt(key, NO_PLACE);
            return Ok(0);
        };
        let name = || "it".into();
        self.item((Item::Object(id), key), place, name, read, run)
            .await
    }

    async fn rest(&mut self, run: &mut VerifyRun<'r>) -> Result<()> {
        let (r, table) = (self.r, &self.r.table);
        // Copies of other ranks are never loaded, but they can be damaged, too. Each is checked by itself.
        for &(item, place) in &table.copies {
            run.report.items += 1;
            let (key, name) = (key(r, item), || format!("a copy of {}", part(r, item)));
            let full = match item {
                Item::Chunk(chunk) => run.items.has_chunk(chunk),
                Item::Object(object) => run.items.has_object(object),
            };
            let read = full && !r.waste.contains_key(key);
            let found = self.item((item, key), place, name, read, run).await;
            run.note(self, key, found);
        }
        // Items that other ranks list without a place.
        for (item, file) in &table.lost {
            run.report.items += 1;
            let (key, part) = (key(r, *item), part(r, *item));
            let what = format!("{part} is listed, but {NO_PLACE}");
            let found = || Damage::new(what).of_key(key).in_file(file);
            run.add(ErrorKind::Corrupt, key, found);
        }
        for (key, what) in &table.unknown {
            run.report.items += 1;
            let found = || Damage::new(format!("{what}, so it can't be read")).of_key(key);
            run.add(ErrorKind::Unsupported, key, found);
        }
        if run.items.is_all() {
            // No program writes bytes between items or behind the last.
            let copies = table.copies.iter().map(|(_, place)| place);
            let places = table.chunks.iter().chain(&table.objects).chain(copies);
            let part = |p: &Place| Some((table.file(*p).ok()?, table.range(*p).ok()?));
            let parts = places.filter_map(part);
            let parts = parts.map(|(file, range)| StorageInfo::new(file, range));
            run.between(&self.sizes, parts);
        }
        Ok(())
    }

    /// The key is not said again.
    fn damage(&self, key: &str, e: &StrategyError) -> Damage {
        let mut found = Damage::of(Some(key), e);
        if let Some(rest) = found.what.strip_prefix(&*named(key)) {
            found.what = rest.into();
        }
        found
    }
}

/// What is said of an item behind its key.
fn part(r: &TorchDistReader, item: Item) -> String {
    let region = match item {
        Item::Object(_) => None,
        Item::Chunk(chunk) => r.table.metadata.chunk(chunk).map(|(_, region)| region),
    };
    region.map_or_else(|| "it".into(), |region| format!("chunk {region}"))
}

fn key(r: &TorchDistReader, item: Item) -> &str {
    r.table.key(item).unwrap_or_default()
}

impl<'r> Verifier<'r> {
    pub(super) async fn new(r: &'r TorchDistReader, progress: &'r Progress) -> Result<Self> {
        // The sizes are listed once, so that a place outside its file is found without opening the file.
        let files = r.store.files_or(|| item_files(r)).await?.into_iter();
        let named = files.filter(|e| r.named.contains(&e.name));
        Ok(Self {
            r,
            sizes: named.map(|e| (e.name, e.bytes)).collect(),
            absent: BTreeMap::new(),
            is_affordable: true,
            is_wasteful: false,
            progress,
        })
    }

    /// Checks an item or a copy of it. `name` is what the error calls it if another item claims its bytes.
    async fn item(
        &mut self,
        (item, key): (Item, &'r str),
        place: Place,
        name: impl FnOnce() -> String + Send,
        read: bool,
        run: &mut VerifyRun<'r>,
    ) -> Result<u64> {
        let (file, range) = self.r.undisputed(place, name)?;
        self.in_file(&file, &range).await?;
        if !read {
            return Ok(0);
        }
        let (bytes, name) = (range.end - range.start, file.clone());
        let mut left = match item {
            Item::Object(_) => self.object_at(key, place, &file, range).await?,
            Item::Chunk(chunk) => {
                let wanted = Wanted {
                    chunk,
                    place,
                    file,
                    range,
                };
                let archive = Archive {
                    r: self.r,
                    w: &wanted,
                    progress: self.progress,
                    near: Bytes::new(),
                    at: 0,
                };
                archive.check().await?
            }
        };
        // No checksum covers what stream transforms made of the stored bytes.
        if self.r.table.is_transformed(place) {
            (left.packed, left.framing) = (bytes, 0);
        }
        run.report.without_checksum += u64::from(left.unsummed > 0);
        add_uncovered(&mut run.report.not_covered, name.as_str(), left);
        Ok(bytes)
    }

    /// What is said of a file that is not listed. It is looked at once: many items may lie in it.
    async fn absent(&mut self, file: &Name) -> Result<String, StorageError> {
        if let Some(what) = self.absent.get(file) {
            return Ok(what.clone());
        }
        // Hostile metadata name as many files as they like.
        if self.absent.len() >= ABSENT {
            return Ok(MISSING.into());
        }
        // Something else may lie there.
        let what = match self.r.store.read(file, 0..1).await {
            Ok(_) | Err(StorageError::NotFound { .. } | StorageError::Short { .. }) => {
                MISSING.into()
            }
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                format!("its file can't be read: {}", Lost(e))
            }
            Err(e) => return Err(e),
        };
        self.absent.insert(file.clone(), what.clone());
        Ok(what)
    }

    /// Checks that the file exists and is long enough.
    async fn in_file(&mut self, file: &Name, range: &Range<u64>) -> Result<()> {
        let what = match self.sizes.get(file) {
            None => self.absent(file).await?,
            // The same for all items of the file, so that a cut file is told once.
            Some(&size) if size < range.end => {
                format!("it reaches beyond the end of the file, which has {size} bytes")
            }
            Some(_) => return Ok(()),
        };
        Err(StrategyError::corrupt(file, Some(range.start), what))
    }

    /// Checks an object, or the copy of it that another rank of a rank-local checkpoint has.
    async fn object_at(
        &self,
        key: &str,
        place: Place,
        file: &Name,
        range: Range<u64>,
    ) -> Result<Unconfirmed> {
        let (r, len, at) = (self.r, range.end - range.start, range.start);
        r.limits.whole(format_args!("object {key}"), len)?;
        let stored = r.store.read(file, range).await;
        let bytes = r.object_archive(place, key, stored.map_err(|e| r.lost(e, None))?)?;
        r.check_archive(place, key, &bytes)?;
        let left = check_framing(&bytes, &r.limits)
            .map_err(|e| unreadable(e, &format!("object {key}"), file.as_str(), at))?;
        let codec = TorchSave::NAME;
        check_decodes(&*r.codec(), key, Payload::Encoded { codec, bytes })?;
        self.progress.add(len);
        Ok(left)
    }
}

/// The check of a chunk's archive.
struct Archive<'a> {
    r: &'a TorchDistReader,
    w: &'a Wanted,
    progress: &'a Progress,
    /// Bytes that were read last, and where in the archive they begin.
    near: Bytes,
    at: u64,
}

impl Archive<'_> {
    /// Checks that every record of a chunk's archive has the checksum in the archive, that its tensor is that of the metadata, and that what no checksum covers is as torch
    /// writes it.
    async fn check(mut self) -> Result<Unconfirmed> {
        let (r, w) = (self.r, self.w);
        let len = w.len();
        if len <= SMALL.max(IN_MEMORY) || r.table.is_transformed(w.place) {
            r.limits.whole(r.name_of(w.chunk), len)?;
            return r.check_in_memory(w, self.read(0..len).await?);
        }
        let tail = self.read(Tail::first_range(len)).await?;
        let (directory, more) = r.directory(w, &tail).await?;
        self.progress.add(more);
        r.unpacks_to_its_shape(w, &directory)?;
        // Even if one thing is not understood, another may be damaged.
        let is_worse = |e: &StrategyError| e.kind() != ErrorKind::Unsupported;
        let mut found = self.described(&directory).await;
        let mut frame = self.frame(&directory, &tail).await?;
        for record in directory.records() {
            if found.as_ref().is_err_and(is_worse) {
                break;
            }
            let checked = self.record(record, &mut frame).await;
            if found.is_ok() || checked.as_ref().is_err_and(is_worse) {
                found = checked;
            }
        }
        found?;
        frame.finish().map_err(|e| r.corrupt(w, e))
    }

    /// Begins to look at what no checksum covers. The `tail` mostly has the whole directory.
    async fn frame(&self, directory: &Directory, tail: &[u8]) -> Result<Framing> {
        let w = self.w;
        let (len, at) = (w.len(), directory.offset());
        let known = at.checked_sub(len - tail.len() as u64);
        Ok(match known.and_then(|at| tail.get(at as usize..)) {
            Some(tail) => Framing::new(directory, len, tail),
            None => Framing::new(directory, len, &self.r.at(w, at..len).await?),
        })
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let got = self.r.at(self.w, range).await?;
        self.progress.add(got.len() as u64);
        Ok(got)
    }

    /// Reads a few bytes of a chunk's archive. Those behind them are read with them, because the next record mostly lies there, and an
    /// archive may have very many small records.
    async fn read_near(&mut self, range: Range<u64>) -> Result<Bytes> {
        let (at, end) = (self.at, self.at + self.near.len() as u64);
        if range.start < at || range.end > end {
            let near = range.start.saturating_add(NEAR);
            let end = range.end.max(self.w.len().min(near));
            self.near = self.r.at(self.w, range.start..end).await?;
            self.at = range.start;
        }
        self.progress.add(range.end - range.start);
        let in_near = |byte: u64| (byte - self.at) as usize;
        Ok(self.near.slice(in_near(range.start)..in_near(range.end)))
    }

    async fn described(&mut self, directory: &Directory) -> Result<()> {
        let (r, w) = (self.r, self.w);
        let corrupt = |e| r.corrupt(w, e);
        let record = directory.get("data.pkl").map_err(corrupt)?;
        let range = self.data_range(record).await?;
        let stored = self.read(range).await?;
        let pickle = unpack(record, stored, 1 << 20, Verify::Crc).map_err(corrupt)?;
        let tensor = r.description(w, &pickle)?;
        r.check_described(w, &tensor)?;
        let storage = directory.get(&tensor.storage.record()).map_err(corrupt)?;
        tensor.storage.check(storage.size).map_err(corrupt)
    }

    async fn data_range(&mut self, record: &Record) -> Result<Range<u64>> {
        let (r, w) = (self.r, self.w);
        let corrupt = |e| r.corrupt(w, e);
        let header = self.read_near(record.header_range()).await?;
        let range = record.data_range(&header).map_err(corrupt)?;
        let behind = self.read_near(record.behind(&range)).await?;
        record.confirm(&range, &behind).map_err(corrupt)?;
        Ok(range)
    }

    /// Checks one record in pieces, so memory stays bounded whatever the size of the record.
    async fn record(&mut self, record: &Record, frame: &mut Framing) -> Result<()> {
        let (r, w) = (self.r, self.w);
        let range = self.data_range(record).await?;
        let header = self.read_near(record.header..range.start).await?;
        frame.header(record, &header);
        if record.method != Method::Stored {
            let what = format!("{} of {}", record.name, r.name_of(w.chunk));
            r.limits.whole(what, record.stored)?;
            let stored = self.read(range).await?;
            let unpacked = Inflate::new(record, stored).and_then(Inflate::check);
            return unpacked.map_err(|e| r.corrupt(w, e));
        }
        let (store, at) = (&*r.store, w.range.start);
        let at = at + range.start..at + range.end;
        let found = crc_of::<Crc32>(store, &w.file, at, IN_MEMORY, self.progress).await;
        let found = found.map_err(|e| r.lost(e, Some(r.name_of(w.chunk))))?;
        if let Some(stored) = record.checksum().filter(|stored| found != *stored) {
            let what = format!(
                "the CRC-32 of {} is {found:08x}, but the archive says {stored:08x}",
                record.name
            );
            return Err(r.bad(w, &what));
        }
        Ok(())
    }
}

const MISSING: &str = "its file is missing";

const NO_PLACE: &str =
    "the metadata does not say where it lies: its entry in storage_data is missing";

/// Of so many files that are not listed it is looked at what lies there.
const ABSENT: usize = 1_000;

/// So many bytes are read at least where little is wanted.
const NEAR: u64 = 16 << 10;

/// The most bytes that are read at a time, where requests are not dear.
const IN_MEMORY: u64 = 4 << 20;
