//! Recognises archives that differ only in elements and checksums.

use super::{DESCRIPTOR, Directory, Record};
use std::ops::Range;

/// The common bytes of archives with equal descriptions and different elements: tensors of one type and shape, written by one program.
/// The first archive is parsed. Comparing bytes then shows that another one has the same description.
///
/// All bytes are compared that determine the described records and the position of the storage. These may differ: the elements and the
/// checksum of the storage, and the content and the checksum of the other records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    len: u64,
    /// All bytes up to the storage's.
    front: Box<[u8]>,
    storage: Range<u64>,
    /// The sizes in the descriptor behind the storage.
    sizes: Box<[u8]>,
    /// From the directory to the end of the archive.
    directory: Box<[u8]>,
    /// The ranges of the directory that are compared: everything except the checksums that may differ.
    fixed: Vec<Range<usize>>,
    /// Where the directory has the checksum of the storage.
    checksum: usize,
}

impl Form {
    /// The form of an archive of `len` bytes. Its `first` and `last` bytes were enough to read the directory and the `described` records,
    /// and to find the one `storage`. `None` if the archive has no checksums, or not torch's order: descriptions, the storage, its checksum, the
    /// directory.
    pub fn new(
        len: u64,
        (first, last): (&[u8], &[u8]),
        directory: &Directory,
        described: &[&Record],
        storage: (&Record, &Range<u64>),
    ) -> Option<Self> {
        let (storage, at) = storage;
        // Without checksums there is none to return for the next archive.
        storage.checksum()?;
        let last_start = len.checked_sub(last.len() as u64)?;
        let front = first.get(..usize::try_from(at.start).ok()?)?;
        let from = usize::try_from(directory.offset().checked_sub(last_start)?).ok()?;
        let bytes = last.get(from..)?;

        // Records don't overlap: what has its header before the storage's has its data there, too.
        let before = described.iter().all(|r| r.header < storage.header);
        let header = front.get(usize::try_from(storage.header).ok()?..)?;
        let follows = header.get(14..18)? == [0; 4]
            && matches!(storage.gap(at), 16 | 24)
            && at.end >= last_start;
        // Then the end of the archive is where a parser looks first.
        let ends = directory.end.checked_add(22) == Some(len);
        if !(before && follows && ends) {
            return None;
        }

        let behind = last.get(usize::try_from(at.end - last_start).ok()?..)?;
        let sizes = behind.get(8..usize::try_from(storage.gap(at)).ok()?)?;
        // An entry has its checksum at byte 16.
        let place =
            |r: &Record| usize::try_from((r.entry + 16).checked_sub(directory.offset())?).ok();
        let others = directory.records().filter(|r| !described.contains(r));
        let mut free = others.map(place).collect::<Option<Vec<usize>>>()?;
        free.sort_unstable();
        let starts = std::iter::once(0).chain(free.iter().map(|at| at + 4));
        let ends = free.iter().copied().chain([bytes.len()]);
        let fixed = starts.zip(ends).map(|(start, end)| start..end).collect();
        Some(Self {
            len,
            front: front.into(),
            storage: at.clone(),
            sizes: sizes.into(),
            directory: bytes.into(),
            fixed,
            checksum: place(storage)?,
        })
    }

    /// Where the storage lies in the archive.
    pub fn storage(&self) -> &Range<u64> {
        &self.storage
    }

    /// Whether an archive of this length that begins so has this form, as far as its beginning tells: the same description of a tensor, before
    /// as many elements.
    pub fn begins(&self, len: u64, first: &[u8]) -> bool {
        len == self.len && first.starts_with(&self.front)
    }

    /// Returns the checksum of the storage, if an archive with these ends has this form.
    pub fn matches(&self, len: u64, first: &[u8], last: &[u8]) -> Option<u32> {
        if !self.begins(len, first) {
            return None;
        }
        let directory = last.get(last.len().checked_sub(self.directory.len())?..)?;
        let behind = self
            .storage
            .end
            .checked_sub(len.checked_sub(last.len() as u64)?)?;
        let behind = last
            .get(usize::try_from(behind).ok()?..)?
            .get(..8 + self.sizes.len())?;
        let checksum = directory.get(self.checksum..self.checksum + 4)?;
        let fixed = |r: &Range<usize>| directory.get(r.clone()) == self.directory.get(r.clone());
        let same = self.fixed.iter().all(fixed)
            && behind
                .strip_prefix(&DESCRIPTOR.to_le_bytes())
                .and_then(|behind| behind.strip_prefix(checksum))
                == Some(&self.sizes);
        same.then(|| checksum.try_into().map(u32::from_le_bytes).ok())?
    }
}
