//! A tensor's blob on its way to a file: the head, the elements straight from the caller's buffer, and the tail with the
//! checksum that was computed while they passed.

use bytes::Bytes;
use reshard_model::{BoxError, Region, Tensor, TensorSource};
use reshard_storage::Extent;
use reshard_torch_format::archive::ArchiveLayout;
use std::{io, sync::Arc};

/// Small enough to stay in a core's cache between the checksum and the write, large enough to be few.
const BLOCK: u64 = 256 << 10;

/// Elements that are pulled in row-major order.
pub(crate) enum Elements {
    Host(Tensor),
    Source { source: Arc<dyn TensorSource>, shape: Region, item: u64 },
}

type Blocks = Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;

impl Elements {
    fn blocks(self) -> Blocks {
        match self {
            Self::Host(t) => Box::new(t.blocks(BLOCK).map(Ok)),
            Self::Source { source, shape, item } => Box::new(blocks_of(shape, BLOCK * 4 / item.max(1)).map(move |r| {
                let mut out = vec![0; (r.volume().unwrap_or(0) * item) as usize];
                source.read(&r, &mut out).map_err(|e: BoxError| io::Error::other(e))?;
                Ok(out.into())
            })),
        }
    }
}

/// Cuts a region into boxes of at most about `max` elements that follow each other in row-major order.
pub(crate) fn blocks_of(region: Region, max: u64) -> impl Iterator<Item = Region> + Send {
    let max = max.max(1);
    // Axes after `axis` are whole in a block; `axis` itself is cut; those before it go one by one.
    let mut axis = region.ndim();
    let mut inner = 1u64;
    while axis > 0 && inner.saturating_mul(region.lengths[axis - 1]) <= max {
        axis -= 1;
        inner = inner.saturating_mul(region.lengths[axis]);
    }
    let cut = axis.checked_sub(1);
    let step = cut.map_or(1, |_| (max / inner).max(1));
    let mut at = (!region.is_empty()).then(|| region.offsets.clone());
    std::iter::from_fn(move || {
        let offsets = at.clone()?;
        let mut out = Region { offsets, lengths: region.lengths.clone() };
        let Some(cut) = cut else {
            at = None;
            return Some(out);
        };
        for a in 0..cut {
            out.lengths[a] = 1;
        }
        out.lengths[cut] = step.min(region.end(cut) - out.offsets[cut]);
        let mut next = out.offsets.clone();
        next[cut] += out.lengths[cut];
        let mut a = cut;
        at = loop {
            if next[a] < region.end(a) {
                break Some(next);
            }
            next[a] = region.offsets[a];
            if a == 0 {
                break None;
            }
            a -= 1;
            next[a] += 1;
        };
        Some(out)
    })
}

enum State {
    Head(Elements),
    Elements(Blocks),
    Done,
}

/// One tensor's archive.
pub(crate) struct Blob {
    layout: ArchiveLayout,
    crc: crc32fast::Hasher,
    state: State,
}

impl Blob {
    pub(crate) fn new(layout: ArchiveLayout, elements: Elements) -> Self {
        Self { layout, crc: crc32fast::Hasher::new(), state: State::Head(elements) }
    }
}

impl Extent for Blob {
    fn len(&self) -> u64 {
        self.layout.len()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Head(elements) => {
                self.state = State::Elements(elements.blocks());
                Some(Ok(Bytes::copy_from_slice(self.layout.head())))
            }
            State::Elements(mut blocks) => match blocks.next() {
                Some(Ok(block)) => {
                    self.crc.update(&block);
                    self.state = State::Elements(blocks);
                    Some(Ok(block))
                }
                Some(Err(e)) => Some(Err(e)),
                None => {
                    let crc = self.crc.clone().finalize();
                    Some(self.layout.finish(&[crc]).map(Bytes::from).map_err(io::Error::other))
                }
            },
            State::Done => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_follow_each_other_and_cover_the_region(
            lengths in prop::collection::vec(0u64..6, 0..4), max in 1u64..40,
        ) {
            let region = Region::new(vec![2; lengths.len()], lengths);
            let mut seen = Vec::new();
            for b in blocks_of(region.clone(), max) {
                prop_assert!(region.contains(&b));
                prop_assert!(b.volume().unwrap() <= max);
                for r in blocks_of(b, 1) { seen.push(r.offsets.to_vec()); }
            }
            prop_assert_eq!(seen.len() as u64, region.volume().unwrap());
            prop_assert!(seen.is_sorted_by(|a, b| a < b));
        }
    }
}
