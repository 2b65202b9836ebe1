//! What was seen of the chunks of a tensor, in any order, and whether it has their checksums.

use crate::sums;
use reshard::{
    Region,
    model::{Layout, Segments},
    strategy::{ElementChecksum, StorageInfo, StrategyError},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// So many parts of chunks are held at most, of all tensors together. One takes about 50 bytes.
const MOST_PARTS: u64 = 1 << 18;

/// Parts of a read that are shorter, on average of more than a few, are not followed: to join their checksums takes longer than to read the
/// chunk once more.
const LEAST_PART: u64 = 4 << 10;
const FEW_PARTS: usize = 64;

/// How many parts are held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room(Arc<AtomicU64>);

impl Room {
    /// So many parts have become so many others. Returns whether there is room for all that are held now.
    fn changed(&self, from: usize, to: usize) -> bool {
        let by = (to as u64).wrapping_sub(from as u64);
        let before = self.0.fetch_add(by, Ordering::Relaxed);
        before.wrapping_add(by) <= MOST_PARTS
    }
}

/// The chunks of a stored tensor, with the checksums of their elements.
#[derive(Debug)]
pub(crate) struct Chunks {
    key: Box<str>,
    /// Bytes of an element.
    size: u64,
    chunks: Vec<Chunk>,
    room: Room,
}

/// A chunk of a stored tensor.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) region: Region,
    says: ElementChecksum,
    /// The checksum of no bytes.
    pub(crate) empty: ElementChecksum,
    /// Where it is stored.
    place: Option<StorageInfo>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
enum Seen {
    Parts(Held),
    /// All of it was seen, and has its checksum.
    Whole,
    /// It is read in a way that is not followed.
    Left,
}

/// Ranges of the bytes of a chunk by their starts, with their lengths and checksums. No two of them touch each other.
type Held = BTreeMap<u64, (u64, ElementChecksum)>;

/// A range of the bytes of a chunk: its start, its length, and its checksum.
type Part = (u64, u64, ElementChecksum);

/// A box of a tensor that was read, and its bytes.
#[derive(Clone, Copy)]
struct Read<'a> {
    region: &'a Region,
    bytes: &'a [u8],
}

impl Chunk {
    /// `None` if the checksum is not known here.
    pub(crate) fn new(
        region: Region,
        says: ElementChecksum,
        place: Option<StorageInfo>,
    ) -> Option<Self> {
        Some(Self {
            region,
            says,
            empty: sums::empty(says)?,
            place,
            seen: Mutex::new(Seen::Parts(Held::new())),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chunks {
    /// For a tensor of elements of `size` bytes.
    pub(crate) fn new(key: &str, size: u64, chunks: Vec<Chunk>, room: Room) -> Self {
        Self {
            key: key.into(),
            size,
            chunks,
            room,
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The chunks that were not seen as a whole.
    pub(crate) fn rest(&self) -> impl Iterator<Item = &Chunk> {
        let is_left = |chunk: &&Chunk| !matches!(*chunk.seen(), Seen::Whole);
        self.chunks.iter().filter(is_left)
    }

    /// Looks at the elements of a box of the tensor. Fails if a chunk of which all elements were seen has another checksum.
    pub(crate) fn see(&self, read: &Region, bytes: &[u8]) -> Result<()> {
        let read = Read {
            region: read,
            bytes,
        };
        for chunk in &self.chunks {
            let wanted = chunk.region.intersect(read.region);
            if let Some(wanted) = wanted.filter(|r| !r.is_empty()) {
                self.see_part(chunk, &wanted, read)?;
            }
        }
        Ok(())
    }

    fn see_part(&self, chunk: &Chunk, wanted: &Region, read: Read<'_>) -> Result<()> {
        if !matches!(*chunk.seen(), Seen::Parts(_)) {
            return Ok(());
        }
        let mut parts = self.parts(chunk, wanted, read, &Held::new())?;
        let mut seen = chunk.seen();
        // Another thread may have seen the last of it.
        let Seen::Parts(held) = &mut *seen else {
            return Ok(());
        };
        let again = |part: &Part| uncovered(held, (part.0, part.1)).ne([(part.0, part.1)]);
        if parts.iter().flatten().any(again) {
            parts = self.parts(chunk, wanted, read, held)?;
        }
        let before = held.len();
        for part in parts.iter().flatten() {
            add(held, *part);
        }
        if !self.room.changed(before, held.len()) || parts.is_none() {
            self.room.changed(held.len(), 0);
            *seen = Seen::Left;
            return Ok(());
        }
        let volume = chunk.region.volume().unwrap_or(u64::MAX);
        let all = volume.saturating_mul(self.size);
        match held.first_key_value() {
            Some((0, (len, found))) if *len == all => {
                let found = *found;
                self.room.changed(held.len(), 0);
                *seen = Seen::Whole;
                self.compare(chunk, found)
            }
            _ => Ok(()),
        }
    }

    /// The parts of a chunk that a box of the tensor has, without those that are held. Rows that follow each other in the chunk become one part.
    /// `None` if the parts are too short.
    fn parts(
        &self,
        chunk: &Chunk,
        wanted: &Region,
        read: Read<'_>,
        held: &Held,
    ) -> Result<Option<Vec<Part>>> {
        let wrong = |what: &str| StrategyError::Internal(format!("{}: {what}", self.key));
        let layout = |of: &Region| {
            let layout = Layout::contiguous(self.size, &of.lengths)?;
            Some(layout.narrow(&wanted.within(of)))
        };
        let (Some(from), Some(to)) = (layout(read.region), layout(&chunk.region)) else {
            return Err(wrong("a box is too large"));
        };
        let (mut parts, mut done) = (Vec::<Part>::new(), 0);
        let rows = Segments::row_major(&from, &to);
        let new = rows.flat_map(|(from, to, len)| {
            let new = uncovered(held, (to, len));
            new.map(move |(at, len)| (from + (at - to), at, len))
        });
        for (from, to, len) in new {
            let row = usize::try_from(from)
                .ok()
                .and_then(|from| read.bytes.get(from..)?.get(..len as usize));
            let row = row.ok_or_else(|| wrong("a box lies outside of what was read"))?;
            match parts.last_mut() {
                Some((start, seen, sum)) if *start + *seen == to => {
                    *sum = sums::extended(*sum, row);
                    *seen += len;
                }
                _ => {
                    if parts.len() > FEW_PARTS && done / (parts.len() as u64) < LEAST_PART {
                        return Ok(None);
                    }
                    parts.push((to, len, sums::extended(chunk.empty, row)));
                }
            }
            done += len;
        }
        Ok(Some(parts))
    }

    /// Fails if a chunk has another checksum than the checkpoint says.
    pub(crate) fn compare(&self, chunk: &Chunk, found: ElementChecksum) -> Result<()> {
        if found == chunk.says {
            return Ok(());
        }
        let what = format!(
            "{}: the {} of the elements of chunk {} is {:08x}, but the checkpoint says {:08x}",
            self.key,
            found.name(),
            chunk.region,
            found.value(),
            chunk.says.value()
        );
        let place = chunk.place.as_ref();
        let file = place.map_or("", |place| place.file.as_str());
        let offset = place.map(|place| place.range.start);
        Err(StrategyError::corrupt(file, offset, what))
    }
}

/// The parts of a range, each with its start and its length, that are not held.
fn uncovered(held: &Held, (start, len): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (start, start + len);
    std::iter::from_fn(move || {
        if let Some((before, (of_before, _))) = held.range(..=at).next_back() {
            at = at.max(before + of_before);
        }
        let from = at;
        let next = held.range(from..end.max(from)).next();
        at = next.map_or(end, |(next, _)| *next);
        (from < end).then(|| (from, at - from))
    })
}

/// Adds a range, of which nothing is held, and joins it with its neighbours.
fn add(held: &mut Held, (mut start, mut len, mut sum): Part) {
    if let Some((of_next, next)) = held.remove(&(start + len)) {
        sum = sums::combined(sum, next, of_next);
        len += of_next;
    }
    let before = held.range(..start).next_back();
    let touches = before.map(|(at, (n, _))| (*at, at + n == start));
    if let Some((at, true)) = touches
        && let Some((of_before, before)) = held.remove(&at)
    {
        sum = sums::combined(before, sum, len);
        (start, len) = (at, len + of_before);
    }
    held.insert(start, (len, sum));
}

#[cfg(test)]
mod tests;
