//! Checksums of what is written and read in parts, for formats that write down the checksum of each item.

use crate::{ReadTensor, check_steps};
use reshard_model::{BoxError, Layout};
use reshard_plan::Selection;
use reshard_storage::{Checksum, Name, Progress, RecordRead, StorageError, Store};
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// A checksum of 32 bits. That of a whole follows from those of its parts.
pub trait PartialCrc: Default + fmt::Debug + Send + 'static {
    /// Takes the next bytes.
    fn update(&mut self, bytes: &[u8]);

    /// The checksum of all bytes that it took.
    fn value(&self) -> u32;

    /// The checksum of parts that follow each other, from their lengths and checksums.
    fn combined(parts: impl Iterator<Item = (u64, u32)>) -> u32;
}

/// A checksum of the elements of a stored chunk, in row-major order and little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElementChecksum {
    /// CRC-32, that of zip.
    Crc32(u32),
    /// CRC-32C, that of iSCSI, as it is computed: not masked.
    Crc32c(u32),
}

impl ElementChecksum {
    /// Its name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32(_) => "CRC-32",
            Self::Crc32c(_) => "CRC-32C",
        }
    }

    /// Its bits.
    pub fn value(self) -> u32 {
        match self {
            Self::Crc32(value) | Self::Crc32c(value) => value,
        }
    }
}

/// CRC-32, that of zip.
#[derive(Debug, Default)]
pub struct Crc32(crc32fast::Hasher);

impl PartialCrc for Crc32 {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn value(&self) -> u32 {
        self.0.clone().finalize()
    }

    fn combined(parts: impl Iterator<Item = (u64, u32)>) -> u32 {
        crc32_combined(parts)
    }
}

/// Compares the checksum of a record with the one that was written down. Parts of the record may be read at the same time.
#[derive(Debug)]
pub struct CrcCheck<C> {
    crc: C,
    /// Where the bytes that it sees begin.
    at: u64,
    seen: u64,
    whole: Arc<Whole>,
}

/// The check of a [`Crc32`].
pub type Crc32Check = CrcCheck<Crc32>;

#[derive(Debug)]
struct Whole {
    bytes: u64,
    written: u32,
    what: Box<str>,
    differs: fn(&str, u32, u32) -> String,
    /// The length and checksum of each part that was seen, by its start.
    parts: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl<C: PartialCrc> CrcCheck<C> {
    /// For a record of so many bytes. `differs` makes the error of `what`, the checksum that was found and the one that was written.
    pub fn with(
        bytes: u64,
        written: u32,
        what: &str,
        differs: fn(&str, u32, u32) -> String,
    ) -> Self {
        Self {
            crc: C::default(),
            at: 0,
            seen: 0,
            whole: Arc::new(Whole {
                bytes,
                written,
                what: what.into(),
                differs,
                parts: Mutex::default(),
            }),
        }
    }
}

impl Crc32Check {
    /// For a record of so many bytes. `what` names it in an error.
    pub fn new(bytes: u64, written: u32, what: &str) -> Self {
        Self::with(bytes, written, what, crc32_differs)
    }
}

/// What is wrong with a record that has another checksum than the one that was written down.
pub fn crc32_differs(what: &str, found: u32, written: u32) -> String {
    format!(
        "{what} is damaged, or another program has changed it: its CRC-32 is {found:08x}, and {written:08x} was written"
    )
}

/// The checksum of parts that follow each other, from their lengths and checksums.
pub fn crc32_combined(parts: impl Iterator<Item = (u64, u32)>) -> u32 {
    let mut all = crc32fast::Hasher::new();
    for (length, crc) in parts {
        all.combine(&crc32fast::Hasher::new_with_initial_len(crc, length));
    }
    all.finalize()
}

/// Bytes that are usually read at a time for a checksum.
const STEP: u64 = 4 << 20;

/// The CRC-32 of a range of a stored file, which is read in steps.
///
/// # Errors
/// Those of the store.
pub async fn crc32_of(
    store: &dyn Store,
    name: &Name,
    range: Range<u64>,
) -> reshard_storage::Result<u32> {
    crc_of::<Crc32>(store, name, range, STEP, &Progress::none()).await
}

/// The checksum of a range of a stored file, which is read as [`read_in_steps`] does.
///
/// # Errors
/// Those of the store.
pub async fn crc_of<C: PartialCrc>(
    store: &dyn Store,
    name: &Name,
    range: Range<u64>,
    step: u64,
    progress: &Progress,
) -> reshard_storage::Result<u32> {
    let mut crc = C::default();
    read_in_steps(store, name, range, step, progress, |_, part| {
        crc.update(part);
        reshard_storage::Result::Ok(())
    })
    .await?;
    Ok(crc.value())
}

/// Reads a range of a stored file in [`check_steps`] of usually `step` bytes. `look` gets the byte of the file at which a step begins, and
/// its bytes.
///
/// # Errors
/// Those of the store, and those of `look`.
pub async fn read_in_steps<E: From<StorageError>>(
    store: &dyn Store,
    name: &Name,
    range: Range<u64>,
    step: u64,
    progress: &Progress,
    mut look: impl FnMut(u64, &[u8]) -> Result<(), E> + Send,
) -> Result<(), E> {
    for range in check_steps(store, range, step) {
        let part = store.read(name, range.clone()).await?;
        progress.add(part.len() as u64);
        look(range.start, &part)?;
    }
    Ok(())
}

impl ReadTensor {
    /// The request to the store for all reads of one chunk, which is stored at `at` with the layout `stored`. If `verify` is set and the reads
    /// cover each element exactly once, the request has the checksum that `check` returns.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn record(
        reads: Vec<Self>,
        at: (Name, Range<u64>),
        stored: &Layout,
        verify: bool,
        check: impl FnOnce() -> Option<Box<dyn Checksum>>,
    ) -> crate::Result<RecordRead> {
        let selections: Vec<_> = reads.iter().map(|read| &read.selection).collect();
        let is_whole = verify && Selection::cover_once(&selections, stored.elements());
        let parts = reads.into_iter().map(|read| read.part(stored));
        Ok(RecordRead {
            name: at.0,
            record: at.1,
            parts: parts.collect::<crate::Result<_>>()?,
            check: is_whole.then(check).flatten(),
        })
    }
}

impl<C: PartialCrc> Checksum for CrcCheck<C> {
    fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        self.crc.update(bytes);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        let Whole {
            bytes,
            written,
            what,
            differs,
            parts,
        } = &*self.whole;
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(self.at, (self.seen, self.crc.value()));
        if parts.values().map(|(seen, _)| *seen).sum::<u64>() < *bytes {
            // The part that finishes last knows.
            return Ok(());
        }
        match C::combined(parts.values().copied()) {
            found if found == *written => Ok(()),
            found => Err(differs(what, found, *written).into()),
        }
    }

    fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
        Some(Box::new(Self {
            crc: C::default(),
            at: self.at.checked_add(at)?,
            seen: 0,
            whole: Arc::clone(&self.whole),
        }))
    }
}
