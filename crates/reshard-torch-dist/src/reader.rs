//! Reads regions of tensors, and objects, of an opened checkpoint.

mod head;
mod names;
mod opened;
mod overlaps;
mod packed;
mod removal;
mod repeats;
mod verify;
mod waste;

use crate::{NAME, OwnFile, limits::unreadable, producer, table::Place};
use async_trait::async_trait;
use head::{Head, RecentForms, Wanted, reads_all};
use names::name_of;
use reshard_model::{Dialect, ObjectCodec, Payload, shortened};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Checksum, Entry, Name, RecordRead};
use reshard_strategy::{
    BackendVersion, BoxVerifier, ElementChecksum, FileRole, LimitOption, Producer, ReadCx,
    ReadLimits, ReadObject, ReadTensor, ReaderHooks, Removal, Result, Selection, StorageInfo,
    StorageReader, StrategyError, Traffic, VerifyRun,
    torch::{Crc, TorchObjects, check_records, parsing},
};
use reshard_torch_format::TorchSave;
use std::sync::Arc;
use verify::Verifier;

pub(crate) use opened::TorchDistReader;

impl ReaderHooks for TorchDistReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for TorchDistReader {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.table.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn object_lists(&self) -> bool {
        true
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        let place = self.table.chunk(chunk);
        place
            .and_then(|place| self.storage_info(place))
            .into_iter()
            .collect()
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        let place = self.table.object(object);
        place
            .and_then(|place| self.storage_info(place))
            .into_iter()
            .collect()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        Arc::new(TorchObjects::new(&self.limits))
    }

    fn producer(&self) -> Producer {
        producer::producer(&self.table, self.dialect, self.rank_local)
    }

    fn not_understood(&self) -> Vec<String> {
        self.table.unknown.keys().cloned().collect()
    }

    fn why_not(&self, key: &str) -> Option<String> {
        let what = self.table.unknown.get(key)?;
        Some(format!("reading {key} ({what})"))
    }

    fn permits(&self, key: &str) -> Result<()> {
        self.agreed("tensor", key)?;
        self.affords(key)
    }

    fn owns(&self, name: &Name) -> bool {
        self.own_file(name.as_str()).is_some()
    }

    fn role(&self, file: &Entry) -> FileRole {
        // In a rank-local save the metadata of a rank name the file of its replica, even if another replica is read.
        if self.named.contains(&file.name) {
            return FileRole::Part;
        }
        match self.own_file(file.name.as_str()) {
            None => FileRole::Foreign,
            Some(OwnFile::RankMetadata(_)) if self.rank_local.is_none() => FileRole::Record,
            Some(OwnFile::Metadata | OwnFile::RankMetadata(_)) => FileRole::Part,
            // Some versions of PyTorch make an empty file for a rank that has nothing to save.
            Some(OwnFile::Data) if file.bytes == 0 => FileRole::Part,
            Some(OwnFile::Data | OwnFile::Unfinished) => FileRole::Leftover,
        }
    }

    fn is_rank_local(&self) -> bool {
        self.rank_local.is_some()
    }

    fn reads_columns_together(&self) -> bool {
        true
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let mut totals = Traffic::default();
        let mut forms = RecentForms::default();
        let mut left = ReadTensor::by_chunk(reads).peekable();
        loop {
            let mut room = WINDOW_BYTES;
            let mut window = Vec::new();
            while let Some(next) = left.next_if(|(chunk, _)| {
                window.len() < WINDOW && (self.fits(*chunk, &mut room) || window.is_empty())
            }) {
                window.push(next);
            }
            if window.is_empty() {
                return Ok(totals);
            }
            let read = self.read_window(window, cx, &mut forms, &mut totals);
            read.await?;
        }
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        // Everything that can be refused is refused before the first byte is read.
        let mut ranges = Vec::with_capacity(reads.len());
        let mut places = Vec::with_capacity(reads.len());
        for r in reads {
            let key = self.table.metadata.object_key(r.object).unwrap_or_default();
            let place = self.table.object(r.object).ok_or_else(|| {
                let what =
                    format!("the metadata does not say where object {key} lies: its entry in storage_data is missing");
                StrategyError::corrupt(crate::METADATA, None, what)
            })?;
            self.agreed("object", key)?;
            let at = self.undisputed(place, || format!("object {key}"))?;
            self.limits
                .whole(format_args!("object {key}"), place.length)?;
            ranges.push(at);
            places.push((place, key));
        }

        // All objects are read in one call, so the store can join neighbours.
        let read = self.store.read_ranges(ranges).await;
        let (stored, _) = read.map_err(|e| self.lost(e, None))?;

        let mut out = Vec::with_capacity(stored.len());
        for ((place, key), bytes) in places.into_iter().zip(stored) {
            let bytes = self.object_archive(place, key, bytes)?;
            if cx.verify {
                self.check_archive(place, key, &bytes)?;
            }
            out.push(Payload::Encoded {
                codec: TorchSave::NAME,
                bytes,
            });
        }
        Ok(out)
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        let mut out = Vec::with_capacity(chunks.len());
        let mut forms = RecentForms::default();
        // What is read whole stays in memory until its checksum is known.
        let window = match self.small_size() > head::SMALL {
            true => (WINDOW_BYTES / self.small_size()).max(1) as usize,
            false => WINDOW,
        };
        for window in chunks.chunks(window.min(WINDOW)) {
            let wanted = window.iter().map(|c| self.wanted(*c));
            let wanted = wanted.collect::<Result<Vec<Wanted>>>()?;
            let (heads, _) = self.heads(&wanted, &[], true, &mut forms).await?;
            out.extend(heads.iter().map(|head| match head {
                // What was read whole is checked already. A tensor that repeats a few bytes may be of any size.
                Head::Memory(t) if t.nbytes() <= t.buffer_bytes().len() as u64 => {
                    let mut hasher = crc32fast::Hasher::new();
                    t.blocks(HASHED).for_each(|b| hasher.update(&b));
                    Some(ElementChecksum::Crc32(hasher.finalize()))
                }
                // The checksum is that of the whole record.
                Head::Stored(s)
                    if s.layout.is_contiguous()
                        && s.layout.bytes() == s.record.end - s.record.start =>
                {
                    s.crc32.map(ElementChecksum::Crc32)
                }
                _ => None,
            }));
        }
        Ok(out)
    }

    fn covers(&self, file: &Name) -> bool {
        self.named.contains(file)
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Ok(Box::new(Verifier::new(self, run.progress).await?))
    }

    async fn without(&self, prefix: &str) -> Result<Removal> {
        removal::without(self, prefix)
    }
}

/// The number of chunks whose descriptions are read, and kept in memory, at a time.
const WINDOW: usize = 512;

/// How many bytes of archives that are read whole are in memory at a time.
const WINDOW_BYTES: u64 = 64 << 20;

/// Bytes of a tensor that are hashed at a time. They are copied if they don't lie in row-major order.
const HASHED: u64 = 1 << 20;

impl TorchDistReader {
    /// Fails for a tensor that is too much to read, or to unpack.
    fn affords(&self, key: &str) -> Result<()> {
        if let Some(found) = self.waste.get(key) {
            return Err(waste::refused(key, *found, self.limits.max_whole));
        }
        match self.repeats.get(key) {
            None => Ok(()),
            Some((bytes, stored, max)) => Err(ReadLimits::refused(
                format_args!("tensor {}", shortened(key)),
                *bytes,
                *stored,
                *max,
            )),
        }
    }

    /// Fails if two ranks of a rank-local checkpoint say different things of a key. Nobody knows which of them is right.
    fn agreed(&self, kind: &str, key: &str) -> Result<()> {
        match self.table.contradictions.get(key) {
            None => Ok(()),
            Some((file, what)) => {
                let what = format!("{kind} {} {what}", shortened(key));
                Err(StrategyError::corrupt(file, None, what))
            }
        }
    }

    /// Whether there is room for a chunk whose archive is read whole. Of others only the ends are in memory.
    fn fits(&self, chunk: ChunkId, room: &mut u64) -> bool {
        let len = self.table.chunk(chunk).map_or(0, |place| place.length);
        if len > self.small_size() {
            return true;
        }
        let left = room.checked_sub(len);
        *room = left.unwrap_or(*room);
        left.is_some()
    }

    /// `None` if the name of the file is refused.
    fn storage_info(&self, place: Place) -> Option<StorageInfo> {
        let end = place.offset.saturating_add(place.length);
        let file = self.table.file(place).ok()?;
        Some(StorageInfo::new(file, place.offset..end))
    }

    async fn read_window(
        &self,
        window: Vec<(ChunkId, Vec<ReadTensor>)>,
        cx: &ReadCx<'_>,
        forms: &mut RecentForms,
        totals: &mut Traffic,
    ) -> Result<()> {
        let verify = cx.verify;

        // The descriptions of all chunks come first, because they tell where the elements lie.
        let wanted = window.iter().map(|(c, _)| self.wanted(*c));
        let wanted = wanted.collect::<Result<Vec<Wanted>>>()?;
        // A checksum covers a whole record, so it is checked only if all of the record is read anyway.
        let is_checked = |(chunk, reads): &(ChunkId, Vec<ReadTensor>)| {
            let selections: Vec<_> = reads.iter().map(|r| &r.selection).collect();
            let region = self.table.metadata.chunk(*chunk).map(|(_, region)| region);
            let elements = region.and_then(|region| region.lengths.volume());
            verify && elements.is_some_and(|n| Selection::cover_once(&selections, n))
        };
        let checked: Vec<bool> = match self.store.hints().requests_are_dear() {
            true => window.iter().map(is_checked).collect(),
            false => Vec::new(),
        };
        let (heads, traffic) = self.heads(&wanted, &checked, verify, forms).await?;
        *totals += traffic;

        // Stored elements are collected for one call of the store. The other kinds need memory, so each lands by
        // itself.
        let mut records = Vec::with_capacity(heads.len());
        for ((head, w), (_, reads)) in heads.into_iter().zip(&wanted).zip(window) {
            match head {
                Head::Memory(tensor) => {
                    totals.verified += u64::from(verify);
                    packed::land(&tensor, reads, cx, totals)?;
                }
                Head::Packed => self.read_packed(w, reads, cx, totals).await?,
                Head::Deflated(d) => self.read_deflated(w, *d, reads, cx, totals).await?,
                Head::Stored(s) => {
                    let selections: Vec<_> = reads.iter().map(|r| &r.selection).collect();
                    let len = s.record.end - s.record.start;
                    let all = verify && reads_all(&s.layout, len, &selections);
                    let crc32 = s.crc32.filter(|_| all);
                    totals.verified += u64::from(crc32.is_some());
                    let check = crc32.map(|crc32| -> Box<dyn Checksum> {
                        let (metadata, chunk) = (Arc::clone(&self.table.metadata), w.chunk);
                        Box::new(Crc::new(len, crc32, move || name_of(&metadata, chunk)))
                    });
                    let parts = reads.into_iter().map(|r| r.part(&s.layout));
                    records.push(RecordRead {
                        name: s.file,
                        record: s.record,
                        parts: parts.collect::<Result<_>>()?,
                        check,
                    });
                }
            }
        }

        let read = self.store.read_into(records, cx.progress.clone()).await;
        *totals += read.map_err(|e| self.lost(e, None))?;
        Ok(())
    }

    /// The archive of an object whose stored bytes may have gone through stream transforms.
    pub(crate) fn object_archive(
        &self,
        place: Place,
        key: &str,
        stored: bytes::Bytes,
    ) -> Result<bytes::Bytes> {
        let what = format!("object {key}");
        let budget = parsing(&self.limits).budget(place.length).max();
        let most = budget.min(self.limits.max_whole);
        self.untransform(place, &what, stored, most)?
            .ok_or_else(|| match budget == most {
                true => {
                    let what = format!(
                        "{what} unpacks to more than {} stored bytes may take",
                        place.length
                    );
                    StrategyError::Limit {
                        what,
                        option: LimitOption::MaxMemory,
                        max: budget,
                    }
                }
                false => self.too_large(&what),
            })
    }

    /// Checks that every record of an object's archive has the checksum in the archive.
    pub(crate) fn check_archive(
        &self,
        place: Place,
        key: &str,
        bytes: &bytes::Bytes,
    ) -> Result<()> {
        let file = self.table.file(place)?;
        check_records(bytes, &self.limits)
            .map_err(|e| unreadable(e, &format!("object {key}"), file.as_str(), place.offset))
    }
}
