use crate::{Name, Result, StorageError, Store, StoreExt};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::{fmt, io, ops::Range, sync::Arc};

/// What a finished save survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The data are in the page cache. They survive a crash of the program, but not of the machine.
    Process,
    /// Every file, and every directory that names it, is fsynced. The data survive a crash of the machine.
    #[default]
    Machine,
}

/// The length of an extent in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The exact length is known. So the file can be preallocated, and several threads can write it.
    Exact(u64),
    /// The length is known only after writing, because the bytes are compressed on the way. A file with such an extent is
    /// written in order.
    Unknown {
        /// The maximal length.
        at_most: u64,
    },
}

impl Length {
    /// The maximal number of bytes.
    pub fn at_most(self) -> u64 {
        match self {
            Self::Exact(bytes) | Self::Unknown { at_most: bytes } => bytes,
        }
    }

    /// Whether an extent of this length may yield so many bytes in all.
    pub fn allows(self, bytes: u64) -> bool {
        match self {
            Self::Exact(exact) => bytes == exact,
            Self::Unknown { at_most } => bytes <= at_most,
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(bytes) => write!(f, "{bytes}"),
            Self::Unknown { at_most } => write!(f, "at most {at_most}"),
        }
    }
}

/// One stored item of a file, or a part of one. Its bytes are pulled in order. The extent may hash or compress them on the way.
///
/// Blocks of some hundred KiB are best, because they are still in the cache when they are written. Blocks are written without
/// a copy; several small blocks go into one call.
pub trait Extent: Send {
    /// The total length of the blocks. It must always return the same.
    fn length(&self) -> Length;
    /// The next block; `None` at the end. It is not called again after an error or the end.
    fn next_block(&mut self) -> Option<io::Result<Bytes>>;
    /// What the format needs to know about these bytes after writing, such as a checksum or the length before compression. It is
    /// called once, after the last block. [`WrittenExtent`] returns it to the writer of the file.
    fn receipt(&mut self) -> Bytes {
        Bytes::new()
    }
    /// Whether [`crc32`](Self::crc32) will return a checksum. Then nobody else needs to compute one.
    fn has_crc32(&self) -> bool {
        false
    }
    /// The CRC-32 of all blocks, after the last one, if the extent computes it anyway. It is called before the receipt.
    fn crc32(&self) -> Option<u32> {
        None
    }
}

/// Bytes that are in memory already.
impl Extent for Bytes {
    fn length(&self) -> Length {
        Length::Exact(self.len() as u64)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let all = std::mem::take(self);
        (!all.is_empty()).then_some(Ok(all))
    }
}

/// An extent whose checksum is computed while it is pulled.
struct Summed {
    inner: Box<dyn Extent>,
    crc: crc32fast::Hasher,
}

#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner extent
impl Extent for Summed {
    fn length(&self) -> Length {
        self.inner.length()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.inner.next_block()?;
        if let Ok(block) = &block {
            self.crc.update(block);
        }
        Some(block)
    }

    fn receipt(&mut self) -> Bytes {
        self.inner.receipt()
    }

    fn has_crc32(&self) -> bool {
        true
    }

    fn crc32(&self) -> Option<u32> {
        Some(self.crc.clone().finalize())
    }
}

/// The contents of a file to write.
pub enum Source {
    /// Extents, which follow each other without gaps.
    Extents(Vec<Box<dyn Extent>>),
    /// An unchanged file of another place. A store copies it as cheaply as it can: by a hard link, by a copy on the server, or
    /// by reading and writing. A hard link makes both names one file, so nobody may write into it in place.
    CopyOf {
        /// Where the file lies.
        store: Arc<dyn Store>,
        /// Its name there.
        name: Name,
    },
}

/// A file to write.
#[derive(Debug)]
pub struct FileBody {
    /// Its name.
    pub name: Name,
    /// Its contents.
    pub source: Source,
}

impl FileBody {
    /// A file of extents, in order.
    pub fn new(name: Name, extents: Vec<Box<dyn Extent>>) -> Self {
        Self {
            name,
            source: Source::Extents(extents),
        }
    }

    /// A file of bytes in memory.
    pub fn from_bytes(name: Name, bytes: Bytes) -> Self {
        Self::new(name, vec![Box::new(bytes)])
    }

    /// A copy of a file in another place.
    pub fn copy_of(name: Name, store: Arc<dyn Store>, of: Name) -> Self {
        Self {
            name,
            source: Source::CopyOf { store, name: of },
        }
    }

    /// The same file, in which each extent has a [checksum](Extent::crc32): its own, or one that is computed while it is pulled.
    #[must_use]
    pub fn with_checksums(self) -> Self {
        let Source::Extents(extents) = self.source else {
            return self;
        };
        let with = |inner: Box<dyn Extent>| match inner.has_crc32() {
            true => inner,
            false => Box::new(Summed {
                inner,
                crc: crc32fast::Hasher::new(),
            }),
        };
        Self::new(self.name, extents.into_iter().map(with).collect())
    }

    /// Its length, as far as it is known before writing. The length of a copy is unknown. `None` if it does not fit 64 bits.
    pub fn length(&self) -> Option<Length> {
        let Source::Extents(extents) = &self.source else {
            return Some(Length::Unknown { at_most: u64::MAX });
        };
        let lengths = extents.iter().map(|e| e.length());
        let most = lengths
            .clone()
            .try_fold(0u64, |sum, length| sum.checked_add(length.at_most()))?;
        let exact = lengths
            .into_iter()
            .all(|length| matches!(length, Length::Exact(_)));
        Some(if exact {
            Length::Exact(most)
        } else {
            Length::Unknown { at_most: most }
        })
    }

    /// Its name and extents, for stores that keep files in memory. If it is a copy, the original is read as a whole.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn into_extents(self) -> Result<(Name, Vec<Box<dyn Extent>>)> {
        let extents: Vec<Box<dyn Extent>> = match self.source {
            Source::Extents(extents) => extents,
            Source::CopyOf { store, name } => {
                vec![Box::new(
                    store.read(&name, 0..whole(&*store, &name).await?).await?,
                )]
            }
        };
        Ok((self.name, extents))
    }

    /// Its bytes, for stores that hand whole files to something else, and what [`Transaction::write`](crate::Transaction::write) has to return of it. The file is in
    /// memory as a whole. If it is a copy, the original is read.
    ///
    /// ```
    /// use reshard_storage::{FileBody, Name};
    /// # fn main() -> Result<(), reshard_storage::StorageError> {
    /// let body = FileBody::from_bytes(Name::new("a")?, (&b"abc"[..]).into());
    /// let (written, bytes) = futures::executor::block_on(body.into_bytes())?;
    /// assert_eq!((written.name.as_str(), written.bytes, &bytes[..]), ("a", 3, &b"abc"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ExtentLength`](StorageError::ExtentLength) if an extent has another length than it promised, [`Source`](StorageError::Source) if it fails; those of
    /// reading.
    pub async fn into_bytes(self) -> Result<(Written, Bytes)> {
        let (name, source) = self.into_extents().await?;
        let (mut all, mut extents) = (BytesMut::new(), Vec::new());
        for extent in source {
            let mut extent = ExtentReader::new(extent, all.len() as u64);
            while let Some(block) = extent.next_block(&name)? {
                all.extend_from_slice(&block);
            }
            extents.push(extent.finish());
        }
        let written = Written {
            name,
            bytes: all.len() as u64,
            extents,
        };
        Ok((written, all.freeze()))
    }
}

/// The length of a file that must exist.
pub(crate) async fn whole(store: &dyn Store, name: &Name) -> Result<u64> {
    let missing = || StorageError::NotFound {
        path: format!("{}/{name}", store.url()),
    };
    store.len(name).await?.ok_or_else(missing)
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extents(extents) => write!(f, "{} extents", extents.len()),
            Self::CopyOf { store, name } => write!(f, "a copy of {name} in {}", store.url()),
        }
    }
}

/// An extent that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenExtent {
    /// Its range in the file.
    pub range: Range<u64>,
    /// The result of [`Extent::receipt`].
    pub receipt: Bytes,
    /// The result of [`Extent::crc32`].
    pub crc32: Option<u32>,
}

impl WrittenExtent {
    /// Describes an extent whose last block was pulled, and which lies in this range of its file.
    pub fn of(extent: &mut dyn Extent, range: Range<u64>) -> Self {
        Self {
            range,
            crc32: extent.crc32(),
            receipt: extent.receipt(),
        }
    }
}

/// Pulls the blocks of an extent, and checks that it gives as many bytes as it promised.
pub struct ExtentReader {
    extent: Box<dyn Extent>,
    want: Length,
    offset: u64,
    got: u64,
}

impl ExtentReader {
    /// Begins with an extent, which lies at byte `offset` of its file.
    pub fn new(extent: Box<dyn Extent>, offset: u64) -> Self {
        Self {
            want: extent.length(),
            extent,
            offset,
            got: 0,
        }
    }

    /// The next block; `None` at the end. `file` is for errors.
    ///
    /// # Errors
    /// [`ExtentLength`](StorageError::ExtentLength) if the extent has another length than it promised: the block that is too
    /// much is not returned. [`Source`](StorageError::Source) if it fails.
    pub fn next_block(&mut self, file: &Name) -> Result<Option<Bytes>> {
        let block = self.extent.next_block().transpose();
        let block = block.map_err(|source| StorageError::Source {
            name: file.clone(),
            offset: self.offset + self.got,
            source,
        })?;
        self.got += block.as_ref().map_or(0, |block| block.len() as u64);
        // What gives more than it promised may never end.
        let is_right = match block {
            Some(_) => self.got <= self.want.at_most(),
            None => self.want.allows(self.got),
        };
        match is_right {
            true => Ok(block),
            false => Err(StorageError::ExtentLength {
                name: file.clone(),
                offset: self.offset,
                want: self.want,
                got: self.got,
            }),
        }
    }

    /// Describes the extent, whose last block was pulled.
    pub fn finish(mut self) -> WrittenExtent {
        WrittenExtent::of(&mut *self.extent, self.offset..self.offset + self.got)
    }
}

impl fmt::Debug for ExtentReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes of an extent", self.got, self.want)
    }
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Which.
    pub name: Name,
    /// Its length.
    pub bytes: u64,
    /// Its extents, in order. A copy has none.
    pub extents: Vec<WrittenExtent>,
}

impl Written {
    /// The entry that a version must contain when it is committed.
    pub fn entry(&self) -> Entry {
        Entry {
            name: self.name.clone(),
            bytes: self.bytes,
        }
    }
}

/// A file that a store holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// Which.
    pub name: Name,
    /// Its length.
    pub bytes: u64,
}

impl Entry {
    /// Checks, before a commit, that the version contains this file with its length. `found` is the length of the file there, or
    /// `None` if there is none.
    ///
    /// # Errors
    /// [`StorageError::Incomplete`].
    pub fn check(&self, version: impl fmt::Display, found: Option<u64>) -> Result<()> {
        let Self { name, bytes } = self;
        let what = match found {
            Some(n) if n == *bytes => return Ok(()),
            Some(n) => format!("{name} was written with {bytes} bytes, but has {n} now"),
            None => format!("{name}, which was written with {bytes} bytes, is missing now"),
        };
        Err(StorageError::Incomplete {
            path: version.to_string(),
            what,
        })
    }
}

type Report = dyn Fn(u64) + Send + Sync;

/// A callback for progress. I/O threads call it with the number of bytes that have moved, at most some MiB at a time.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Report>>);

impl Progress {
    /// Calls `report` with the number of bytes that moved since its last call.
    pub fn new(report: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    /// No callback.
    pub fn none() -> Self {
        Self(None)
    }

    /// Reports that so many more bytes have moved.
    pub fn add(&self, bytes: u64) {
        if let Some(report) = &self.0 {
            report(bytes);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.0.is_some()).finish()
    }
}
