use super::{
    ALIGNMENT, CENTRAL_HEADER, DESCRIPTOR, END, END64, LOCAL_HEADER, LOCATOR64, MAX32,
    id::{fold_names, serialization_id},
};
use crate::{Error, Result};
use bytes::BufMut;
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
#[derive(Clone, Debug, PartialEq, Eq, derive_setters::Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct ArchiveOptions {
    /// The folder of all records. torch uses the stem of the file's name, or `archive` if it writes to an open file.
    #[setters(into)]
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

#[derive(Clone, Debug)]
pub(super) struct Part {
    /// With the prefix.
    name: String,
    /// `None` for storages, and for `.data/serialization_id`, which is known when all checksums are.
    content: Option<Vec<u8>>,
    /// The CRC-32 of the content; 0 if there is none.
    crc: u32,
    len: u64,
    header: u64,
    data: u64,
}

impl Part {
    /// A record of an archive that is there. Its data begin at `data`.
    pub(super) fn of(name: &str, len: u64, header: u64, data: u64) -> Self {
        Self {
            name: name.into(),
            content: None,
            crc: 0,
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

    fn central_extra(&self) -> Vec<u8> {
        zip64(self.header, self.len, self.len)
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
            let content = Some(bytes.to_vec());
            (name.to_string(), content, bytes.len() as u64)
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
        let storage = |&(i, len): &(usize, u64)| (format!("data/{i}"), None, len);
        records.extend(order.iter().map(storage));
        let order: Vec<usize> = order.into_iter().map(|(i, _)| i).collect();
        records.push(inline("version", b"3\n"));

        // The last record holds a hash over the names of all others.
        let names = fold_names(records.iter().map(|(name, ..)| name.as_str()));
        records.push((".data/serialization_id".into(), None, 40));

        // Every offset depends only on lengths, so no data is needed here.
        let mut parts = Vec::with_capacity(records.len());
        let (mut at, mut directory_len) = (0u64, 0u64);
        for (name, content, len) in records {
            let name = format!("{prefix}/{name}");
            let header = at;
            let part = Part {
                data: data_offset(header, name.len() as u64, len),
                name,
                crc: content.as_deref().map_or(0, crc32fast::hash),
                content,
                len,
                header,
            };
            if len > (1 << 62) || part.end() > (1 << 62) {
                return Err(Error::encode("an archive of more than 2^62 bytes"));
            }
            at = part.end();
            directory_len += (46 + part.name.len() + part.central_extra().len()) as u64;
            parts.push(part);
        }

        let mut layout = Self {
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
        let mut head = Vec::new();
        for part in layout.parts.iter().take(first) {
            let content = part.content.as_deref().unwrap_or_default();
            put_whole(&mut head, part, content, part.crc);
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
        let next = self.places.get(i).and_then(|at| self.part_at(at + 1));
        if let (Some(part), Some(next)) = (self.part(i), next) {
            put_descriptor(&mut out, part, crc);
            put_local_header(&mut out, next);
        }
        out
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

        // The checksum of an empty part is 0, as torch writes it.
        let mut sums: Vec<u32> = self.parts.iter().map(|part| part.crc).collect();
        let storages = self.order.iter().zip(self.parts.iter().skip(self.first));
        for ((i, part), sum) in storages.zip(sums.iter_mut().skip(self.first)) {
            *sum = crcs.get(*i).copied().filter(|_| part.len > 0).unwrap_or(0);
        }

        // The last part has a hash over the checksums of all others.
        let others = self.parts.iter().zip(&sums).take(self.parts.len() - 1);
        let others = others.filter(|(part, _)| part.has_descriptor());
        let id = serialization_id(self.names, others.map(|(_, crc)| *crc));
        if let Some(sum) = sums.last_mut() {
            *sum = crc32fast::hash(id.as_bytes());
        }

        let parts = || self.parts.iter().zip(sums.iter().copied());
        if let Some((part, crc)) = parts().skip(self.first).take(crcs.len()).next_back() {
            put_descriptor(&mut out, part, crc);
        }
        for (part, crc) in parts().skip(self.first + crcs.len()) {
            let content = part.content.as_deref().unwrap_or(id.as_bytes());
            put_whole(&mut out, part, content, crc);
        }
        for (part, crc) in parts() {
            put_central_header(&mut out, part, crc);
        }
        let count = self.parts.len() as u64;
        put_end(&mut out, count, self.directory, self.directory_len);
        Ok(out)
    }
}

/// Writes a part that is no storage: its header, data and descriptor.
fn put_whole(out: &mut Vec<u8>, part: &Part, content: &[u8], crc: u32) {
    put_local_header(out, part);
    out.extend_from_slice(content);
    put_descriptor(out, part, crc);
}

/// The three records behind a directory of so many entries and bytes.
pub(super) fn put_end(out: &mut Vec<u8>, count: u64, directory: u64, directory_len: u64) {
    let end64 = directory + directory_len;
    out.put_u32_le(END64);
    out.put_u64_le(44);
    out.put_u16_le(798);
    out.put_u16_le(45);
    out.put_u32_le(0);
    out.put_u32_le(0);
    out.put_u64_le(count);
    out.put_u64_le(count);
    out.put_u64_le(directory_len);
    out.put_u64_le(directory);

    out.put_u32_le(LOCATOR64);
    out.put_u32_le(0);
    out.put_u64_le(end64);
    out.put_u32_le(1);

    out.put_u32_le(END);
    out.put_u32_le(0);
    out.put_u16_le(count.min(0xFFFF) as u16);
    out.put_u16_le(count.min(0xFFFF) as u16);
    out.put_u32_le(low(directory_len));
    out.put_u32_le(low(directory));
    out.put_u16_le(0);
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
    zip64(header, len, 0).len() as u64
}

/// The zip64 field, if there is one. The `stored` size of a local header comes behind the data, and is 0 there.
fn zip64(header: u64, len: u64, stored: u64) -> Vec<u8> {
    let mut fields = Vec::new();
    if len >= MAX32 {
        fields.extend([len, stored]);
    }
    if header >= MAX32 {
        fields.push(header);
    }
    let mut out = Vec::new();
    if !fields.is_empty() {
        out.put_u16_le(1);
        out.put_u16_le(8 * fields.len() as u16);
        fields.into_iter().for_each(|v| out.put_u64_le(v));
    }
    out
}

/// Where data starts behind a local header at `header`: aligned by the filler field, whose own head takes four bytes.
fn data_offset(header: u64, name: u64, len: u64) -> u64 {
    (header + 30 + name + local_zip64_len(header, len) + 4).next_multiple_of(ALIGNMENT)
}

pub(super) fn put_local_header(out: &mut Vec<u8>, part: &Part) {
    let zip64 = zip64(part.header, part.len, 0);
    let extra = part.data - part.header - 30 - part.name.len() as u64;
    out.put_u32_le(LOCAL_HEADER);
    out.put_u16_le(0);
    out.put_u16_le(flags(part));
    out.extend_from_slice(&[0; 2 + 2 + 2 + 4 + 4 + 4]); // stored; no time, no date; sums and sizes come behind the data
    out.put_u16_le(part.name.len() as u16);
    out.put_u16_le(extra as u16);
    out.extend_from_slice(part.name.as_bytes());
    out.extend_from_slice(&zip64);
    let filler = extra - zip64.len() as u64 - 4;
    out.extend_from_slice(b"FB");
    out.put_u16_le(filler as u16);
    out.resize(out.len() + filler as usize, b'Z');
}

fn put_descriptor(out: &mut Vec<u8>, part: &Part, crc: u32) {
    if !part.has_descriptor() {
        return;
    }
    out.put_u32_le(DESCRIPTOR);
    out.put_u32_le(crc);
    if part.zip64() {
        out.put_u64_le(part.len);
        out.put_u64_le(part.len);
    } else {
        out.put_u32_le(part.len as u32);
        out.put_u32_le(part.len as u32);
    }
}

pub(super) fn put_central_header(out: &mut Vec<u8>, part: &Part, crc: u32) {
    let extra = part.central_extra();
    out.put_u32_le(CENTRAL_HEADER);
    out.put_u16_le(0);
    out.put_u16_le(0);
    out.put_u16_le(flags(part));
    out.put_u16_le(0);
    out.put_u32_le(0);
    out.put_u32_le(crc);
    out.put_u32_le(low(part.len));
    out.put_u32_le(low(part.len));
    out.put_u16_le(part.name.len() as u16);
    out.put_u16_le(extra.len() as u16);
    out.extend_from_slice(&[0; 2 + 2 + 2 + 4]); // no comment, first disk, no attributes
    out.put_u32_le(low(part.header));
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
