pub(crate) mod plan;
pub(crate) mod reads;
pub(crate) mod split;

use crate::Name;
use reshard_model::{BoxError, Layout, RegionMut};
use std::{fmt, ops::Range};

/// A check that sees every byte of a record, in order. Use it only if the whole record is read.
pub trait Checksum: Send {
    /// Takes the next bytes.
    fn update(&mut self, bytes: &[u8]);
    /// Says whether the bytes were right.
    ///
    /// # Errors
    /// What is wrong with them; it becomes [`StorageError::Check`](crate::StorageError::Check).
    fn finish(self: Box<Self>) -> Result<(), BoxError>;
    /// Splits the check: the returned check sees the bytes from byte `at` on, and this one the bytes before. Both are used at the
    /// same time. The one that finishes last reports the error. `None` if a single check has to see all bytes.
    fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
        let _ = at;
        None
    }
}

/// Where wanted elements lie in a record of a file, and where they go.
#[derive(Debug)]
pub struct Part {
    /// Where they lie, relative to the start of the record. It has the shape and element size of the region.
    pub source: Layout,
    /// Where they go. A region in device memory can't be read into directly: it has to be fed
    /// ([`is_on_device`](RegionMut::is_on_device)).
    pub into: RegionMut,
}

/// Wanted elements of one record (the payload of one stored item).
pub struct RecordRead {
    /// The file.
    pub name: Name,
    /// The record, as a range of bytes of the file. Nothing before or after it belongs to the item.
    pub record: Range<u64>,
    /// The wanted parts. If several parts want the same bytes, these are read once.
    pub parts: Vec<Part>,
    /// With a check, the whole record is read.
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
