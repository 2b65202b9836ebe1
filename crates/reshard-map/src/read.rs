//! Reads regions of mapped tensors.

use crate::{MappedTensor, Mapping, Piece, Source, piece::strides};
use reshard_model::{BoxError, DType, Dims, Layout, Region, Segments};

/// The elements of a checkpoint.
pub trait Elements {
    /// Reads the elements of a region of a tensor, in row-major order. `out` has exactly their length in bytes.
    ///
    /// # Errors
    /// What the checkpoint says.
    fn read(&self, source: &Source, region: &Region, out: &mut [u8]) -> Result<(), BoxError>;

    /// Casts elements of type `from` to `to`. `out` has room for exactly as many.
    ///
    /// # Errors
    /// The types can't be cast.
    fn cast(&self, from: DType, elements: &[u8], to: DType, out: &mut [u8])
    -> Result<(), BoxError>;
}

/// A read takes at most so many bytes of elements that nobody wants.
const MOST_BETWEEN: u64 = 256 << 10;

/// A read that can't go into the caller's memory takes at most about so many bytes.
const MOST_AT_ONCE: u64 = 4 << 20;

impl Mapping {
    /// Reads the elements of a region of a tensor, in row-major order. `out` must have exactly their length in bytes. It reads only the
    /// bytes of the region, except small gaps between them. It holds a few megabytes of memory whatever the size of the region.
    ///
    /// # Errors
    /// The region does not lie in the shape, `out` has another length, or an error of `elements`.
    pub fn read(
        &self,
        tensor: &MappedTensor,
        region: &Region,
        elements: &dyn Elements,
        out: &mut [u8],
    ) -> Result<(), BoxError> {
        let volume = region.volume().ok_or("a region is too large")?;
        let bytes = volume.checked_mul(tensor.dtype.size());
        if !region.fits(&tensor.shape) || bytes != Some(out.len() as u64) {
            return Err(format!(
                "region {region} of shape {} does not have {} bytes",
                tensor.shape,
                out.len()
            )
            .into());
        }
        let pieces = tensor.region(region);
        let covered = pieces
            .iter()
            .map(Piece::volume)
            .fold(0, u64::saturating_add);
        if covered < volume {
            out.fill(0);
        }
        for piece in pieces {
            let source = self
                .sources
                .get(piece.source)
                .ok_or("a piece has no source")?;
            let target = Target {
                region,
                strides: strides(&region.lengths),
                item: tensor.dtype.size(),
            };
            target.read(piece, source, elements, out)?;
        }
        Ok(())
    }
}

/// The region that is read.
struct Target<'a> {
    region: &'a Region,
    strides: Dims,
    item: u64,
}

impl Target<'_> {
    /// Reads the elements of a piece of the region. A piece is cut along its slowest axis of the source if a read would take too
    /// much else, or too much at once.
    fn read(
        &self,
        piece: Piece,
        source: &Source,
        elements: &dyn Elements,
        out: &mut [u8],
    ) -> Result<(), BoxError> {
        let source_strides = strides(&source.shape);
        let item = source.dtype.size();
        let mut rest = vec![piece];
        while let Some(piece) = rest.pop() {
            let hull = piece.from_box();
            let whole = hull.volume().ok_or("a box is too large")?;
            let needless = (whole - piece.volume().min(whole)).saturating_mul(item);
            let (from, to) = self.layouts(&piece, &hull, item)?;
            let at = self.contiguous(&piece, &to, whole);
            let slowest = (0..piece.loops.len()).max_by_key(|at| {
                let from = piece.loops[*at].from;
                from.step.saturating_mul(source_strides[from.axis])
            });
            let too_much = needless > MOST_BETWEEN
                || (at.is_none() && whole.saturating_mul(item) > MOST_AT_ONCE);
            match slowest {
                Some(at) if too_much => {
                    let count = piece.loops[at].count;
                    rest.push(piece.select(at, count / 2, count - count / 2));
                    rest.push(piece.select(at, 0, count / 2));
                }
                _ => match at {
                    Some(at) => {
                        let bytes = usize::try_from(whole.saturating_mul(item))?;
                        let at = usize::try_from(at)?;
                        let out = out.get_mut(at..).and_then(|o| o.get_mut(..bytes));
                        elements.read(
                            source,
                            &hull,
                            out.ok_or("a piece sticks out of its region")?,
                        )?;
                    }
                    None => self.scatter(&piece, source, &hull, (from, to), elements, out)?,
                },
            }
        }
        Ok(())
    }

    /// Where the elements of a piece lie: in the box that has them in the source, and in the region.
    fn layouts(
        &self,
        piece: &Piece,
        hull: &Region,
        item: u64,
    ) -> Result<(Layout, Layout), BoxError> {
        let in_hull = strides(&hull.lengths);
        let counts: Dims = piece.loops.iter().map(|l| l.count).collect();
        let from = piece
            .loops
            .iter()
            .map(|l| l.from.step * in_hull[l.from.axis])
            .collect();
        let to = piece
            .loops
            .iter()
            .map(|l| l.to.step * self.strides[l.to.axis])
            .collect();
        let start = (0..piece.to.len())
            .map(|a| (piece.to[a] - self.region.offsets[a]) * self.strides[a])
            .sum();
        let from = Layout::new(item, 0, counts.clone(), from);
        let to = Layout::new(self.item, start, counts, to);
        Ok((
            from.ok_or("a box is too large")?,
            to.ok_or("a region is too large")?,
        ))
    }

    /// The first byte of a piece in the region, if its elements lie there one after the other in the order of the source.
    fn contiguous(&self, piece: &Piece, to: &Layout, whole: u64) -> Option<u64> {
        let in_order = piece.loops.windows(2).all(|two| {
            let [outer, inner] = two else { return false };
            (outer.from.axis, std::cmp::Reverse(outer.from.step))
                < (inner.from.axis, std::cmp::Reverse(inner.from.step))
        });
        let full = whole == piece.volume() && to.is_contiguous();
        (full && in_order && piece.casts.is_empty()).then(|| to.start() * self.item)
    }

    /// Reads a box of the source, casts it, and copies the elements of the piece to their places.
    fn scatter(
        &self,
        piece: &Piece,
        source: &Source,
        hull: &Region,
        (from, to): (Layout, Layout),
        elements: &dyn Elements,
        out: &mut [u8],
    ) -> Result<(), BoxError> {
        let count = usize::try_from(hull.volume().ok_or("a box is too large")?)?;
        let room = |dtype: DType| -> Result<Vec<u8>, BoxError> {
            let size = usize::try_from(dtype.size())?;
            Ok(vec![
                0;
                count.checked_mul(size).ok_or("a box is too large")?
            ])
        };
        let (mut dtype, mut got) = (source.dtype, room(source.dtype)?);
        elements.read(source, hull, &mut got)?;
        for next in &piece.casts {
            let mut cast = room(*next)?;
            elements.cast(dtype, &got, *next, &mut cast)?;
            (dtype, got) = (*next, cast);
        }
        let from = Layout::new(self.item, 0, from.shape().clone(), from.strides().clone());
        for (from, to, len) in Segments::row_major(&from.ok_or("a box is too large")?, &to) {
            let (from, to, len) = (
                usize::try_from(from)?,
                usize::try_from(to)?,
                usize::try_from(len)?,
            );
            let part = got.get(from..).and_then(|b| b.get(..len));
            match (part, out.get_mut(to..).and_then(|b| b.get_mut(..len))) {
                (Some(part), Some(out)) => out.copy_from_slice(part),
                _ => return Err("a piece lies outside of what was read".into()),
            }
        }
        Ok(())
    }
}
