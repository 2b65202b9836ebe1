//! Pieces that lie beside each other in the rows of a chunk.

use reshard_model::{BoxError, Data, Dims, Layout, Region, Segments, Tensor, TensorSource};
use reshard_strategy::Blocks;
use std::{io, sync::Arc};

/// About so many bytes of a chunk are put together at a time.
const BLOCK: u64 = 1 << 20;

/// A piece of a chunk.
pub(super) struct Piece {
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

impl Piece {
    /// `region` is relative to the chunk. The data may lack leading axes of length 1.
    pub(super) fn new(region: Region, size: u64, data: &Data) -> Self {
        let source = match data {
            Data::Host(host) => Source::Host(host.clone()),
            Data::Device(device) => {
                let lacks = region.ndim().saturating_sub(device.shape().len());
                Source::Pulled(Arc::new(device.clone()), lacks)
            }
            Data::Lazy(lazy) => Source::Pulled(Arc::clone(lazy), 0),
            Data::None => Source::None,
        };
        Self {
            region,
            size,
            source,
        }
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
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
            _ => return Err("a piece does not fit its chunk".into()),
        }
    }
    Ok(())
}

/// The bytes of a chunk of this shape, in row-major order. What no piece has is zero. Each piece is read in row-major order, once.
pub(super) fn mosaic(chunk: Dims, size: u64, pieces: Vec<Piece>) -> Blocks {
    let blocks = Region::whole(&chunk).blocks(BLOCK / size.max(1));
    Box::new(blocks.map(move |block| put_together(&block, size, &pieces).map_err(io::Error::other)))
}

fn put_together(block: &Region, size: u64, pieces: &[Piece]) -> Result<bytes::Bytes, BoxError> {
    let layout = Layout::contiguous(size, &block.lengths).ok_or("a chunk is too large")?;
    let mut out = vec![0; usize::try_from(layout.bytes())?];
    for piece in pieces {
        if let Some(both) = block.intersect(&piece.region) {
            let to = layout.narrow(&both.within(block));
            piece.put(&both.within(&piece.region), &to, &mut out)?;
        }
    }
    Ok(out.into())
}
