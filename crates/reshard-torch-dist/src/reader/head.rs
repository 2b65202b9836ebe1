//! Finds the tensor in the archive of a chunk. For this it reads a few hundred bytes at the start and at the end of the archive.

use super::{names::name_of, opened::TorchDistReader};
use crate::{
    limits::{not_understood, unreadable},
    table::Place,
};
use bytes::Bytes;
use reshard_model::{Layout, Tensor};
use reshard_plan::ChunkId;
use reshard_storage::{Name, Traffic};
use reshard_strategy::{Result, Selection, StrategyError, torch::parsing};
use reshard_torch_format::{
    Error as FormatError, Limits, TensorRef,
    archive::{
        Archive, ByteOrder, Directory, Form, Method, Record, Tail, Unconfirmed, Verify, unpack,
    },
};
use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
};

/// The number of bytes to read at each end. PyTorch puts 704 bytes before a tensor's elements and about 850 after them.
const END: u64 = 1 << 10;

/// An archive up to this size is read whole.
pub(crate) const SMALL: u64 = 4 << 10;

/// The same at most, where requests are dear.
const SMALL_IF_DEAR: u64 = 1 << 20;

/// Where the tensor of a chunk was found.
#[derive(Debug)]
pub(crate) enum Head {
    /// Its elements lie in a file as the layout says.
    Stored(Stored),
    /// They are in memory: the archive was small.
    Memory(Tensor),
    /// The whole archive must be in memory, because it was transformed or the elements need a change.
    Packed,
    /// They lie in a deflated record.
    Deflated(Box<Deflated>),
}

#[derive(Debug)]
pub(crate) struct Deflated {
    pub(crate) record: Record,
    /// Its bytes in the archive.
    pub(crate) data: Range<u64>,
    /// Elements in what it unpacks to.
    pub(crate) layout: Layout,
}

#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) file: Name,
    /// The storage's bytes in the file.
    pub(crate) record: Range<u64>,
    /// Elements in the record.
    pub(crate) layout: Layout,
    /// The checksum of the record. `None` if the end of the archive, where it stands, was not read.
    pub(crate) crc32: Option<u32>,
}

/// The forms of recently parsed archives. Most chunks of a checkpoint have one of a few forms.
#[derive(Default)]
pub(crate) struct RecentForms(VecDeque<Known>);

/// A form, the tensor of its archives, and where its elements lie.
type Known = (Form, TensorRef, Layout);

impl RecentForms {
    /// The maximal number of forms. A checkpoint has one form for each shape of its chunks, and a form takes 2 KiB.
    const MOST: usize = 32;

    fn add(&mut self, form: Form, tensor: TensorRef, layout: Layout) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((form, tensor, layout));
    }

    /// The form of an archive, and the checksum of its record. If only its beginning was read, there is no checksum.
    fn find(&self, len: u64, first: &[u8], tail: Option<&[u8]>) -> Option<(&Known, Option<u32>)> {
        self.0.iter().find_map(|seen| match tail {
            Some(tail) => Some((seen, Some(seen.0.matches(len, first, tail)?))),
            None => seen.0.begins(len, first).then_some((seen, None)),
        })
    }
}

/// A chunk to find, with what the metadata says about it.
pub(crate) struct Wanted {
    pub(crate) chunk: ChunkId,
    pub(crate) place: Place,
    pub(crate) file: Name,
    pub(crate) range: Range<u64>,
}

impl Wanted {
    /// The length of its archive.
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Its elements lie in these bytes of its archive.
    fn stored(&self, data: &Range<u64>, layout: Layout, crc32: Option<u32>) -> Stored {
        let record = self.range.start + data.start..self.range.start + data.end;
        Stored {
            file: self.file.clone(),
            record,
            layout,
            crc32,
        }
    }
}

impl TorchDistReader {
    /// Where a chunk lies. The error says why nobody knows.
    pub(crate) fn wanted(&self, chunk: ChunkId) -> Result<Wanted> {
        let place = self.table.chunk(chunk).ok_or_else(|| {
            let what = format!(
                "the metadata does not say where {} lies: its entry in storage_data is missing",
                self.name_of(chunk)
            );
            StrategyError::corrupt(crate::METADATA, None, what)
        })?;
        self.wanted_at(chunk, place)
    }

    /// A chunk, or the copy of it that another rank has.
    pub(crate) fn wanted_at(&self, chunk: ChunkId, place: Place) -> Result<Wanted> {
        let (file, range) = self.undisputed(place, || self.name_of(chunk))?;
        Ok(Wanted {
            chunk,
            place,
            file,
            range,
        })
    }

    /// The bytes of an item, if no other item claims them.
    pub(crate) fn undisputed(
        &self,
        place: Place,
        name: impl FnOnce() -> String,
    ) -> Result<(Name, Range<u64>)> {
        if let Some(other) = self.overlaps.with(&self.table, place) {
            let what = format!(
                "{} and another item lie in the same bytes ({other})",
                name()
            );
            return Err(StrategyError::corrupt(crate::METADATA, None, what));
        }
        Ok((self.table.file(place)?, self.table.range(place)?))
    }

    /// A chunk's name for messages.
    pub(crate) fn name_of(&self, chunk: ChunkId) -> String {
        name_of(&self.table.metadata, chunk)
    }

    /// Up to which size an archive is read whole. Where a request costs more than to read the elements along, this is cheaper than to
    /// read the ends first.
    pub(crate) fn small_size(&self) -> u64 {
        let hints = self.store.hints();
        match hints.requests_are_dear() {
            true => hints.coalesce_gap.min(SMALL_IF_DEAR),
            false => SMALL,
        }
    }

    /// Finds the tensors of many archives. Also returns the bytes and requests that this took. `checked` says of each archive whether the
    /// checksum of its record is needed; if it says nothing, it is.
    pub(crate) async fn heads(
        &self,
        wanted: &[Wanted],
        checked: &[bool],
        verify: bool,
        forms: &mut RecentForms,
    ) -> Result<(Vec<Head>, Traffic)> {
        let mut search = Search {
            reader: self,
            wanted,
            verify,
            forms,
            found: wanted.iter().map(|_| None).collect(),
            traffic: Traffic::default(),
        };
        // Where requests are dear, one archive of each form is read at both ends. Of one that is like it the beginning is enough, unless
        // somebody needs its checksum.
        let (whole, alike): (Vec<usize>, Vec<usize>) = match self.store.hints().requests_are_dear()
        {
            true => self.by_form(wanted, checked),
            false => ((0..wanted.len()).collect(), Vec::new()),
        };
        search.both_ends(whole).await?;
        let others = search.beginnings(alike).await?;
        search.both_ends(others).await?;
        let lost = || StrategyError::Internal("a chunk was not looked for".into());
        let heads = search.found.into_iter().map(|head| head.ok_or_else(lost));
        Ok((heads.collect::<Result<_>>()?, search.traffic))
    }

    /// One archive of each length and shape, and all that need more than their beginning; and those that are like one of the first.
    fn by_form(&self, wanted: &[Wanted], checked: &[bool]) -> (Vec<usize>, Vec<usize>) {
        let (mut seen, small) = (BTreeSet::new(), self.small_size());
        (0..wanted.len()).partition(|i| {
            let w = &wanted[*i];
            let len = w.len();
            let described = self.table.metadata.chunk(w.chunk);
            let form = described.map(|(t, region)| (len, t.dtype(), region.lengths));
            let is_first = seen.insert(form);
            let is_checked = checked.get(*i).copied().unwrap_or(true);
            is_first || len <= small || is_checked || self.table.is_transformed(w.place)
        })
    }

    async fn head(
        &self,
        w: &Wanted,
        first: Bytes,
        tail: Bytes,
        forms: &mut RecentForms,
    ) -> Result<(Head, Traffic)> {
        let corrupt = |e| self.corrupt(w, e);
        let (directory, more) = self.directory(w, &tail).await?;
        // The description: the pickle, and the byte order. Both must be within the limits, and must agree with the metadata.
        self.unpacks_to_its_shape(w, &directory)?;
        let pickle = directory.get("data.pkl").map_err(corrupt)?;
        let mut described = vec![pickle];
        let mut known = Ends {
            reader: self,
            w,
            first,
            tail,
            more: beside(more, u64::from(more > 0)),
        };
        let pickle = known.content(pickle).await?;
        let tensor = self.description(w, &pickle)?;
        self.check_described(w, &tensor)?;
        let order = match directory.find("byteorder") {
            None => ByteOrder::Little,
            Some(r) => {
                described.push(r);
                ByteOrder::parse(Some(&known.content(r).await?)).map_err(corrupt)?
            }
        };
        // The storage, and how its elements can be read: elements that need a change, or that share packed bytes, only in memory;
        // packed ones in blocks; all others straight from the file.
        let record = directory.get(&tensor.storage.record()).map_err(corrupt)?;
        let data = known.data_range(record).await?;
        let more = known.more;
        tensor.storage.check(record.size).map_err(corrupt)?;
        let layout = tensor.layout().map_err(corrupt)?;
        if tensor.is_lazy(order) || (record.method != Method::Stored && !layout.is_injective()) {
            return Ok((Head::Packed, more));
        }
        if record.method != Method::Stored {
            let record = record.clone();
            let deflated = Box::new(Deflated {
                record,
                data,
                layout,
            });
            return Ok((Head::Deflated(deflated), more));
        }
        // The form is kept: the next archive of this form need not be parsed.
        let stored = w.stored(&data, layout.clone(), record.checksum());
        let ends = (&*known.first, &*known.tail);
        if let Some(form) = Form::new(w.len(), ends, &directory, &described, (record, &data)) {
            forms.add(form, tensor, layout);
        }
        Ok((Head::Stored(stored), more))
    }

    /// The directory of an archive, which is at its end. If the `tail` is not enough, the parser says how much more it needs. Also
    /// returns the number of bytes that were read in addition.
    pub(crate) async fn directory(&self, w: &Wanted, tail: &[u8]) -> Result<(Directory, u64)> {
        let corrupt = |e| self.corrupt(w, e);
        let range = match Tail::parse(w.len(), tail).map_err(corrupt)? {
            Tail::Done(directory) => return Ok((directory, 0)),
            Tail::Need(range) => range,
        };
        let more = range.end - range.start;
        if more > DIRECTORY {
            return Err(not_understood(format!(
                "reading {} at byte {} of {} (its zip directory takes {more} bytes, and this version reads at most {DIRECTORY})",
                self.name_of(w.chunk),
                w.range.start,
                w.file,
            )));
        }
        match Tail::parse(w.len(), &self.at(w, range).await?).map_err(corrupt)? {
            Tail::Done(directory) => Ok((directory, more)),
            Tail::Need(_) => Err(self.bad(w, "its zip directory has no end")),
        }
    }

    /// A small archive, read whole.
    fn small(&self, w: &Wanted, bytes: Bytes, verify: bool) -> Result<Head> {
        let archive =
            Archive::open(bytes, &parsing(&self.limits)).map_err(|e| self.corrupt(w, e))?;
        // Many small archives are in memory at once, and 4 KiB of packed data may unpack to 4 MiB.
        let mut records = archive.directory().records();
        if records.any(|r| r.method != Method::Stored) {
            return Ok(Head::Packed);
        }
        self.tensor_of(w, &archive, verify).map(Head::Memory)
    }

    /// The tensor of an archive that is in memory as a whole.
    pub(crate) fn in_memory(&self, w: &Wanted, archive: Bytes, verify: bool) -> Result<Tensor> {
        let archive = Archive::open(archive, &self.parsing(w)).map_err(|e| self.corrupt(w, e))?;
        self.unpacks_to_its_shape(w, archive.directory())?;
        self.tensor_of(w, &archive, verify)
    }

    /// Checks an archive in memory without making its tensor. Elements are read only for checksums. Returns what can't be confirmed.
    pub(crate) fn check_in_memory(&self, w: &Wanted, stored: Bytes) -> Result<Unconfirmed> {
        let corrupt = |e| self.corrupt(w, e);
        let archive =
            Archive::open(self.archive_of(w, stored)?, &self.parsing(w)).map_err(corrupt)?;
        self.unpacks_to_its_shape(w, archive.directory())?;
        archive.check_records(|_| Ok(())).map_err(corrupt)?;
        let pickle = archive.read("data.pkl", Verify::No).map_err(corrupt)?;
        let tensor = self.description(w, &pickle)?;
        self.check_described(w, &tensor)?;
        let record = archive.directory().get(&tensor.storage.record());
        let size = record.map_err(corrupt)?.size;
        tensor.storage.check(size).map_err(corrupt)?;
        // Without elements: this only checks that such elements are possible.
        let order = archive.byte_order().map_err(corrupt)?;
        tensor.resolve(&mut [], order).map_err(corrupt)?;
        archive.check_framing().map_err(corrupt)
    }

    fn tensor_of(&self, w: &Wanted, archive: &Archive, verify: bool) -> Result<Tensor> {
        let corrupt = |e| self.corrupt(w, e);
        let pickle = archive.read("data.pkl", Verify::Crc).map_err(corrupt)?;
        let tensor = self.description(w, &pickle)?;
        self.check_described(w, &tensor)?;
        let order = archive.byte_order().map_err(corrupt)?;
        if tensor.is_lazy(order) {
            let elements = tensor.layout().map_err(corrupt)?.bytes();
            self.limits.whole(self.name_of(w.chunk), elements)?;
        }
        let storage = archive.read(&tensor.storage.record(), verify.into());
        let storage = storage.map_err(corrupt)?;
        tensor.tensor(Arc::new(storage), order).map_err(corrupt)
    }

    /// The description of the tensor in a pickle. The checksum of the pickle was right, so an unknown content is no damage.
    pub(crate) fn description(&self, w: &Wanted, pickle: &[u8]) -> Result<TensorRef> {
        TensorRef::parse(pickle, &parsing(&self.limits)).map_err(|e| self.corrupt(w, e))
    }

    /// The limits of parsing the archive of a chunk.
    fn parsing(&self, w: &Wanted) -> Limits {
        let (limits, most) = (parsing(&self.limits), self.unpacks_to_at_most(w));
        let memory = limits.budget(w.len()).max().max(most);
        Limits {
            unpacked: limits.unpacked.min(most),
            memory: Some(memory),
            ..limits
        }
    }

    /// Checks that type and shape in the archive are those of the metadata.
    pub(crate) fn check_described(&self, w: &Wanted, tensor: &TensorRef) -> Result<()> {
        let Some((stored, region)) = self.table.metadata.chunk(w.chunk) else {
            return Ok(());
        };
        if tensor.dtype != stored.dtype() {
            let what = format!(
                "it is stored as {}, but the metadata says {}",
                tensor.dtype,
                stored.dtype()
            );
            return Err(self.bad(w, &what));
        }
        if tensor.shape != region.lengths {
            let what = format!(
                "it is stored with shape {}, but the metadata says {}",
                tensor.shape, region.lengths
            );
            return Err(self.bad(w, &what));
        }
        Ok(())
    }

    /// Reads bytes of a chunk's archive.
    pub(crate) async fn at(&self, w: &Wanted, range: Range<u64>) -> Result<Bytes> {
        let range = w.range.start + range.start..w.range.start + range.end;
        self.store
            .read(&w.file, range)
            .await
            .map_err(|e| self.lost(e, Some(self.name_of(w.chunk))))
    }

    /// An error of a parser.
    pub(crate) fn corrupt(&self, w: &Wanted, e: FormatError) -> StrategyError {
        unreadable(e, &self.name_of(w.chunk), w.file.as_str(), w.range.start)
    }

    pub(crate) fn bad(&self, w: &Wanted, what: &str) -> StrategyError {
        let what = format!("{}: {what}", self.name_of(w.chunk));
        StrategyError::corrupt(&w.file, Some(w.range.start), what)
    }
}

/// A search for the tensors of many archives.
struct Search<'a> {
    reader: &'a TorchDistReader,
    wanted: &'a [Wanted],
    verify: bool,
    forms: &'a mut RecentForms,
    found: Vec<Option<Head>>,
    traffic: Traffic,
}

impl Search<'_> {
    /// Finds tensors by both ends of their archives.
    async fn both_ends(&mut self, which: Vec<usize>) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        // One call for the ends of all archives, because the store reads neighbouring ranges together. A transformed archive has no
        // readable ends.
        let (reader, all) = (self.reader, self.wanted);
        let is_transformed = |w: &Wanted| reader.table.is_transformed(w.place);
        let (mut ranges, small) = (Vec::with_capacity(which.len() * 2), reader.small_size());
        for w in which
            .iter()
            .map(|i| &all[*i])
            .filter(|w| !is_transformed(w))
        {
            let Range { start, end } = w.range;
            if w.len() <= small {
                ranges.push((w.file.clone(), w.range.clone()));
            } else {
                ranges.push((w.file.clone(), start..start + END));
                ranges.push((w.file.clone(), end - END..end));
            }
        }
        // In the same order, each archive takes its ranges: one if it is small, else two.
        let mut got = self.read_ranges(ranges).await?.into_iter();
        for i in which {
            let w = &all[i];
            let head = if is_transformed(w) {
                Head::Packed
            } else {
                let first = got.next().unwrap_or_default();
                if w.len() <= small {
                    reader.small(w, first, self.verify)?
                } else {
                    let tail = got.next().unwrap_or_default();
                    match self.same_form(w, &first, Some(&tail))? {
                        Some(head) => head,
                        None => {
                            let (head, more) = reader.head(w, first, tail, self.forms).await?;
                            self.traffic += more;
                            head
                        }
                    }
                }
            };
            self.found[i] = Some(head);
        }
        Ok(())
    }

    /// Finds tensors by the beginnings of their archives alone. Returns those that have another form than all archives before them.
    async fn beginnings(&mut self, which: Vec<usize>) -> Result<Vec<usize>> {
        if which.is_empty() {
            return Ok(which);
        }
        let all = self.wanted;
        let beginning = |i: &usize| {
            let w = &all[*i];
            (w.file.clone(), w.range.start..w.range.start + END)
        };
        let got = self
            .read_ranges(which.iter().map(beginning).collect())
            .await?;
        let mut others = Vec::new();
        for (i, first) in which.into_iter().zip(got) {
            match self.same_form(&all[i], &first, None)? {
                Some(head) => self.found[i] = Some(head),
                None => others.push(i),
            }
        }
        Ok(others)
    }

    async fn read_ranges(&mut self, ranges: Vec<(Name, Range<u64>)>) -> Result<Vec<Bytes>> {
        let requests = ranges.len() as u64;
        let (got, stats) = self.reader.store.read_ranges(ranges).await.map_err(|e| {
            // The store names the file. The user also wants to know which tensor is lost.
            let text = e.to_string();
            let mut wanted = self.wanted.iter();
            let lost = wanted.find(|w| text.contains(w.file.as_str()));
            let key = lost.map(|w| self.reader.name_of(w.chunk));
            self.reader.lost(e, key)
        })?;
        self.traffic += beside(stats.bytes + stats.beside, requests);
        Ok(got)
    }

    /// The head of an archive that differs from an earlier one only in elements and checksums. If only its beginning was read, the head
    /// has no checksum.
    fn same_form(&self, w: &Wanted, first: &[u8], tail: Option<&[u8]>) -> Result<Option<Head>> {
        let Some(((form, tensor, layout), crc32)) = self.forms.find(w.len(), first, tail) else {
            return Ok(None);
        };
        self.reader.check_described(w, tensor)?;
        let stored = w.stored(form.storage(), layout.clone(), crc32);
        Ok(Some(Head::Stored(stored)))
    }
}

/// Bytes that were read beside elements.
fn beside(beside: u64, requests: u64) -> Traffic {
    let mut traffic = Traffic::default();
    traffic.beside = beside;
    traffic.requests = requests;
    traffic
}

/// An archive whose two ends are in memory.
struct Ends<'r> {
    reader: &'r TorchDistReader,
    w: &'r Wanted,
    first: Bytes,
    tail: Bytes,
    /// What was needed in addition to the ends.
    more: Traffic,
}

impl Ends<'_> {
    async fn bytes(&mut self, range: Range<u64>) -> Result<Bytes> {
        let at = |r: &Range<u64>| r.start as usize..r.end as usize;
        if range.end <= self.first.len() as u64 && range.start <= range.end {
            return Ok(self.first.slice(at(&range)));
        }
        if range.end > self.w.len() || range.start > range.end {
            let what = "a record lies outside of its archive";
            return Err(self.reader.bad(self.w, what));
        }
        let tail = self.w.len() - self.tail.len() as u64;
        if range.start >= tail {
            return Ok(self.tail.slice(at(&(range.start - tail..range.end - tail))));
        }
        self.more += beside(range.end - range.start, 1);
        self.reader.at(self.w, range).await
    }

    /// Where the data of a record lies. A part of the data has no checksum, so the bytes after the data must confirm the header.
    async fn data_range(&mut self, record: &Record) -> Result<Range<u64>> {
        let header = self.bytes(record.header_range()).await?;
        let corrupt = |e| self.reader.corrupt(self.w, e);
        let data = record.data_range(&header).map_err(corrupt)?;
        let behind = self.bytes(record.behind(&data)).await?;
        let confirmed = record.confirm(&data, &behind);
        confirmed.map_err(|e| self.reader.corrupt(self.w, e))?;
        Ok(data)
    }

    /// The content of a small record, with its checksum checked.
    async fn content(&mut self, record: &Record) -> Result<Bytes> {
        if record.stored > SMALL_RECORD {
            let what = "the description of a tensor is larger than any tensor needs";
            return Err(self.reader.bad(self.w, what));
        }
        let range = self.data_range(record).await?;
        let stored = self.bytes(range).await?;
        let content = unpack(record, stored, SMALL_RECORD, Verify::Crc);
        content.map_err(|e| self.reader.corrupt(self.w, e))
    }
}

/// The most bytes of a zip directory that are read. 65,535 records with usual names take a tenth of it.
const DIRECTORY: u64 = 64 << 20;

/// The maximal size of a tensor's pickle, in bytes.
const SMALL_RECORD: u64 = 1 << 20;

/// Whether selections of one chunk read every byte of its record exactly once. Then its checksum can be checked on the way.
pub(crate) fn reads_all(layout: &Layout, record: u64, selections: &[&Selection]) -> bool {
    layout.bytes() == record
        && layout.is_injective()
        && Selection::cover_once(selections, layout.elements())
}
