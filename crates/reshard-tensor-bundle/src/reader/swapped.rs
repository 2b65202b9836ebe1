//! Reads elements whose bytes have the other order.

use super::{BundleReader, crc::differs};
use reshard_plan::ChunkId;
use reshard_storage::Part;
use reshard_strategy::{ReadCx, ReadTensor, Result, Selection, StrategyError, Traffic};

/// About so many bytes are read at a time.
const STEP: u64 = 4 << 20;

/// Reverses the bytes of each word.
pub(super) fn swap(bytes: &mut [u8], word: u64) {
    bytes
        .chunks_exact_mut(word as usize)
        .for_each(<[u8]>::reverse);
}

impl BundleReader {
    /// Reads all between the first and the last wanted element, some of it at a time.
    pub(super) async fn read_swapped(
        &self,
        id: ChunkId,
        word: u64,
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let (place, layout, key) = (*self.chunk(id)?, self.layout(id)?, self.key_of(id));
        let name = self.there(&place, &key)?;
        let selections: Vec<_> = reads.iter().map(|read| &read.selection).collect();
        let checked = cx.verify && Selection::cover_once(&selections, layout.elements());
        let mut copies = Vec::with_capacity(reads.len());
        let (mut from, mut to, mut wanted) = (u64::MAX, 0, 0);
        for read in reads {
            let Part { source, into } = read.part(&layout)?;
            let hull = source.hull();
            (from, to) = (from.min(hull.start), to.max(hull.end));
            wanted += into.bytes();
            copies.push(into.strided_copy(&source)?);
        }
        totals.needed += wanted;
        // As much of what is wanted as was read of what lies around it.
        let share = |to_there: u64| {
            u128::from(wanted) * u128::from(to_there - from) / u128::from(to - from)
        };
        let step = STEP / layout.item() * layout.item();
        let (mut at, mut crc) = (from.min(to), 0);
        while at < to {
            let end = to.min(at + step);
            let range = place.offset + at..place.offset + end;
            let mut bytes = self.store.read(&name, range).await?.to_vec();
            if checked {
                crc = crc32c::crc32c_append(crc, &bytes);
            }
            swap(&mut bytes, word);
            copies.iter_mut().for_each(|copy| copy.feed(at, &bytes));
            totals.bytes += end - at;
            totals.requests += 1;
            cx.progress.add((share(end) - share(at)) as u64);
            at = end;
        }
        totals.verified += u64::from(checked);
        match checked && crc != place.crc {
            true => Err(StrategyError::corrupt(
                name,
                Some(place.offset),
                differs(&key, crc, place.crc),
            )),
            false => Ok(()),
        }
    }
}
