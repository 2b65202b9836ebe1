use crate::{Name, Result, StorageError, Store, StoreExt};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{fmt, io, ops::Range, sync::Arc};

/// What "saved" promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// In the page cache: survives a crash of the program, not of the machine.
    Process,
    /// `fsync` of every file and of every directory that names it: survives a crash of the machine.
    #[default]
    Machine,
}

/// How many bytes an extent gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many. The file can be preallocated, and several threads write it.
    Exact(u64),
    /// Known when they are written, since they are compressed on the way. A file with such an extent is written in order.
    Unknown {
        /// Not more than this.
        at_most: u64,
    },
}

impl Length {
    /// The most bytes that it can be.
    pub fn at_most(self) -> u64 {
        match self {
            Self::Exact(bytes) | Self::Unknown { at_most: bytes } => bytes,
        }
    }

    /// Whether an extent of this length may have given so many bytes when it ends.
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

/// One stored item of a file, or a part of one: its bytes are pulled in order, and may be hashed or compressed while they pass.
///
/// Blocks of some hundred KiB are best: they are still in cache when they are written. They are written as they are,
/// without a copy; small ones are put into one call.
pub trait Extent: Send {
    /// Bytes that the blocks give in all. Always the same answer.
    fn length(&self) -> Length;
    /// The block that comes next; `None` at the end. After an error or the end it is not asked again.
    fn next_block(&mut self) -> Option<io::Result<Bytes>>;
    /// What has to be known of these bytes once they are written, such as a checksum or their length before compression. Asked
    /// once, after the last block. Whoever wrote the file gets it back in [`WrittenExtent`].
    fn receipt(&mut self) -> Bytes {
        Bytes::new()
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

/// What a file is made of.
pub enum Source {
    /// These follow each other without gaps.
    Extents(Vec<Box<dyn Extent>>),
    /// A file of another place, unchanged. A store brings it over as cheaply as it can: by a hard link, by a copy that the server
    /// makes, or by reading and writing. With a hard link both are one file, so neither may be written to in place.
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
    /// Where.
    pub name: Name,
    /// What.
    pub source: Source,
}

impl FileBody {
    /// A file of extents, in order.
    pub fn new(name: Name, extents: Vec<Box<dyn Extent>>) -> Self {
        Self { name, source: Source::Extents(extents) }
    }

    /// A file of bytes in memory.
    pub fn from_bytes(name: Name, bytes: Bytes) -> Self {
        Self::new(name, vec![Box::new(bytes)])
    }

    /// A file that lies in another place already.
    pub fn copy_of(name: Name, store: Arc<dyn Store>, of: Name) -> Self {
        Self { name, source: Source::CopyOf { store, name: of } }
    }

    /// Its length, as far as it is known before the file is written; nothing is known of a copy. `None` when it does not fit 64
    /// bits.
    pub fn length(&self) -> Option<Length> {
        let Source::Extents(extents) = &self.source else {
            return Some(Length::Unknown { at_most: u64::MAX });
        };
        let lengths = extents.iter().map(|e| e.length());
        let most = lengths.clone().try_fold(0u64, |sum, length| sum.checked_add(length.at_most()))?;
        let exact = lengths.into_iter().all(|length| matches!(length, Length::Exact(_)));
        Some(if exact { Length::Exact(most) } else { Length::Unknown { at_most: most } })
    }

    /// Its name and extents, for stores that hold what is written in memory: what it is a copy of is read as a whole.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn into_extents(self) -> Result<(Name, Vec<Box<dyn Extent>>)> {
        let extents: Vec<Box<dyn Extent>> = match self.source {
            Source::Extents(extents) => extents,
            Source::CopyOf { store, name } => {
                vec![Box::new(store.read(&name, 0..whole(&*store, &name).await?).await?)]
            }
        };
        Ok((self.name, extents))
    }
}

/// The length of a file that has to be there.
pub(crate) async fn whole(store: &dyn Store, name: &Name) -> Result<u64> {
    let missing = || StorageError::NotFound { path: format!("{}/{name}", store.url()) };
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
    /// Where in its file.
    pub range: Range<u64>,
    /// What [`Extent::receipt`] gave.
    pub receipt: Bytes,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Which.
    pub name: Name,
    /// Its length.
    pub bytes: u64,
    /// Its extents, in their order; none of a copy.
    pub extents: Vec<WrittenExtent>,
}

impl Written {
    /// What a version has to hold when it is committed.
    pub fn entry(&self) -> Entry {
        Entry { name: self.name.clone(), bytes: self.bytes }
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
    /// That it lies in a version with its length, before that is committed. `found` is the length of what lies there; `None` when
    /// nothing does.
    ///
    /// # Errors
    /// [`StorageError::Incomplete`].
    pub fn check(&self, version: impl fmt::Display, found: Option<u64>) -> Result<()> {
        let Self { name, bytes } = self;
        let what = match found {
            Some(n) if n == *bytes => return Ok(()),
            Some(n) => format!("{name} was written with {bytes} bytes and has {n} now"),
            None => format!("{name}, which was written with {bytes} bytes, is not there any more"),
        };
        Err(StorageError::Incomplete { path: version.to_string(), what })
    }
}

type Report = dyn Fn(u64) + Send + Sync;

/// Somebody who wants to know how many bytes have moved; called from I/O threads, some MiB at a time at most.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Report>>);

impl Progress {
    /// Calls `report` with the bytes that moved since its last call.
    pub fn new(report: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    /// Nobody.
    pub fn none() -> Self {
        Self(None)
    }

    /// Says that so many more bytes have moved.
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
