use super::{
    ALIGNMENT, CENTRAL_HEADER, DESCRIPTOR, END, END64, LOCAL_HEADER, LOCATOR64, MAX32,
    id::{fold_names, serialization_id},
};
use crate::{Error, Result};
use std::ops::Range;

/// The records that `torch.save` writes beside its storages.
pub const RECORDS: &[&str] = &[
    "data.pkl",
    "byteorder",
    "version",
    ".data/version",
    ".format_version",
    ".storage_alignment",
    ".data/serialization_id",
];

/// The layout to write. Every torch since 2.1 reads both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Era {
    /// The layout of torch 2.1 to 2.6.
    Torch21,
    /// The layout of torch 2.7 and later. It has two more records, `.format_version` and `.storage_alignment`.
    #[default]
    Torch27,
}

/// Options for writing an archive.
///
/// ```
/// use reshard_torch_format::archive::{ArchiveOptions, Era};
/// let options = ArchiveOptions::default().with_prefix("common").with_era(Era::Torch21);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveOptions {
    /// The folder of all records. torch uses the stem of the file's name, or `archive` if it writes to an open file.
    pub prefix: Box<str>,
    /// The layout.
    pub era: Era,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        Self {
            prefix: "archive".into(),
            era: Era::default(),
        }
    }
}

impl ArchiveOptions {
    /// Sets the prefix.
    pub fn with_prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the layout.
    pub fn with_era(mut self, era: Era) -> Self {
        self.era = era;
        self
    }
}

/// The content of a record.
#[derive(Clone, Debug)]
enum Body {
    /// With its CRC-32.
    Inline(Vec<u8>, u32),
    Storage,
    /// `.data/serialization_id`, known when all checksums are.
    Id,
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    /// With the prefix.
    name: String,
    body: Body,
    len: u64,
    header: u64,
    data: u64,
}

impl Part {
    /// A record of an archive that is there. Its data begin at `data`.
    pub(super) fn of(name: &str, len: u64, header: u64, data: u64) -> Self {
        Self {
            name: name.into(),
            body: Body::Storage,
            len,
            header,
            data,
        }
    }

    pub(super) fn zip64(&self) -> bool {
        self.len >= MAX32 || self.header >= MAX32
    }

    fn has_descriptor(&self) -> bool {
        self.len > 0
    }

    fn end(&self) -> u64 {
        let descriptor = match (self.has_descriptor(), self.zip64()) {
            (false, _) => 0,
            (true, false) => 16,
            (true, true) => 24,
        };
        self.data + self.len + descriptor
    }
}

/// Checksums of the storages, and what follows from them.
#[derive(Default)]
struct Sums<'a> {
    storages: &'a [u32],
    id: String,
    id_crc: u32,
}

/// Where every byte of an archive goes, computed before the first one is written.
///
/// An archive consists of the [`head`](Self::head), the bytes of the first storage in [`order`](Self::order), the [`gap`](Self::gap)
/// after it, the bytes of the next storage, and so on. After the last storage comes the tail, which [`finish`](Self::finish) returns. All
/// lengths are known beforehand. Only the *content* of gaps and tail depends on the CRC-32 of the data before them. So several threads can
/// write data at their positions, straight from where they lie.
///
/// ```
/// use reshard_torch_format::archive::{ArchiveLayout, ArchiveOptions};
///
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let pickle = b"\x80\x02N.";
/// let data = [0u8; 1000];
/// let layout = ArchiveLayout::new(pickle, &[1000], &ArchiveOptions::default())?;
/// let mut file = vec![0; layout.len() as usize];
/// let at = layout.storage(0);                                 // a range of bytes in the archive
/// file[..at.start as usize].copy_from_slice(layout.head());
/// file[at.start as usize..at.end as usize].copy_from_slice(&data);
/// file[at.end as usize..].copy_from_slice(&layout.finish(&[crc32fast::hash(&data)])?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ArchiveLayout {
    era: Era,
    parts: Vec<Part>,
    /// Index of the part of the storage that comes first; the others follow it.
    first: usize,
    /// Storages in the order of the file.
    order: Vec<usize>,
    /// Place of each storage in that order.
    places: Vec<usize>,
    /// The names of all records but the last, folded: half of what that one holds.
    names: u64,
    head: Vec<u8>,
    directory: u64,
    directory_len: u64,
    len: u64,
}

impl ArchiveLayout {
    /// Makes the layout of an archive with a `data.pkl` and storages of so many bytes.
    ///
    /// # Errors
    /// [`Error::Encode`] if the archive would be longer than 2^62 bytes, or the prefix is too long for a zip file.
    pub fn new(pickle: &[u8], storages: &[u64], options: &ArchiveOptions) -> Result<Self> {
        let prefix = &*options.prefix;
        if prefix.is_empty() || prefix.len() > 60_000 || prefix.contains('/') {
            return Err(Error::encode(format!(
                "{prefix:?} can't be the folder of an archive's records"
            )));
        }

        let inline = |name: &str, bytes: &[u8]| {
            let body = Body::Inline(bytes.into(), crc32fast::hash(bytes));
            (name.to_string(), body, bytes.len() as u64)
        };

        // The order of the records is torch's, so equal contents give the bytes of a file by torch.
        let mut records = vec![inline("data.pkl", pickle)];
        if options.era == Era::Torch27 {
            records.push(inline(".format_version", b"1"));
            records.push(inline(".storage_alignment", b"64"));
        }
        records.push(inline("byteorder", b"little"));
        let first = records.len();
        let order = file_order(storages, options.era);
        let storage = |&(i, len): &(usize, u64)| (format!("data/{i}"), Body::Storage, len);
        records.extend(order.iter().map(storage));
        let order: Vec<usize> = order.into_iter().map(|(i, _)| i).collect();
        records.push(inline("version", b"3\n"));

        // The last record holds a hash over the names of all others.
        let names = fold_names(records.iter().map(|(name, ..)| name.as_str()));
        records.push((".data/serialization_id".into(), Body::Id, 40));

        // Every offset depends only on lengths, so no data is needed here.
        let mut parts = Vec::with_capacity(records.len());
        let (mut at, mut directory_len) = (0u64, 0u64);
        for (name, body, len) in records {
            let name = format!("{prefix}/{name}");
            let header = at;
            let part = Part {
                data: data_offset(header, name.len() as u64, len),
                name,
                body,
                len,
                header,
            };
            if len > (1 << 62) || part.end() > (1 << 62) {
                return Err(Error::encode("an archive of more than 2^62 bytes"));
            }
            at = part.end();
            directory_len += 46 + part.name.len() as u64 + central_extra(&part).len() as u64;
            parts.push(part);
        }

        let mut layout = Self {
            era: options.era,
            names,
            parts,
            first,
            places: inverse(&order),
            order,
            head: Vec::new(),
            directory: at,
            directory_len,
            len: at + directory_len + 56 + 20 + 22,
        };

        // Everything before the first storage is known now, with the header of that storage.
        let (mut head, none) = (Vec::new(), Sums::default());
        for (part, crc) in layout.parts_with_sums(&none).take(first) {
            put_whole(&mut head, part, crc, &none);
        }
        if let Some(part) = layout.part_at(0) {
            put_local_header(&mut head, part);
        }
        layout.head = head;
        Ok(layout)
    }

    /// Bytes of the whole archive.
    #[expect(clippy::len_without_is_empty, reason = "an archive is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Which torch's layout it is.
    pub fn era(&self) -> Era {
        self.era
    }

    /// How many storages it holds.
    pub fn storages(&self) -> usize {
        self.order.len()
    }

    /// The storages in the order of the file: 0, 1, 2, …. The layout of torch 2.6 and before sorts their names as text, so with more than
    /// ten storages its order differs.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The part of the storage at a place in the order of the file.
    fn part_at(&self, place: usize) -> Option<&Part> {
        self.parts
            .get(self.first + place)
            .filter(|_| place < self.order.len())
    }

    /// The part of storage `i`.
    fn part(&self, i: usize) -> Option<&Part> {
        self.part_at(*self.places.get(i)?)
    }

    /// The part of the storage behind storage `i`.
    fn next(&self, i: usize) -> Option<&Part> {
        self.part_at(self.places.get(i)? + 1)
    }

    /// The range of storage `i`, in bytes from the start of the archive. If there is no such storage, an empty range at the end.
    pub fn storage(&self, i: usize) -> Range<u64> {
        match self.part(i) {
            Some(p) => p.data..p.data + p.len,
            None => self.len..self.len,
        }
    }

    /// Everything before the data of the first storage.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The bytes between storage `i`, whose CRC-32 is `crc`, and the next storage in the file. Empty after the last storage.
    pub fn gap(&self, i: usize, crc: u32) -> Vec<u8> {
        let mut out = Vec::new();
        if let (Some(part), Some(next)) = (self.part(i), self.next(i)) {
            put_descriptor(&mut out, part, crc);
            put_local_header(&mut out, next);
        }
        out
    }

    /// Where the [`gap`](Self::gap) after storage `i` lies.
    pub fn gap_range(&self, i: usize) -> Range<u64> {
        let from = self.storage(i).end;
        from..self.next(i).map_or(from, |next| next.data)
    }

    /// Everything after the last storage. It needs the CRC-32 of each storage.
    ///
    /// # Errors
    /// [`Error::Encode`] if the number of checksums is not that of the storages.
    pub fn finish(&self, crcs: &[u32]) -> Result<Vec<u8>> {
        if crcs.len() != self.order.len() {
            let what = format!(
                "{} checksums were given for {} storages",
                crcs.len(),
                self.order.len()
            );
            return Err(Error::encode(what));
        }
        let behind = self.order.last().map_or(0, |&last| self.storage(last).end);
        let mut out = Vec::with_capacity((self.len - behind) as usize);
        let sums = self.sums(crcs);
        let parts = || self.parts_with_sums(&sums);
        if let Some((part, crc)) = parts().skip(self.first).take(crcs.len()).last() {
            put_descriptor(&mut out, part, crc);
        }
        for (part, crc) in parts().skip(self.first + crcs.len()) {
            put_whole(&mut out, part, crc, &sums);
        }
        for (part, crc) in parts() {
            put_central_header(&mut out, part, crc);
        }
        self.put_end(&mut out);
        Ok(out)
    }

    /// All parts, each with the CRC-32 of its data. It is 0 for an empty part, as torch writes it.
    fn parts_with_sums<'a>(&'a self, sums: &'a Sums<'_>) -> impl Iterator<Item = (&'a Part, u32)> {
        let mut order = self.order.iter();
        self.parts.iter().map(move |part| {
            let crc = match &part.body {
                Body::Inline(_, crc) => Some(*crc),
                Body::Storage => order.next().and_then(|&i| sums.storages.get(i).copied()),
                Body::Id => Some(sums.id_crc),
            };
            (part, crc.filter(|_| part.len > 0).unwrap_or(0))
        })
    }

    /// What depends on the storages' checksums.
    fn sums<'a>(&self, storages: &'a [u32]) -> Sums<'a> {
        let mut sums = Sums {
            storages,
            ..Sums::default()
        };
        let others = self.parts_with_sums(&sums).take(self.parts.len() - 1);
        let crcs = others
            .filter(|(part, _)| part.has_descriptor())
            .map(|(_, crc)| crc);
        let id = serialization_id(self.names, crcs);
        sums.id_crc = crc32fast::hash(id.as_bytes());
        sums.id = id;
        sums
    }

    fn put_end(&self, out: &mut Vec<u8>) {
        let count = self.parts.len() as u64;
        put_end(out, count, self.directory, self.directory_len);
    }
}

/// Writes a part that is no storage: its header, data and descriptor.
fn put_whole(out: &mut Vec<u8>, part: &Part, crc: u32, sums: &Sums<'_>) {
    put_local_header(out, part);
    match &part.body {
        Body::Inline(bytes, _) => out.extend_from_slice(bytes),
        Body::Storage => {}
        Body::Id => out.extend_from_slice(sums.id.as_bytes()),
    }
    put_descriptor(out, part, crc);
}

/// The three records behind a directory of so many entries and bytes.
pub(super) fn put_end(out: &mut Vec<u8>, count: u64, directory: u64, directory_len: u64) {
    let end64 = directory + directory_len;
    put32(out, END64);
    put64(out, 44);
    put16(out, 798);
    put16(out, 45);
    put32(out, 0);
    put32(out, 0);
    put64(out, count);
    put64(out, count);
    put64(out, directory_len);
    put64(out, directory);

    put32(out, LOCATOR64);
    put32(out, 0);
    put64(out, end64);
    put32(out, 1);

    put32(out, END);
    put32(out, 0);
    put16(out, count.min(0xFFFF) as u16);
    put16(out, count.min(0xFFFF) as u16);
    put32(out, low(directory_len));
    put32(out, low(directory));
    put16(out, 0);
}

/// The storages in the order of the file, with their lengths.
fn file_order(lens: &[u64], era: Era) -> Vec<(usize, u64)> {
    let mut order: Vec<(usize, u64)> = lens.iter().copied().enumerate().collect();
    if era == Era::Torch21 {
        order.sort_by_cached_key(|(i, _)| i.to_string());
    }
    order
}

/// The place of each storage in the order of the file.
fn inverse(order: &[usize]) -> Vec<usize> {
    let mut places: Vec<(usize, usize)> = order.iter().copied().zip(0..).collect();
    places.sort_unstable();
    places.into_iter().map(|(_, place)| place).collect()
}

/// Writes an archive into memory.
///
/// # Errors
/// As [`ArchiveLayout::new`].
pub fn write_archive(
    pickle: &[u8],
    storages: &[&[u8]],
    options: &ArchiveOptions,
) -> Result<Vec<u8>> {
    let lens: Vec<u64> = storages.iter().map(|s| s.len() as u64).collect();
    let crcs: Vec<u32> = storages.iter().map(|s| crc32fast::hash(s)).collect();
    let layout = ArchiveLayout::new(pickle, &lens, options)?;
    let mut out = Vec::with_capacity(layout.len() as usize);
    out.extend_from_slice(layout.head());
    for &i in layout.order() {
        if let (Some(storage), Some(&crc)) = (storages.get(i), crcs.get(i)) {
            out.extend_from_slice(storage);
            out.extend_from_slice(&layout.gap(i, crc));
        }
    }
    out.extend_from_slice(&layout.finish(&crcs)?);
    Ok(out)
}

pub(super) fn local_zip64_len(header: u64, len: u64) -> u64 {
    match (len >= MAX32, header >= MAX32) {
        (false, false) => 0,
        (true, false) => 4 + 16,
        (false, true) => 4 + 8,
        (true, true) => 4 + 24,
    }
}

/// Where data starts behind a local header at `header`: aligned by the filler field, whose own head takes four bytes.
fn data_offset(header: u64, name: u64, len: u64) -> u64 {
    (header + 30 + name + local_zip64_len(header, len) + 4).next_multiple_of(ALIGNMENT)
}

pub(super) fn put_local_header(out: &mut Vec<u8>, part: &Part) {
    let zip64 = local_zip64_len(part.header, part.len);
    let extra = part.data - part.header - 30 - part.name.len() as u64;
    put32(out, LOCAL_HEADER);
    put16(out, 0);
    put16(out, flags(part));
    out.extend_from_slice(&[0; 2 + 2 + 2 + 4 + 4 + 4]); // stored; no time, no date; sums and sizes come behind the data
    put16(out, part.name.len() as u16);
    put16(out, extra as u16);
    out.extend_from_slice(part.name.as_bytes());
    if zip64 > 0 {
        put16(out, 1);
        put16(out, (zip64 - 4) as u16);
        if part.len >= MAX32 {
            put64(out, part.len);
            put64(out, 0);
        }
        if part.header >= MAX32 {
            put64(out, part.header);
        }
    }
    let filler = extra - zip64 - 4;
    out.extend_from_slice(b"FB");
    put16(out, filler as u16);
    out.resize(out.len() + filler as usize, b'Z');
}

fn put_descriptor(out: &mut Vec<u8>, part: &Part, crc: u32) {
    if !part.has_descriptor() {
        return;
    }
    put32(out, DESCRIPTOR);
    put32(out, crc);
    if part.zip64() {
        put64(out, part.len);
        put64(out, part.len);
    } else {
        put32(out, part.len as u32);
        put32(out, part.len as u32);
    }
}

fn central_extra(part: &Part) -> Vec<u8> {
    let mut fields = Vec::new();
    if part.len >= MAX32 {
        put64(&mut fields, part.len);
        put64(&mut fields, part.len);
    }
    if part.header >= MAX32 {
        put64(&mut fields, part.header);
    }
    let mut out = Vec::new();
    if !fields.is_empty() {
        put16(&mut out, 1);
        put16(&mut out, fields.len() as u16);
        out.extend_from_slice(&fields);
    }
    out
}

pub(super) fn put_central_header(out: &mut Vec<u8>, part: &Part, crc: u32) {
    let extra = central_extra(part);
    put32(out, CENTRAL_HEADER);
    put16(out, 0);
    put16(out, 0);
    put16(out, flags(part));
    put16(out, 0);
    put32(out, 0);
    put32(out, crc);
    put32(out, low(part.len));
    put32(out, low(part.len));
    put16(out, part.name.len() as u16);
    put16(out, extra.len() as u16);
    out.extend_from_slice(&[0; 2 + 2 + 2 + 4]); // no comment, first disk, no attributes
    put32(out, low(part.header));
    out.extend_from_slice(part.name.as_bytes());
    out.extend_from_slice(&extra);
}

/// UTF-8 names; sizes behind the data, if there is data.
fn flags(part: &Part) -> u16 {
    if part.has_descriptor() {
        0x0808
    } else {
        0x0800
    }
}

fn low(v: u64) -> u32 {
    v.min(MAX32) as u32
}

fn put16(out: &mut Vec<u8>, v: u16) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}
