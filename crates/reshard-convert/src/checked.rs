//! Tensors that are checked while they are read: each element once, in any order.

use reshard::{
    ErrorKind, Region,
    model::{BoxError, Dims, Layout, Segments, SourceError, TensorSource},
    storage::Progress,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The chunks of a stored tensor, with the checksums of their elements.
#[derive(Debug)]
pub(crate) struct Chunks {
    key: Box<str>,
    /// Bytes of an element.
    size: u64,
    chunks: Vec<Chunk>,
    /// Told of the bytes that were checked.
    progress: Progress,
}

#[derive(Debug)]
struct Chunk {
    region: Region,
    crc32: u32,
    seen: Mutex<Parts>,
}

/// What was seen of a chunk: ranges of its bytes by their starts, with their lengths.
type Parts = BTreeMap<u64, (u64, crc32fast::Hasher)>;

impl Chunks {
    /// For a tensor of elements of `size` bytes.
    pub(crate) fn new(
        key: &str,
        size: u64,
        chunks: Vec<(Region, u32)>,
        progress: Progress,
    ) -> Self {
        let chunk = |(region, crc32)| Chunk {
            region,
            crc32,
            seen: Mutex::default(),
        };
        Self {
            key: key.into(),
            size,
            chunks: chunks.into_iter().map(chunk).collect(),
            progress,
        }
    }

    /// Looks at the elements of a box of the tensor. Fails if a chunk of which all elements were seen has another checksum.
    fn see(&self, read: &Region, bytes: &[u8]) -> Result<(), BoxError> {
        for chunk in &self.chunks {
            if let Some(wanted) = chunk.region.intersect(read).filter(|r| !r.is_empty()) {
                self.see_part(chunk, &wanted, read, bytes)?;
            }
        }
        self.progress.add(bytes.len() as u64);
        Ok(())
    }

    fn see_part(
        &self,
        chunk: &Chunk,
        wanted: &Region,
        read: &Region,
        bytes: &[u8],
    ) -> Result<(), BoxError> {
        let layout = |of: &Region| {
            let layout = Layout::contiguous(self.size, &of.lengths)?;
            Some(layout.narrow(&wanted.within(of)))
        };
        let (Some(from), Some(to)) = (layout(read), layout(&chunk.region)) else {
            return Err("a box is too large".into());
        };
        // Rows that follow each other in the chunk become one part.
        let mut parts: Vec<(u64, u64, crc32fast::Hasher)> = Vec::new();
        for (from, to, len) in Segments::row_major(&from, &to) {
            let start = usize::try_from(from)?;
            let row = bytes.get(start..).and_then(|b| b.get(..len as usize));
            let row = row.ok_or("a box lies outside of what was read")?;
            match parts.last_mut() {
                Some((start, seen, hasher)) if *start + *seen == to => {
                    hasher.update(row);
                    *seen += len;
                }
                _ => {
                    let mut hasher = crc32fast::Hasher::new();
                    hasher.update(row);
                    parts.push((to, len, hasher));
                }
            }
        }
        let mut seen = chunk.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (start, len, hasher) in parts {
            self.add(&mut seen, (start, len, hasher))?;
        }
        let all = chunk
            .region
            .volume()
            .unwrap_or(u64::MAX)
            .saturating_mul(self.size);
        match seen.first_key_value() {
            Some((0, (len, hasher))) if *len == all => {
                let found = hasher.clone().finalize();
                if found == chunk.crc32 {
                    return Ok(());
                }
                let what = format!(
                    "{}: the CRC-32 of the elements of chunk {} is {found:08x}, but the checkpoint says {:08x}",
                    self.key, chunk.region, chunk.crc32
                );
                Err(SourceError::new(ErrorKind::Corrupt, what).into())
            }
            _ => Ok(()),
        }
    }

    /// Adds a range to those that were seen, and joins it with its neighbours.
    fn add(&self, seen: &mut Parts, part: (u64, u64, crc32fast::Hasher)) -> Result<(), BoxError> {
        let (mut start, mut len, mut hasher) = part;
        if let Some((before, (of_before, _))) = seen.range(..=start).next_back() {
            let end = before + of_before;
            // It was read again.
            if end >= start + len {
                return Ok(());
            }
            if end > start {
                return Err(self.twice());
            }
        }
        if seen.range(start..start + len).next().is_some() {
            return Err(self.twice());
        }
        if let Some((of_next, next)) = seen.remove(&(start + len)) {
            hasher.combine(&next);
            len += of_next;
        }
        let before = seen.range(..start).next_back();
        let touches = before.map(|(at, (n, _))| (*at, at + n == start));
        if let Some((at, true)) = touches
            && let Some((of_before, mut before)) = seen.remove(&at)
        {
            before.combine(&hasher);
            (start, len, hasher) = (at, len + of_before, before);
        }
        seen.insert(start, (len, hasher));
        Ok(())
    }

    fn twice(&self) -> BoxError {
        let what = format!(
            "{}: its elements are read in blocks that overlap, so they can't be checked on the way; check the source with `verify`, and \
             convert without a check",
            self.key
        );
        SourceError::new(ErrorKind::Internal, what).into()
    }
}

/// A piece of a tensor whose chunks are checked.
pub(crate) struct Checked {
    pub(crate) source: Arc<dyn TensorSource>,
    pub(crate) chunks: Arc<Chunks>,
    /// Where the piece lies in the tensor.
    pub(crate) at: Dims,
}

impl TensorSource for Checked {
    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.source.read(region, out)?;
        let offsets: Dims = (0..region.ndim())
            .map(|a| region.offsets[a].saturating_add(self.at[a]))
            .collect();
        self.chunks
            .see(&Region::new(offsets, region.lengths.clone()), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes of a box of a tensor whose elements are their row-major indices.
    fn bytes(shape: &[u64], of: &Region) -> Vec<u8> {
        let strides = Region::whole(shape).strides();
        let index =
            |at: &Region| -> u64 { at.offsets.iter().zip(&strides).map(|(o, s)| o * s).sum() };
        of.clone()
            .blocks(1)
            .flat_map(|b| index(&b).to_le_bytes())
            .collect()
    }

    fn cut(shape: &[u64], axis: usize, at: u64) -> Vec<Region> {
        let (mut low, mut high) = (Region::whole(shape), Region::whole(shape));
        low.lengths[axis] = at;
        (high.offsets[axis], high.lengths[axis]) = (at, shape[axis] - at);
        [low, high].into_iter().filter(|r| !r.is_empty()).collect()
    }

    proptest! {
        #[test]
        fn damage_is_found_whatever_the_chunks_and_the_blocks_are(
            shape in prop::collection::vec(1u64..6, 1..4),
            chunks in (0usize..3, 0u64..6), pieces in (0usize..3, 0u64..6),
            block in 1u64..9, damage in any::<prop::sample::Index>(), order in any::<u64>(),
        ) {
            let cut_at = |(axis, at): (usize, u64)| {
                let axis = axis % shape.len();
                cut(&shape, axis, at % (shape[axis] + 1))
            };
            let (chunks, pieces) = (cut_at(chunks), cut_at(pieces));
            let crc = |r: &Region| (r.clone(), crc32fast::hash(&bytes(&shape, r)));
            let volume: u64 = shape.iter().product();
            for bad in [None, Some(damage.index(volume as usize) as u64)] {
                let checked = Chunks::new("k", 8, chunks.iter().map(crc).collect(), Progress::none());
                let mut blocks: Vec<Region> = pieces.iter().flat_map(|p| p.clone().blocks(block)).collect();
                let turn = (order % blocks.len() as u64) as usize;
                blocks.rotate_left(turn);
                let mut failed = 0;
                for block in &blocks {
                    let mut read = bytes(&shape, block);
                    if let Some(bad) = bad {
                        let damaged = read.chunks_mut(8).find(|e| **e == bad.to_le_bytes());
                        damaged.into_iter().for_each(|e| e[7] ^= 1);
                    }
                    failed += u32::from(checked.see(block, &read).is_err());
                }
                prop_assert_eq!(failed, u32::from(bad.is_some()));
                // After damage the rest of a block is not looked at.
                for chunk in checked.chunks.iter().filter(|_| bad.is_none()) {
                    prop_assert_eq!(chunk.seen.lock().unwrap().len(), 1);
                }
            }
        }
    }

    #[test]
    fn a_block_that_is_read_again_is_not_counted_twice() {
        let whole = Region::whole(&[4]);
        let all = bytes(&[4], &whole);
        let checked = Chunks::new(
            "k",
            8,
            vec![(whole.clone(), crc32fast::hash(&all))],
            Progress::none(),
        );
        let half = Region::new([0], [2]);
        for _ in 0..2 {
            checked.see(&half, &all[..16]).unwrap();
        }
        assert!(checked.see(&Region::new([1], [2]), &all[8..24]).is_err());
        checked.see(&Region::new([2], [2]), &all[16..]).unwrap();
    }
}
