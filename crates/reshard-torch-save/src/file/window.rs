//! The two ends of a file, which were read already.

use crate::error::lost;
use bytes::Bytes;
use reshard_storage::{Name, Store};
use reshard_strategy::Result;
use std::{ops::Range, sync::Arc};

pub(super) struct Window<'a> {
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) name: &'a Name,
    pub(super) bytes: u64,
    pub(super) first: Bytes,
    pub(super) tail: Bytes,
}

impl Window<'_> {
    /// Bytes of the file, from memory if they are there.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let from_tail = self.bytes.saturating_sub(self.tail.len() as u64);
        for (part, start) in [(&self.first, 0), (&self.tail, from_tail)] {
            if let Some(found) = within(part, start, &range) {
                return Ok(found);
            }
        }
        let read = self.store.read(self.name, range).await;
        read.map_err(|e| lost(e, self.name.as_str()))
    }
}

fn within(part: &Bytes, start: u64, range: &Range<u64>) -> Option<Bytes> {
    let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
    let to = usize::try_from(range.end.checked_sub(start)?).ok()?;
    (from <= to && to <= part.len()).then(|| part.slice(from..to))
}

pub(crate) fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}
