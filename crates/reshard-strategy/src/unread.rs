//! Reads small parts of many files in batches, and tracks the parts that opening left unread.

use crate::Result;
use bytes::Bytes;
use reshard_storage::{Name, Store, Traffic};
use std::{ops::Range, sync::OnceLock};

/// Limits per call: the number of parts and their total size. At least one part is always read, whatever its size.
const BATCH: (usize, u64) = (512, 32 << 20);

/// Reads a part of a file for each item, many parts in one call. `part` returns the file and the range of an item, and `take` receives its
/// bytes. All bytes count as [`beside`](Traffic::beside).
///
/// # Errors
/// Those of the store.
pub async fn read_in_batches<T>(
    store: &dyn Store,
    items: Vec<T>,
    part: impl Fn(&T) -> (Name, Range<u64>),
    mut take: impl FnMut(T, Bytes),
) -> reshard_storage::Result<Traffic> {
    let mut total = Traffic::default();
    let mut left = items.into_iter().map(|item| (part(&item), item)).peekable();
    while left.peek().is_some() {
        let (mut parts, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0u64);
        while let Some((part, item)) = left.next_if(|((_, at), _)| {
            bytes = bytes.saturating_add(at.end - at.start);
            batch.is_empty() || (batch.len() < BATCH.0 && bytes <= BATCH.1)
        }) {
            parts.push(part);
            batch.push(item);
        }
        let (read, traffic) = store.read_ranges(parts).await?;
        total.requests += traffic.requests;
        total.beside += traffic.bytes + traffic.beside;
        for (item, bytes) in batch.into_iter().zip(read) {
            take(item, bytes);
        }
    }
    Ok(total)
}

/// The first bytes of a file that opening did not read, because a record of reshard has their content.
#[derive(Debug)]
pub struct UnreadPart {
    file: Name,
    bytes: u64,
    crc: u32,
    is_written: OnceLock<bool>,
}

impl UnreadPart {
    /// The first `bytes` bytes of a file. `crc` is their CRC-32 as they were written.
    pub fn new(file: Name, bytes: u64, crc: u32) -> Self {
        Self {
            file,
            bytes,
            crc,
            is_written: OnceLock::new(),
        }
    }

    /// The file.
    pub fn file(&self) -> &Name {
        &self.file
    }

    /// Whether the part was read since, and differs from what was written.
    pub fn is_changed(&self) -> bool {
        self.is_written.get() == Some(&false)
    }

    /// Reads the parts that were not read yet.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read<'p>(
        store: &dyn Store,
        parts: impl Iterator<Item = &'p Self>,
    ) -> Result<Traffic> {
        let unread = parts.filter(|part| part.is_written.get().is_none());
        let part = |part: &&Self| (part.file.clone(), 0..part.bytes);
        let take = |part: &Self, text: Bytes| {
            let is_written = || crc32fast::hash(&text) == part.crc;
            part.is_written.get_or_init(is_written);
        };
        Ok(read_in_batches(store, unread.collect(), part, take).await?)
    }
}
