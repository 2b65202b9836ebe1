//! Bytes that several items make up together, for authors of formats: pieces of a tensor or of a chunk, which may lie beside each other in
//! its rows.

use crate::{Blocks, ahead::ahead};
use reshard_model::{BoxError, Data, Dims, Layout, Region, Segments, Tensor, TensorSource};
use std::{fmt, io, ops::Range, sync::Arc};

/// About so many bytes are put together at a time.
const BLOCK: u64 = 1 << 20;

/// An item that is a piece of a larger box, which is written as a whole.
pub struct Piece {
    region: Region,
    size: u64,
    source: Source,
}

enum Source {
    None,
    Host(Tensor),
    /// With the number of leading axes that it lacks.
    Pulled(Arc<dyn TensorSource>, usize),
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({})", self.region)
    }
}

impl Piece {
    /// `region` is relative to the box. An element has `size` bytes. The data may lack leading axes of length 1.
    pub fn new(region: Region, size: u64, data: &Data) -> Self {
        let source = match data {
            Data::Host(host) => Source::Host(host.clone()),
            Data::Device(device) => {
                let lacks = region.ndim().saturating_sub(device.shape().len());
                Source::Pulled(Arc::new(device.clone()), lacks)
            }
            Data::Lazy(lazy) => {
                let lacks = region.ndim().saturating_sub(lazy.shape().len());
                Source::Pulled(Arc::clone(lazy), lacks)
            }
            Data::None => Source::None,
        };
        Self {
            region,
            size,
            source,
        }
    }

    /// Which part of the box it is.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// How many bytes of it may be read before they are needed.
    fn ahead(&self) -> u64 {
        match &self.source {
            Source::Pulled(source, _) => source.ahead(),
            Source::None | Source::Host(_) => 0,
        }
    }

    /// Puts the elements of `part`, which is relative to the piece, into the bytes of a block, where they have the layout `to`.
    fn put(&self, part: &Region, to: &Layout, block: &mut [u8]) -> Result<(), BoxError> {
        let size = self.size;
        match &self.source {
            Source::None => Err("there is no data to save".into()),
            Source::Host(host) => {
                let whole = host.layout().squeeze_to(&self.region.lengths);
                let from = whole
                    .ok_or("a piece has another shape than planned")?
                    .narrow(part);
                copy(host.buffer_bytes(), &from, to, block)
            }
            Source::Pulled(source, lacks) => {
                let bytes = part.volume().unwrap_or(0) * size;
                let mut elements = vec![0; usize::try_from(bytes)?];
                let asked = Region {
                    offsets: part.offsets.iter().skip(*lacks).copied().collect(),
                    lengths: part.lengths.iter().skip(*lacks).copied().collect(),
                };
                source.read(&asked, &mut elements)?;
                let from = Layout::contiguous(size, &part.lengths).ok_or("a piece is too large")?;
                copy(&elements, &from, to, block)
            }
        }
    }
}

fn copy(source: &[u8], from: &Layout, to: &Layout, block: &mut [u8]) -> Result<(), BoxError> {
    for (at, into, length) in Segments::row_major(from, to) {
        let (at, into, length) = (
            usize::try_from(at)?,
            usize::try_from(into)?,
            usize::try_from(length)?,
        );
        let bytes = source.get(at..).and_then(|bytes| bytes.get(..length));
        let room = block
            .get_mut(into..)
            .and_then(|room| room.get_mut(..length));
        match (bytes, room) {
            (Some(bytes), Some(room)) => room.copy_from_slice(bytes),
            _ => return Err("a piece does not fit its place".into()),
        }
    }
    Ok(())
}

/// The bytes of a box of this shape, whose elements have `size` bytes, in row-major order. What no piece has is zero. Each piece is read in
/// row-major order, once, so pieces of other ranks stream.
pub fn mosaic(shape: Dims, size: u64, pieces: Vec<Piece>) -> Blocks {
    let most = pieces.iter().map(Piece::ahead).max().unwrap_or(0);
    ahead(Region::whole(&shape), size, (BLOCK, most), move |block| {
        put_together(&block, size, &pieces).map_err(io::Error::other)
    })
}

fn put_together(block: &Region, size: u64, pieces: &[Piece]) -> Result<bytes::Bytes, BoxError> {
    let layout = Layout::contiguous(size, &block.lengths).ok_or("a block is too large")?;
    let mut out = vec![0; usize::try_from(layout.bytes())?];
    for piece in pieces {
        if let Some(both) = block.intersect(&piece.region) {
            let to = layout.narrow(&both.within(block));
            piece.put(&both.within(&piece.region), &to, &mut out)?;
        }
    }
    Ok(out.into())
}

/// Which elements of a box a smaller box in it is, if they follow each other.
pub fn run_of(inner: &Region, outer: &[u64]) -> Option<Range<u64>> {
    let cut = inner
        .lengths
        .iter()
        .position(|n| *n != 1)
        .map_or(outer.len(), |axis| axis + 1);
    if (cut..outer.len()).any(|axis| inner.lengths[axis] != outer[axis]) {
        return None;
    }
    let strides = Region::whole(outer).strides();
    let start = inner
        .offsets
        .iter()
        .zip(&*strides)
        .map(|(i, n)| i * n)
        .sum::<u64>();
    Some(start..start + inner.volume()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_are_runs_of_a_larger_box_are_known() {
        let of = |offsets: [u64; 3], lengths: [u64; 3]| {
            run_of(&Region::new(offsets, lengths), &[2, 3, 4])
        };
        assert_eq!(of([0, 0, 0], [2, 3, 4]), Some(0..24));
        assert_eq!(of([1, 0, 0], [1, 3, 4]), Some(12..24));
        assert_eq!(of([1, 1, 0], [1, 2, 4]), Some(16..24));
        assert_eq!(of([1, 1, 1], [1, 1, 2]), Some(17..19));
        assert_eq!(of([0, 0, 0], [2, 1, 4]), None);
        assert_eq!(of([0, 0, 0], [1, 2, 3]), None);
        assert_eq!(run_of(&Region::default(), &[]), Some(0..1));
    }
}
