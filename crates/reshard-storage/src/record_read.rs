pub(crate) mod plan;
pub(crate) mod reads;
pub(crate) mod split;

use crate::Name;
use reshard_model::{BoxError, Layout, RegionMut};
use std::{fmt, iter::Sum, ops::Range};

/// Sees every byte of a record, in order. It is given only when all of the record is to be read.
pub trait Checksum: Send {
    /// The bytes that come next.
    fn update(&mut self, bytes: &[u8]);
    /// Whether they were right.
    ///
    /// # Errors
    /// What is wrong with them; it becomes [`StorageError::Check`](crate::StorageError::Check).
    fn finish(self: Box<Self>) -> Result<(), BoxError>;
    /// A second check, for the bytes from byte `at` on of those that this one was to see, which keeps those before. Both are
    /// used at the same time; what is wrong is said by the one that finishes last. `None` when one check has to see all.
    fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
        let _ = at;
        None
    }
}

/// Where wanted elements lie in a record of a file, and where they land.
#[derive(Debug)]
pub struct Part {
    /// Where they lie, from the record's start. It has the region's shape and element size.
    pub source: Layout,
    /// Where they land.
    pub into: RegionMut,
}

/// Wanted elements of one record (the payload of one stored item).
pub struct RecordRead {
    /// The file.
    pub name: Name,
    /// The record: bytes of the file. Nothing before or after it belongs to the item.
    pub record: Range<u64>,
    /// What is wanted of it. Parts may want the same bytes; they are read once.
    pub parts: Vec<Part>,
    /// With a check all of the record is read.
    pub check: Option<Box<dyn Checksum>>,
}

impl fmt::Debug for RecordRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordRead")
            .field("name", &self.name)
            .field("record", &self.record)
            .field("parts", &self.parts)
            .field("check", &self.check.is_some())
            .finish()
    }
}

/// How much was read for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStats {
    /// Bytes that landed in regions.
    pub bytes_needed: u64,
    /// Bytes of records that were read: with those that nobody wanted but a check, or that lay in short gaps.
    pub bytes_read: u64,
    /// Bytes between neighbouring small records that were read along, so that one read serves many.
    pub bytes_between: u64,
    /// Calls to the operating system, or requests.
    pub reads: u64,
}

impl Sum for ReadStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            bytes_needed: a.bytes_needed + b.bytes_needed,
            bytes_read: a.bytes_read + b.bytes_read,
            bytes_between: a.bytes_between + b.bytes_between,
            reads: a.reads + b.reads,
        })
    }
}
