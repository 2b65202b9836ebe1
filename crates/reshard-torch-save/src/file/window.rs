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

    /// Whether a name of torch's records is at one of the ends: in the first header, or in the directory.
    pub(super) fn has_torch_names(&self) -> bool {
        let tail = self.tail.len().saturating_sub(SEARCHED);
        let ends = [self.first.get(..), self.tail.get(tail..)];
        ends.into_iter().flatten().any(has_torch_name)
    }

    /// The name in the first header of an archive.
    pub(super) fn first_record(&self) -> String {
        let len = self.first.get(26..28).and_then(|len| len.first_chunk());
        let len = len.map_or(0, |len| usize::from(u16::from_le_bytes(*len)));
        let name = self.first.get(30..).unwrap_or_default();
        let name = name.get(..len.min(100)).unwrap_or(name);
        String::from_utf8_lossy(name).into_owned()
    }
}

/// Whether a part of an archive holds a name that only archives of torch have.
pub(super) fn has_torch_name(part: &[u8]) -> bool {
    let has = |name: &&[u8]| part.windows(name.len()).any(|window| window == *name);
    TORCH_NAMES.iter().any(has)
}

/// Names that every archive of torch has some of.
const TORCH_NAMES: [&[u8]; 4] = [
    b"/data.pkl",
    b"/data/0",
    b"/byteorder",
    b"/.data/serialization_id",
];

/// Bytes of the end that are searched for them.
const SEARCHED: usize = 1 << 16;

fn within(part: &Bytes, start: u64, range: &Range<u64>) -> Option<Bytes> {
    let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
    let to = usize::try_from(range.end.checked_sub(start)?).ok()?;
    (from <= to && to <= part.len()).then(|| part.slice(from..to))
}

pub(crate) fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}
