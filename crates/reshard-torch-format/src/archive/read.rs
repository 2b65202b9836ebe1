use super::{Directory, Framing, Inflate, Method, Record, Tail, Unconfirmed, unpack};
use crate::{Budget, Error, Limits, Result};
use bytes::Bytes;

/// Whether checksums are compared. PyTorch itself never does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Compare the CRC-32 of every record that is read.
    #[default]
    Crc,
    /// Check only the structure.
    No,
}

impl From<bool> for Verify {
    fn from(verify: bool) -> Self {
        if verify { Self::Crc } else { Self::No }
    }
}

/// Order of the bytes of each element in the storages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first: the order of every usual machine, and of archives that don't name their order.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// Parses the record `byteorder`. Pass `None` if the archive has no such record.
    ///
    /// # Errors
    /// [`Error::Archive`] if it is neither `little` nor `big`.
    pub fn parse(record: Option<&[u8]>) -> Result<Self> {
        match record {
            None | Some(b"little") => Ok(Self::Little),
            Some(b"big") => Ok(Self::Big),
            Some(other) => {
                let text = String::from_utf8_lossy(other.get(..20).unwrap_or(other)).into_owned();
                Err(Error::archive(
                    0,
                    format!("its byte order is {text:?}, neither little nor big"),
                ))
            }
        }
    }
}

/// The maximal size of the records with the version and the byte order.
const MAX_WORD: u64 = 1000;

/// Checks the version in a record `version`, as PyTorch does.
///
/// # Errors
/// [`Error::Archive`] if it is no number; [`Error::Unsupported`] for a version that PyTorch 2.15 doesn't know.
pub fn check_version(record: &Record, content: &[u8]) -> Result<()> {
    let number = std::str::from_utf8(content).map(|t| t.trim().parse::<u64>());
    match number {
        Ok(Ok(1..=10)) => Ok(()),
        Ok(Ok(n)) => {
            let what = format!("version {n} of torch's archives (only 1 to 10 are known)");
            Err(Error::unsupported(record.header, what))
        }
        _ => Err(Error::archive(record.header, "its version is not a number")),
    }
}

/// A whole archive in memory. Records that are not packed are returned without a copy.
///
/// ```
/// use reshard_torch_format::archive::{Archive, ArchiveOptions, Verify, write_archive};
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let file = write_archive(b"\x80\x02N.", &[b"abc"], &ArchiveOptions::default())?;
/// let archive = Archive::open(file.into(), &Default::default())?;
/// assert_eq!(archive.read("data/0", Verify::Crc)?, &b"abc"[..]);
/// assert!(archive.read("data/1", Verify::Crc).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Archive {
    bytes: Bytes,
    directory: Directory,
    limits: Limits,
}

impl Archive {
    /// Finds the directory, and checks the archive's version as PyTorch does.
    ///
    /// # Errors
    /// [`Error::Archive`] and [`Error::NoRecord`] as in [`Tail::parse`]; [`Error::Unsupported`] for a version that PyTorch
    /// 2.15 doesn't know.
    pub fn open(bytes: Bytes, limits: &Limits) -> Result<Self> {
        let len = bytes.len() as u64;
        let directory = match Tail::parse(len, &bytes)? {
            Tail::Done(directory) => directory,
            Tail::Need(_) => return Err(Error::archive(len, "its directory lies outside of it")),
        };
        let archive = Self {
            bytes,
            directory,
            limits: *limits,
        };
        let version = archive.directory.version()?;
        check_version(version, &archive.word(version)?)?;
        Ok(archive)
    }

    /// All records.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The bytes of the archive.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The content of a record, named without the prefix.
    ///
    /// # Errors
    /// [`Error::NoRecord`], [`Error::Archive`], [`Error::Checksum`] (unless `Verify::No`), and [`Error::Limit`] if a packed record unpacks
    /// to more than [`Limits`] allow for this archive.
    pub fn read(&self, name: &str, verify: Verify) -> Result<Bytes> {
        self.content(self.directory.get(name)?, verify)
    }

    /// The content of a record of this archive.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn content(&self, record: &Record, verify: Verify) -> Result<Bytes> {
        self.content_within(record, verify, &mut self.budget())
    }

    /// The memory that the parsed form of this archive may take.
    pub(crate) fn budget(&self) -> Budget {
        self.limits.budget(self.bytes.len() as u64)
    }

    /// As [`content`](Self::content), but the memory of unpacked bytes is drawn from the budget.
    pub(crate) fn content_within(
        &self,
        record: &Record,
        verify: Verify,
        budget: &mut Budget,
    ) -> Result<Bytes> {
        let data = self.data(record)?;
        if record.method != Method::Stored && record.size <= self.limits.unpacked {
            budget
                .take(record.size)
                .map_err(|r| r.at(record.header as usize))?;
        }
        unpack(
            record,
            self.bytes.slice_ref(data),
            self.limits.unpacked,
            verify,
        )
    }

    /// The (packed) data of a record.
    fn data(&self, record: &Record) -> Result<&[u8]> {
        let data = record.data_range(self.slice(record.header_range())?)?;
        record.confirm(&data, self.slice(record.behind(&data))?)?;
        self.slice(data)
    }

    /// Compares every record with its checksum. A packed record takes the memory of one block. Even if the packing method of one record is
    /// unknown, all others are checked, because they may be damaged.
    ///
    /// # Errors
    /// Those of [`content`](Self::content), with damage before unknown methods. Errors of `permits`, which is called before a record is
    /// unpacked.
    pub fn check_records(&self, mut permits: impl FnMut(&Record) -> Result<()>) -> Result<()> {
        let mut not_known = Ok(());
        for record in self.directory.records() {
            match permits(record).and_then(|()| self.check(record)) {
                Err(e @ Error::Unsupported { .. }) => not_known = not_known.and(Err(e)),
                checked => checked?,
            }
        }
        not_known
    }

    fn check(&self, record: &Record) -> Result<()> {
        if record.method == Method::Stored {
            return self.content(record, Verify::Crc).map(drop);
        }
        Inflate::new(record, self.data(record)?)?.check()
    }

    /// Compares what no checksum covers with what `torch.save` writes, and counts what can't be confirmed ([`Framing`]). It does not look at the
    /// contents of records: [`check_records`](Self::check_records) does.
    ///
    /// # Errors
    /// [`Error::Archive`].
    pub fn check_framing(&self) -> Result<Unconfirmed> {
        let len = self.bytes.len() as u64;
        let tail = self.slice(self.directory.offset()..len)?;
        let mut frame = Framing::new(&self.directory, len, tail);
        for record in self.directory.records() {
            let data = record.data_range(self.slice(record.header_range())?)?;
            frame.header(record, self.slice(record.header..data.start)?);
        }
        frame.finish()
    }

    /// The content of a record of a few letters.
    fn word(&self, record: &Record) -> Result<Bytes> {
        if record.size > MAX_WORD {
            let what = format!(
                "{:?} has {} bytes, and at most {MAX_WORD} are possible",
                record.name, record.size
            );
            return Err(Error::archive(record.header, what));
        }
        self.content(record, Verify::Crc)
    }

    /// Order of the bytes in its storages.
    ///
    /// # Errors
    /// As [`ByteOrder::parse`].
    pub fn byte_order(&self) -> Result<ByteOrder> {
        match self.directory.find("byteorder") {
            None => Ok(ByteOrder::Little),
            Some(r) => ByteOrder::parse(Some(&self.word(r)?)),
        }
    }

    fn slice(&self, range: std::ops::Range<u64>) -> Result<&[u8]> {
        self.bytes
            .get(range.start as usize..range.end as usize)
            .ok_or_else(|| Error::archive(range.start, "the archive is cut short"))
    }
}
