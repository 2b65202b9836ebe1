//! Looks for damage without loading anything.

use super::{
    between,
    head::{SMALL, Wanted},
    names::named,
    opened::TorchDistReader,
};
use crate::{
    limits::unreadable,
    lost::Lost,
    table::{Item, Place},
};
use reshard_model::{BoxFault, ErrorKind, Payload, Region, first_fault};
use reshard_plan::{ObjectId, TensorRef};
use reshard_storage::{Name, Progress, StorageError, StoreExt};
use reshard_strategy::{
    CheckedItems, Damage, ReadCx, ReadObject, Result, StorageReader, StrategyError, VerifyReport,
    check_steps, decode_object, item_files,
    torch::{add_uncovered, check_framing, is_beyond_us},
};
use reshard_torch_format::{
    TorchSave,
    archive::{Directory, Framing, Inflate, Method, Record, Tail, Unconfirmed, check_crc, unpack},
};
use std::collections::BTreeMap;

pub(super) async fn verify(
    r: &TorchDistReader,
    items: &CheckedItems,
    progress: &Progress,
) -> Result<VerifyReport> {
    // The sizes are listed once, so that a place outside its file is found without opening the file.
    let files = r.store.files_or(|| item_files(r)).await?.into_iter();
    let sizes: BTreeMap<Name, u64> = files.map(|e| (e.name, e.bytes)).collect();
    let mut v = Verifier {
        r,
        sizes,
        absent: BTreeMap::new(),
        report: VerifyReport::default(),
        counted: None,
        progress,
    };

    for tensor in r.table.metadata.tensors() {
        v.tensor(&tensor, items).await;
    }

    for (id, key) in r.table.metadata.objects() {
        v.report.items += 1;
        v.object(id, key, items.has_object(id)).await;
    }

    // Copies of other ranks are never loaded, but they can be damaged, too. Each is checked by itself.
    for &(item, place) in &r.table.copies {
        v.report.items += 1;
        let full = match item {
            Item::Chunk(chunk) => items.has_chunk(chunk),
            Item::Object(object) => items.has_object(object),
        };
        v.copy(item, place, full).await;
    }
    for (item, file) in &r.table.lost {
        v.report.items += 1;
        v.lost(*item, file);
    }

    for (key, what) in &r.table.unknown {
        v.report.items += 1;
        if !v.is_counted(ErrorKind::Unsupported, key) {
            let what = format!("{what}, so it can't be read");
            let found = Damage {
                key: Some(key.clone()),
                file: None,
                offset: None,
                what,
            };
            v.report.add(ErrorKind::Unsupported, found);
        }
    }
    if items.is_all() {
        v.report.not_covered.merge(between::items(r, &v.sizes));
    }
    Ok(v.report)
}

/// What was read of an item, and what of it can't be confirmed.
struct Checked {
    bytes: u64,
    left: Unconfirmed,
}

impl Checked {
    /// Of an item whose stored bytes may have gone through stream transforms. No checksum covers what these made of them.
    fn of(r: &TorchDistReader, place: Place, bytes: u64, mut left: Unconfirmed) -> Self {
        if r.table.is_transformed(place) {
            left.packed = bytes;
            left.framing = 0;
        }
        Self { bytes, left }
    }
}

struct Verifier<'r> {
    r: &'r TorchDistReader,
    sizes: BTreeMap<Name, u64>,
    /// What is said of files that are not listed.
    absent: BTreeMap<Name, String>,
    report: VerifyReport,
    /// The last finding that is not listed.
    counted: Option<(ErrorKind, &'r str)>,
    progress: &'r Progress,
}

impl<'r> Verifier<'r> {
    fn add(&mut self, key: &'r str, file: Option<&str>, offset: Option<u64>, what: String) {
        if self.is_counted(ErrorKind::Corrupt, key) {
            return;
        }
        let found = Damage {
            key: Some(key.into()),
            file: file.map(Into::into),
            offset,
            what,
        };
        self.report.add(ErrorKind::Corrupt, found);
    }

    fn damaged(&mut self, key: &'r str, e: &StrategyError) {
        if self.is_counted(e.kind(), key) {
            return;
        }
        let mut found = Damage::of(Some(key), e);
        if let Some(rest) = found.what.strip_prefix(&*named(key)) {
            found.what = rest.into();
        }
        self.report.add(e.kind(), found);
    }

    /// Counts a finding if the list of its kind is full.
    fn is_counted(&mut self, kind: ErrorKind, key: &'r str) -> bool {
        if !self.report.is_full(kind) {
            return false;
        }
        // There may be a million findings about chunks of one tensor. Its key, which may be long, is looked at once.
        let again = self
            .counted
            .is_some_and(|(k, last)| k == kind && std::ptr::eq(last, key));
        match again {
            true => self.report.rest(kind).findings += 1,
            false => self.report.rest(kind).count(Some(key)),
        }
        self.counted = Some((kind, key));
        true
    }

    fn note(&mut self, key: &'r str, file: &Name, checked: Result<Checked>) {
        match checked {
            Ok(Checked { bytes, left }) => {
                self.report.bytes += bytes;
                self.report.without_checksum += u64::from(left.unsummed > 0);
                add_uncovered(&mut self.report.not_covered, file.as_str(), left);
            }
            Err(e) => self.damaged(key, &e),
        }
    }

    /// The parts of a tensor: do they cover it, may it be read, and does each lie in its file?
    async fn tensor(&mut self, tensor: &TensorRef<'r>, items: &CheckedItems) {
        let r = self.r;
        let key = tensor.key();
        // Of a tensor of which ranks say different things it is not known what its chunks must cover.
        if !r.table.contradictions.contains_key(key) {
            self.cover(tensor);
        }
        if let Err(e) = r.permits(key) {
            self.damaged(key, &e);
        }
        let is_affordable = r.affords(key).is_ok();
        // Data that are refused for their waste are not unpacked here either.
        let is_wasteful = r.waste.contains_key(key);
        for (chunk, region) in tensor.chunks() {
            self.report.items += 1;

            // PyTorch need not store anything for a chunk without elements.
            if region.is_empty() && r.table.chunk(chunk).is_none() {
                continue;
            }
            match r.wanted(chunk) {
                Err(e) => self.damaged(key, &e),
                Ok(w) => {
                    if self.in_file(key, &w.file, &w.range).await
                        && items.has_chunk(chunk)
                        && !is_wasteful
                    {
                        let checked = self.chunk(&w).await;
                        let is_told = |e: &StrategyError| matches!(e, StrategyError::Limit { .. });
                        if is_affordable || !checked.as_ref().is_err_and(is_told) {
                            self.note(key, &w.file, checked);
                        }
                    }
                }
            }
        }
    }

    /// Checks that the chunks of a tensor lie in it, do not overlap, and leave no hole. Reports the first fault.
    fn cover(&mut self, tensor: &TensorRef<'r>) {
        let shape = tensor.shape();
        let (key, whole) = (tensor.key(), Region::whole(&shape));

        // Empty chunks cover nothing, and may lie anywhere.
        let chunks: Vec<Region> = tensor
            .chunks()
            .map(|(_, r)| r)
            .filter(|r| !r.is_empty())
            .collect();
        for c in chunks.iter().filter(|c| !c.fits(&shape)) {
            self.add(
                key,
                None,
                None,
                format!("chunk {c} does not lie in the tensor's shape {shape}"),
            );
        }

        if let Some(why) = tensor.flattened_fault() {
            self.add(key, None, None, why);
        }

        // A shape too large to count is a fault by itself, however its chunks lie.
        if whole.volume().is_none() {
            return self.add(
                key,
                None,
                None,
                format!("a tensor of shape {shape} can't be"),
            );
        }

        let range = |i: usize, a: usize| chunks[i].offsets[a]..chunks[i].end(a);
        match first_fault(&whole, chunks.len(), range) {
            None => {}
            Some(BoxFault::Overlap(a, b)) => {
                self.add(
                    key,
                    None,
                    None,
                    format!("chunks {} and {} overlap", chunks[a], chunks[b]),
                );
            }
            Some(BoxFault::Hole(hole)) => {
                self.add(
                    key,
                    None,
                    None,
                    format!("no chunk covers {hole} of the tensor's shape {shape}"),
                );
            }
        }
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
    async fn in_file(&mut self, key: &'r str, file: &Name, range: &std::ops::Range<u64>) -> bool {
        let what = match self.sizes.get(file) {
            None => match self.absent(file).await {
                Ok(what) => what,
                Err(e) => {
                    self.damaged(key, &e.into());
                    return false;
                }
            },
            Some(&size) if size < range.end => {
                // The same for all items of the file, so that a cut file is told once.
                format!("it reaches beyond the end of the file, which has {size} bytes")
            }
            Some(_) => return true,
        };
        self.add(key, Some(file.as_str()), Some(range.start), what);
        false
    }

    /// Checks that every record of a chunk's archive has the checksum in the archive, that its tensor is that of the metadata, and that what no checksum covers is as torch
    /// writes it.
    async fn chunk(&self, w: &Wanted) -> Result<Checked> {
        let len = w.range.end - w.range.start;
        if len <= SMALL.max(IN_MEMORY) || self.r.table.is_transformed(w.place) {
            self.r.limits.whole(self.r.name_of(w.chunk), len)?;
            let stored = self.read(w, 0..len).await?;
            let left = self.r.check_in_memory(w, stored)?;
            return Ok(Checked::of(self.r, w.place, len, left));
        }
        let tail = self.read(w, Tail::first_range(len)).await?;
        let (directory, (more, _)) = self.r.directory(w, &tail).await?;
        self.progress.add(more);
        self.r.unpacks_to_its_shape(w, &directory)?;
        // Even if one thing is not understood, another may be damaged.
        let mut near = Near::default();
        let mut found = self.described(w, &directory, &mut near).await;
        let mut frame = self.frame(w, &directory, &tail).await?;
        for record in directory.records() {
            if found
                .as_ref()
                .is_err_and(|e| e.kind() != ErrorKind::Unsupported)
            {
                break;
            }
            let checked = self.record(w, record, &mut near, &mut frame).await;
            if found.is_ok()
                || checked
                    .as_ref()
                    .is_err_and(|e| e.kind() != ErrorKind::Unsupported)
            {
                found = checked;
            }
        }
        found?;
        let left = frame.finish().map_err(|e| self.r.corrupt(w, e))?;
        Ok(Checked { bytes: len, left })
    }

    /// Begins to look at what no checksum covers. The `tail` mostly has the whole directory.
    async fn frame(&self, w: &Wanted, directory: &Directory, tail: &[u8]) -> Result<Framing> {
        let (len, at) = (w.range.end - w.range.start, directory.offset());
        let known = at.checked_sub(len - tail.len() as u64);
        Ok(match known.and_then(|at| tail.get(at as usize..)) {
            Some(tail) => Framing::new(directory, len, tail),
            None => Framing::new(directory, len, &self.fetch(w, at..len).await?),
        })
    }

    /// Reads a range of a chunk's archive. The caller tells the progress.
    async fn fetch(&self, w: &Wanted, range: std::ops::Range<u64>) -> Result<bytes::Bytes> {
        let at = w.range.start + range.start..w.range.start + range.end;
        let got = self.r.store.read(&w.file, at).await;
        got.map_err(|e| self.r.lost(e, Some(self.r.name_of(w.chunk))))
    }

    async fn read(&self, w: &Wanted, range: std::ops::Range<u64>) -> Result<bytes::Bytes> {
        let got = self.fetch(w, range).await?;
        self.progress.add(got.len() as u64);
        Ok(got)
    }

    /// Reads a few bytes of a chunk's archive. Those behind them are read with them, because the next record mostly lies there, and an
    /// archive may have very many small records.
    async fn read_near(
        &self,
        w: &Wanted,
        range: std::ops::Range<u64>,
        near: &mut Near,
    ) -> Result<bytes::Bytes> {
        let Near { at, bytes } = near;
        let within = range.start >= *at && range.end - *at <= bytes.len() as u64;
        if !within {
            let len = w.range.end - w.range.start;
            let end = range.end.max(len.min(range.start.saturating_add(NEAR)));
            *bytes = self.fetch(w, range.start..end).await?;
            *at = range.start;
        }
        self.progress.add(range.end - range.start);
        Ok(bytes.slice((range.start - *at) as usize..(range.end - *at) as usize))
    }

    async fn described(&self, w: &Wanted, directory: &Directory, near: &mut Near) -> Result<()> {
        let corrupt = |e| self.r.corrupt(w, e);
        let record = directory.get("data.pkl").map_err(corrupt)?;
        let range = self.data_range(w, record, near).await?;
        let stored = self.read(w, range).await?;
        let pickle = unpack(record, stored, 1 << 20).map_err(corrupt)?;
        check_crc(record, &pickle).map_err(corrupt)?;
        let tensor = self.r.description(w, &pickle)?;
        self.r.check_described(w, &tensor)?;
        let storage = directory.get(&tensor.storage.record()).map_err(corrupt)?;
        tensor.check_storage(storage.size).map_err(corrupt)
    }

    async fn data_range(
        &self,
        w: &Wanted,
        record: &Record,
        near: &mut Near,
    ) -> Result<std::ops::Range<u64>> {
        let corrupt = |e| self.r.corrupt(w, e);
        let header = self.read_near(w, record.header_range(), near).await?;
        let range = record.data_range(&header).map_err(corrupt)?;
        record
            .confirm(
                &range,
                &self.read_near(w, record.behind(&range), near).await?,
            )
            .map_err(corrupt)?;
        Ok(range)
    }

    /// Checks one record in pieces, so memory stays bounded whatever the size of the record.
    async fn record(
        &self,
        w: &Wanted,
        record: &Record,
        near: &mut Near,
        frame: &mut Framing,
    ) -> Result<()> {
        let corrupt = |e| self.r.corrupt(w, e);
        let range = self.data_range(w, record, near).await?;
        let header = record.header..range.start;
        frame.header(record, &self.read_near(w, header, near).await?);
        if record.method != Method::Stored {
            self.r.limits.whole(
                format_args!("{} of {}", record.name, self.r.name_of(w.chunk)),
                record.stored,
            )?;
            let stored = self.read(w, range).await?;
            return Inflate::new(record, stored)
                .and_then(Inflate::check)
                .map_err(corrupt);
        }
        let mut hasher = crc32fast::Hasher::new();
        for at in check_steps(&*self.r.store, range, IN_MEMORY) {
            hasher.update(&self.read(w, at).await?);
        }
        let found = hasher.finalize();
        if let Some(stored) = record.checksum().filter(|stored| found != *stored) {
            let what = format!(
                "the CRC-32 of {} is {found:08x}, but the archive says {stored:08x}",
                record.name
            );
            return Err(self.r.bad(w, &what));
        }
        Ok(())
    }

    /// Checks the copy of an item that another rank of a rank-local checkpoint has.
    async fn copy(&mut self, item: Item, place: Place, full: bool) {
        let (r, key) = (self.r, self.key(item));
        let name = format!("a copy of {}", self.part(item));
        let (file, range) = match r.undisputed(place, || name) {
            Ok(at) => at,
            Err(e) => return self.damaged(key, &e),
        };
        if !self.in_file(key, &file, &range).await || !full || self.r.waste.contains_key(key) {
            return;
        }
        let checked = match item {
            Item::Chunk(chunk) => {
                let file = file.clone();
                self.chunk(&Wanted {
                    chunk,
                    place,
                    file,
                    range,
                })
                .await
            }
            Item::Object(_) => self.object_copy(key, place, &file, range).await,
        };
        self.note(key, &file, checked);
    }

    /// Tells of an item that another rank lists without a place.
    fn lost(&mut self, item: Item, file: &str) {
        let what = format!(
            "{} is listed, but the metadata does not say where it lies: its entry in storage_data is missing",
            self.part(item)
        );
        self.add(self.key(item), Some(file), None, what);
    }

    /// What is said of an item behind its key.
    fn part(&self, item: Item) -> String {
        match item {
            Item::Object(_) => "it".into(),
            Item::Chunk(chunk) => {
                let region = self.r.table.metadata.chunk(chunk).map(|(_, region)| region);
                region.map_or_else(|| "it".into(), |region| format!("chunk {region}"))
            }
        }
    }

    fn key(&self, item: Item) -> &'r str {
        let metadata = &self.r.table.metadata;
        let key = match item {
            Item::Chunk(chunk) => metadata.chunk(chunk).map(|(tensor, _)| tensor.key()),
            Item::Object(object) => metadata.object_key(object),
        };
        key.unwrap_or_default()
    }

    async fn object_copy(
        &self,
        key: &str,
        place: Place,
        file: &Name,
        range: std::ops::Range<u64>,
    ) -> Result<Checked> {
        let (len, start) = (range.end - range.start, range.start);
        self.r.limits.whole(format_args!("object {key}"), len)?;
        let stored = self
            .r
            .store
            .read(file, range)
            .await
            .map_err(|e| self.r.lost(e, None))?;
        let bytes = self.r.object_archive(place, key, stored)?;
        self.r.check_archive(place, key, &bytes)?;
        let left = self.framed(key, file, start, &bytes)?;
        self.decodes(key, bytes)?;
        self.progress.add(len);
        Ok(Checked::of(self.r, place, len, left))
    }

    /// Checks what no checksum of an object's archive covers.
    fn framed(
        &self,
        key: &str,
        file: &Name,
        at: u64,
        archive: &bytes::Bytes,
    ) -> Result<Unconfirmed> {
        check_framing(archive, &self.r.limits)
            .map_err(|e| unreadable(e, &format!("object {key}"), file.as_str(), at))
    }

    /// The checksums are right, so an object beyond the limits of the decoder is not damaged.
    fn decodes(&self, key: &str, bytes: bytes::Bytes) -> Result<()> {
        match decode_object(
            &*self.r.codec(),
            key,
            Payload::Encoded {
                codec: TorchSave::NAME,
                bytes,
            },
        ) {
            Err(StrategyError::Object { source, .. }) if is_beyond_us(&source) => Ok(()),
            decoded => decoded.map(drop),
        }
    }

    async fn object(&mut self, id: ObjectId, key: &'r str, full: bool) {
        let r = self.r;
        if let Err(e) = r.agreed("object", key) {
            return self.damaged(key, &e);
        }
        let place = r.table.object(id);
        let at = place.map(|p| r.undisputed(p, || "it".into()));
        match place.zip(at) {
            None => self.add(
                key,
                None,
                None,
                "the metadata does not say where it lies: its entry in storage_data is missing"
                    .into(),
            ),
            Some((_, Err(e))) => self.damaged(key, &e),
            Some((place, Ok((file, range)))) => {
                if self.in_file(key, &file, &range).await && full {
                    let checked = self.object_of(id, place, (&file, range)).await;
                    self.note(key, &file, checked);
                }
            }
        }
    }

    async fn object_of(
        &self,
        object: ObjectId,
        place: Place,
        (file, range): (&Name, std::ops::Range<u64>),
    ) -> Result<Checked> {
        let none = Progress::none();
        let cx = ReadCx::new(true, &none);
        let payloads = self.r.read_objects(&[ReadObject { object }], &cx).await?;
        let mut left = Unconfirmed::default();
        for p in payloads {
            if let Payload::Encoded { bytes, .. } = p {
                let key = self.key(Item::Object(object));
                left += self.framed(key, file, range.start, &bytes)?;
                self.decodes(key, bytes)?;
            }
        }
        let len = range.end - range.start;
        self.progress.add(len);
        Ok(Checked::of(self.r, place, len, left))
    }
}

const MISSING: &str = "its file is missing";

/// Of so many files that are not listed it is looked at what lies there.
const ABSENT: usize = 1_000;

/// Bytes of an archive that were read last.
#[derive(Default)]
struct Near {
    at: u64,
    bytes: bytes::Bytes,
}

/// So many bytes are read at least where little is wanted.
const NEAR: u64 = 16 << 10;

/// The most bytes that are read at a time, where requests are not dear.
const IN_MEMORY: u64 = 4 << 20;
