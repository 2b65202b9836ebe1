use crate::{Name, Result, StorageError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{fmt, io, sync::Arc};

/// What "saved" promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// In the page cache: survives a crash of the program, not of the machine.
    Process,
    /// `fsync` of every file and of every directory that names it: survives a crash of the machine.
    #[default]
    Machine,
}

/// One stored item of a file: its exact length is known before, its bytes are pulled in order, and may be hashed while
/// they pass.
///
/// Blocks of some hundred KiB are best: they are still in cache when they are written. They are written as they are,
/// without a copy; small ones are gathered into one call.
pub trait Extent: Send {
    /// Bytes that the blocks give in all.
    fn len(&self) -> u64;
    /// The block that comes next; `None` at the end. After an error or the end it is not asked again.
    fn next_block(&mut self) -> Option<io::Result<Bytes>>;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes that are in memory already.
impl Extent for Bytes {
    fn len(&self) -> u64 {
        (**self).len() as u64
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let all = std::mem::take(self);
        (!all.is_empty()).then_some(Ok(all))
    }
}

/// A file to write: its extents follow each other without gaps.
pub struct FileBody {
    /// Where.
    pub name: Name,
    /// What, in order.
    pub extents: Vec<Box<dyn Extent>>,
}

impl FileBody {
    /// A file of bytes in memory.
    pub fn from_bytes(name: Name, bytes: Bytes) -> Self {
        Self { name, extents: vec![Box::new(bytes)] }
    }

    /// Its length. `None` when that does not fit 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.extents.iter().try_fold(0u64, |sum, e| sum.checked_add(e.len()))
    }
}

impl fmt::Debug for FileBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBody")
            .field("name", &self.name)
            .field("extents", &self.extents.len())
            .finish_non_exhaustive()
    }
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Which.
    pub name: Name,
    /// Its length.
    pub bytes: u64,
}

impl Written {
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

/// A file that a store holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Which.
    pub name: Name,
    /// Its length.
    pub bytes: u64,
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
