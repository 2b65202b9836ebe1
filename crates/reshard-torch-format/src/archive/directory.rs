use super::{
    CENTRAL_HEADER, DESCRIPTOR, END, END64, HAS_DESCRIPTOR, LOCAL_HEADER, LOCATOR64, MAX32,
};
use crate::{Error, Result};
use indexmap::IndexMap;
use std::ops::Range;

/// How the bytes of a record are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Not packed. torch writes only this.
    Stored,
    /// Deflate, as ordinary zip programs pack.
    Deflated,
    /// An unknown method, or an encrypted record. Such a record can be found, but not read.
    Unknown {
        /// Its number.
        method: u16,
        /// Whether it is encrypted.
        encrypted: bool,
    },
}

/// A record of an archive, as the central directory describes it. Positions count from the start of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Full name, prefix included: `archive/data/0`.
    pub name: Box<str>,
    /// How it is packed.
    pub method: Method,
    /// Where its local header starts.
    pub header: u64,
    /// Bytes it takes in the archive.
    pub stored: u64,
    /// Bytes of its content.
    pub size: u64,
    /// CRC-32 of its content, as the archive has it. [`checksum`](Self::checksum) says whether it means anything.
    pub crc32: u32,
    /// Whether the archive has checksums at all.
    summed: bool,
    /// Where the next record, or the directory, starts.
    limit: u64,
    /// Where its entry in the directory starts.
    pub(super) entry: u64,
}

impl Record {
    /// The range of bytes to pass to [`data_range`](Self::data_range).
    pub fn header_range(&self) -> Range<u64> {
        self.header..self.header + 30 + self.name.len() as u64
    }

    /// The range of the record's (packed) data. It needs the bytes of [`header_range`](Self::header_range). Only a descriptor lies
    /// between the data and the next record.
    ///
    /// # Errors
    /// [`Error::Archive`] if the local header is damaged or contradicts the directory, or if the data and its descriptor do not fill the
    /// space up to the next record. Otherwise [`Error::Unsupported`] if both say that the packing method is [unknown](Method::Unknown).
    pub fn data_range(&self, header: &[u8]) -> Result<Range<u64>> {
        let bad = |what: String| {
            Error::archive(
                self.header,
                format!("local header of {:?}: {what}", self.name),
            )
        };
        let mut f = Fields::new(header, self.header);
        if f.u32()? != LOCAL_HEADER {
            return Err(bad("its signature is wrong".into()));
        }
        f.skip(2)?;
        let flags = f.u16()?;
        let method = f.u16()?;
        f.skip(4)?;
        let (crc, stored, size) = (f.u32()?, f.u32()?, f.u32()?);
        let (name, extra) = (f.u16()?, f.u16()?);
        if method_of(method, flags) != self.method {
            return Err(bad("method or flags differ from the directory's".into()));
        }
        if usize::from(name) != self.name.len() || f.take(self.name.len())? != self.name.as_bytes()
        {
            return Err(bad("its name differs from the directory's".into()));
        }
        // If a descriptor follows the data, or with zip64, the fields here are zero or all ones.
        let differs = |here: u32, there: u64| {
            here != 0 && u64::from(here) != MAX32 && u64::from(here) != there
        };
        if differs(stored, self.stored)
            || differs(size, self.size)
            || differs(crc, u64::from(self.crc32))
        {
            return Err(bad("sizes or checksum differ from the directory's".into()));
        }
        let data = self.header + 30 + u64::from(name) + u64::from(extra);
        let Some(end) = data
            .checked_add(self.stored)
            .filter(|end| *end <= self.limit)
        else {
            return Err(bad(format!(
                "{} bytes of data do not fit before byte {}",
                self.stored, self.limit
            )));
        };
        match (flags & HAS_DESCRIPTOR != 0, self.limit - end) {
            (false, 0) | (true, 12 | 16 | 20 | 24) => self.is_known().map(|()| data..end),
            (_, gap) => Err(bad(format!(
                "{gap} bytes after the data, at {end}, belong to no record"
            ))),
        }
    }

    /// The range of bytes to pass to [`confirm`](Self::confirm): those after the [data](Self::data_range). Empty if there are none.
    pub fn behind(&self, data: &Range<u64>) -> Range<u64> {
        data.end..self.limit.min(data.end.saturating_add(24))
    }

    /// Compares the descriptor after the data, if there is one, with the directory. This confirms the position from the local header even
    /// if the data are not read as a whole and no checksum can confirm it.
    ///
    /// # Errors
    /// [`Error::Archive`] if the bytes are no such descriptor.
    pub fn confirm(&self, data: &Range<u64>, behind: &[u8]) -> Result<()> {
        let mut f = Fields::new(behind, data.end);
        // The signature is optional, and sizes have 4 or 8 bytes. Of a larger size the former have the lower half.
        let gap = self.gap(data);
        let signed = gap == 0 || matches!(gap, 12 | 20) || f.u32()? == DESCRIPTOR;
        let right = match gap {
            0 => true,
            12 | 16 => {
                [f.u32()?, f.u32()?, f.u32()?] == [self.crc32, self.stored as u32, self.size as u32]
            }
            _ => f.u32()? == self.crc32 && [f.u64()?, f.u64()?] == [self.stored, self.size],
        };
        if signed && right {
            return Ok(());
        }
        let name = &self.name;
        let what = format!("the data of {name:?} is not followed by what the directory says");
        Err(Error::archive(data.end, what))
    }

    /// The CRC-32 of its content. `None` in an archive that torch wrote without checksums
    /// (`torch.serialization.set_crc32_options(False)`): all its records have 0.
    pub fn checksum(&self) -> Option<u32> {
        self.summed.then_some(self.crc32)
    }

    /// Checks that its packing method is known.
    pub(super) fn is_known(&self) -> Result<()> {
        let Method::Unknown { method, encrypted } = self.method else {
            return Ok(());
        };
        let what = match encrypted {
            true => format!("record {:?}, which is encrypted,", self.name),
            false => format!("record {:?}, packed by zip method {method},", self.name),
        };
        Err(Error::unsupported(self.header, what))
    }

    /// Bytes between the data and the next record.
    pub(super) fn gap(&self, data: &Range<u64>) -> u64 {
        self.limit.saturating_sub(data.end)
    }
}

/// All records of an archive.
#[derive(Clone, Debug)]
pub struct Directory {
    records: IndexMap<Box<str>, Record>,
    prefix: Box<str>,
    offset: u64,
    /// Where its last entry ends.
    pub(super) behind: u64,
    /// Where the end record starts. Only a comment may follow it.
    pub(super) end: u64,
}

impl Directory {
    /// The folder that all records of a torch archive share. It is `archive` if torch wrote to an open file.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Records in the order of the directory.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &Record> {
        self.records.values()
    }

    /// Where the directory starts. All records end there.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// A record by its name without the prefix: `data.pkl`, `data/0`.
    pub fn find(&self, name: &str) -> Option<&Record> {
        self.records.get(&*format!("{}/{name}", self.prefix))
    }

    /// As [`find`](Self::find).
    ///
    /// # Errors
    /// [`Error::NoRecord`] with the names of existing records.
    pub fn get(&self, name: &str) -> Result<&Record> {
        self.find(name).ok_or_else(|| {
            let names: Vec<&str> = self.records.keys().map(|k| &**k).take(8).collect();
            let more = if self.records.len() > 8 { ", …" } else { "" };
            Error::NoRecord {
                name: name.into(),
                have: format!("{}{more}", names.join(", ")).into(),
            }
        })
    }

    /// The record with the version.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn version(&self) -> Result<&Record> {
        let newer = self.find(".data/version");
        newer.map_or_else(|| self.get("version"), Ok)
    }
}

/// The result of parsing the end of an archive.
#[derive(Clone, Debug)]
pub enum Tail {
    /// The directory.
    Done(Directory),
    /// More bytes are needed: this longer range, which also ends at the end of the archive.
    Need(Range<u64>),
}

/// The end record, its comment, and what zip programs add.
const SEARCH: u64 = 22 + 0xFFFF;
/// The most directories that are tried, because a comment may contain thousands of signatures.
const MAX_DIRECTORIES: u32 = 4;

impl Tail {
    /// The range to fetch first. One KiB contains the directory of an archive with up to six storages.
    pub fn first_range(archive_len: u64) -> Range<u64> {
        archive_len.saturating_sub(1024)..archive_len
    }

    /// Finds and reads the directory in the last bytes of an archive of `archive_len` bytes.
    ///
    /// # Errors
    /// [`Error::Archive`] if there is no directory (a truncated file), or if it is damaged: entries overlap, have the same name, have names
    /// that leave the archive, or have sizes that contradict each other.
    pub fn parse(archive_len: u64, tail: &[u8]) -> Result<Self> {
        let Some(start) = archive_len.checked_sub(tail.len() as u64) else {
            return Err(Error::archive(
                0,
                "more bytes were given than the archive has",
            ));
        };
        let tail = &Window { bytes: tail, start };
        let searched = tail.bytes.len().saturating_sub(SEARCH as usize);
        // The fixed part of the end record takes 22 bytes, so it starts no later.
        let windows = tail.bytes.windows(22).enumerate().skip(searched).rev();
        let mut first_error = None;
        let mut directories = 0;
        for (at, window) in windows {
            if window.starts_with(&END.to_le_bytes()) {
                let end = start + at as u64;
                let found = Self::at_end(archive_len, tail, end).and_then(|found| match found {
                    Ok(found) => {
                        directories += 1;
                        found.directory(tail, end).map(Self::Done)
                    }
                    Err(need) => Ok(Self::Need(need)),
                });
                match found {
                    Ok(found) => return Ok(found),
                    // A stray signature in trailing bytes. The true one comes before it.
                    Err(e) if directories == MAX_DIRECTORIES => {
                        return Err(first_error.unwrap_or(e));
                    }
                    Err(e) => first_error = first_error.or(Some(e)),
                }
            }
        }
        let longer = archive_len.saturating_sub(SEARCH);
        match first_error {
            Some(e) if start <= longer => Err(e),
            None if start <= longer => Err(Error::archive(
                archive_len,
                "there is no end of a zip directory; the file is cut short or not an archive",
            )),
            _ => Ok(Self::Need(longer..archive_len)),
        }
    }

    /// Reads the end record, or returns the range that is needed for it.
    fn at_end(archive_len: u64, tail: &Window<'_>, end: u64) -> Result<Result<End, Range<u64>>> {
        let mut f = tail.fields(end, 22)?;
        f.skip(4)?;
        let (disk, first_disk) = (f.u16()?, f.u16()?);
        let (here, count) = (u64::from(f.u16()?), u64::from(f.u16()?));
        let (len, offset) = (u64::from(f.u32()?), u64::from(f.u32()?));
        let mut found = End {
            count,
            len,
            offset,
            before: end,
        };

        if (disk, first_disk) != (0, 0) || here != count {
            return Err(Error::archive(end, "the archive is one of several parts"));
        }

        // A locator just before the end record means that the numbers of the zip64 record count instead.
        if let Some(locator) = end.checked_sub(20) {
            if locator < tail.start {
                return Ok(Err(locator..archive_len));
            }
            let mut f = tail.fields(locator, 20)?;
            if f.u32()? == LOCATOR64 {
                f.skip(4)?;
                let at = f.u64()?;

                if at.checked_add(56).is_none_or(|e| e > locator) {
                    return Err(Error::archive(
                        locator,
                        "the zip64 end record does not lie before its locator",
                    ));
                }
                if at < tail.start {
                    return Ok(Err(at..archive_len));
                }
                found.read64(tail.fields(at, 56)?, at)?;
            }
        }

        // The directory lies before its end records. An entry takes 46 bytes at least, so a larger count is damage.
        if found
            .offset
            .checked_add(found.len)
            .is_none_or(|e| e > found.before)
            || found.count > found.len / 46
        {
            let what = format!(
                "a directory of {} bytes at {} does not lie before it",
                found.len, found.offset
            );
            return Err(Error::archive(end, what));
        }

        // The caller fetches the missing bytes only after everything that could be checked was checked.
        if found.offset < tail.start {
            return Ok(Err(found.offset..archive_len));
        }
        Ok(Ok(found))
    }
}

struct End {
    count: u64,
    len: u64,
    offset: u64,
    /// Where the end records start.
    before: u64,
}

impl End {
    fn read64(&mut self, mut f: Fields<'_>, at: u64) -> Result<()> {
        if f.u32()? != END64 {
            return Err(Error::archive(
                at,
                "the zip64 end record's signature is wrong",
            ));
        }
        f.skip(8 + 2 + 2)?;
        let (disk, first_disk) = (f.u32()?, f.u32()?);
        let (here, count, len, offset) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?);
        if (disk, first_disk) != (0, 0) || here != count {
            return Err(Error::archive(at, "the archive is one of several parts"));
        }
        let agree = |small: u64, max: u64, large: u64| small == max || small == large;
        if !agree(self.count, 0xFFFF, count)
            || !agree(self.len, MAX32, len)
            || !agree(self.offset, MAX32, offset)
        {
            return Err(Error::archive(
                at,
                "the two end records contradict each other",
            ));
        }
        *self = Self {
            count,
            len,
            offset,
            before: at,
        };
        Ok(())
    }

    fn directory(&self, tail: &Window<'_>, end: u64) -> Result<Directory> {
        let mut f = tail.fields(self.offset, self.len)?;
        let records = (0..self.count).map(|_| entry(&mut f, self.offset));
        let mut records = records.collect::<Result<Vec<_>>>()?;

        // A longer directory has entries that the end record does not count, so programs would disagree about what is
        // there.
        if f.at != f.bytes.len() {
            return Err(Error::archive(
                f.offset(),
                "the directory is longer than its entries",
            ));
        }
        set_limits(&mut records, self.offset)?;
        let summed = records.iter().any(|r| r.size > 0 && r.crc32 != 0);
        records.iter_mut().for_each(|r| r.summed = summed);

        // torch puts all records into one folder, whose name is that of the first record's.
        let first = records.first().map(|r| &r.name);
        let no_folder = match first {
            Some(_) => "its records lie in no folder, so torch.save has not written it",
            None => "the archive is empty",
        };
        let prefix = first.and_then(|name| name.split_once('/'));
        let prefix = prefix.map(|(prefix, _)| Box::from(prefix));
        let prefix = prefix.ok_or_else(|| Error::archive(self.offset, no_folder))?;

        let mut map = IndexMap::with_capacity(records.len());
        for r in records {
            let at = r.header;
            if let Some(twice) = map.insert(r.name.clone(), r) {
                return Err(Error::archive(
                    at,
                    format!("record {:?} occurs twice", twice.name),
                ));
            }
        }
        Ok(Directory {
            records: map,
            prefix,
            offset: self.offset,
            behind: self.offset + self.len,
            end,
        })
    }
}

fn method_of(method: u16, flags: u16) -> Method {
    match (method, flags & 1 != 0) {
        (0, false) => Method::Stored,
        (8, false) => Method::Deflated,
        (_, encrypted) => Method::Unknown { method, encrypted },
    }
}

/// An entry of the central directory, which starts at `end`.
fn entry(f: &mut Fields<'_>, end: u64) -> Result<Record> {
    let at = f.offset();
    let bad = |what: String| Error::archive(at, what);
    if f.u32()? != CENTRAL_HEADER {
        return Err(bad("the signature of a directory entry is wrong".into()));
    }
    f.skip(4)?;
    let (flags, method) = (f.u16()?, f.u16()?);
    f.skip(4)?;
    let crc32 = f.u32()?;
    let (mut stored, mut size) = (u64::from(f.u32()?), u64::from(f.u32()?));
    let (name, extra, comment) = (f.u16()?, f.u16()?, f.u16()?);
    let disk = f.u16()?;
    f.skip(2 + 4)?;
    let mut header = u64::from(f.u32()?);
    let name = f.take(name.into())?;
    let mut extra = Fields::new(f.take(extra.into())?, at);
    f.skip(comment.into())?;

    let name: Box<str> = std::str::from_utf8(name)
        .map_err(|_| bad("the name of a record is not UTF-8".into()))?
        .into();

    // A caller may unpack by name, so a name must not lead out of a folder.
    let stays = !name.is_empty()
        && !name.starts_with('/')
        && !name.contains(['\\', '\0'])
        && name.split('/').all(|part| part != ".." && part != ".");
    if !stays {
        return Err(bad(format!(
            "record {name:?} would leave the archive's folder"
        )));
    }

    // The zip64 field has only those numbers that did not fit above, in this order.
    while extra.at + 4 <= extra.bytes.len() {
        let (id, len) = (extra.u16()?, extra.u16()?);
        let mut field = Fields::new(extra.take(len.into())?, at);
        if id == 1 {
            for v in [&mut size, &mut stored, &mut header] {
                if *v == MAX32 {
                    *v = field.u64()?;
                }
            }
        }
    }

    let method = method_of(method, flags);
    if disk != 0 {
        return Err(bad(format!(
            "record {name:?} lies in another part of a split archive"
        )));
    }
    if method == Method::Stored && stored != size {
        return Err(bad(format!(
            "record {name:?} is not packed, but has the sizes {stored} and {size}"
        )));
    }

    // Only now are the sizes final. Every record must end before the directory.
    let fits = header
        .checked_add(30 + name.len() as u64)
        .and_then(|d| d.checked_add(stored))
        .is_some_and(|e| e <= end);
    if !fits {
        return Err(bad(format!(
            "record {name:?} of {stored} bytes at {header} does not lie before the directory"
        )));
    }
    Ok(Record {
        name,
        method,
        header,
        stored,
        size,
        crc32,
        summed: true,
        limit: end,
        entry: at,
    })
}

/// Records may lie in any order, but may not overlap.
fn set_limits(records: &mut [Record], end: u64) -> Result<()> {
    let mut order: Vec<&mut Record> = records.iter_mut().collect();
    order.sort_unstable_by_key(|r| std::cmp::Reverse(r.header));
    let mut limit = end;
    for r in order {
        if r.header + 30 + r.name.len() as u64 + r.stored > limit {
            return Err(Error::archive(
                r.header,
                format!("record {:?} overlaps the one after it", r.name),
            ));
        }
        r.limit = limit;
        limit = r.header;
    }
    Ok(())
}

/// Part of an archive.
struct Window<'a> {
    bytes: &'a [u8],
    start: u64,
}

impl<'a> Window<'a> {
    fn fields(&self, at: u64, len: u64) -> Result<Fields<'a>> {
        let part = at
            .checked_sub(self.start)
            .and_then(|i| usize::try_from(i).ok())
            .zip(usize::try_from(len).ok())
            .and_then(|(i, n)| self.bytes.get(i..)?.get(..n));
        match part {
            Some(bytes) => Ok(Fields::new(bytes, at)),
            None => Err(Error::archive(
                at,
                format!("{len} bytes are expected there, but the archive is shorter"),
            )),
        }
    }
}

/// Little-endian fields, one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { bytes, at: 0, base }
    }

    fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.bytes.get(self.at..).and_then(|b| b.get(..n)) {
            Some(b) => {
                self.at += n;
                Ok(b)
            }
            None => Err(Error::archive(
                self.offset(),
                "a header of the archive is cut short",
            )),
        }
    }

    fn skip(&mut self, n: usize) -> Result<()> {
        self.take(n).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
