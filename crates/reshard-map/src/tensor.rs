//! A tensor that is made of pieces of sources, and what can be done to it.

use crate::{
    error::Fault,
    piece::{Piece, check_shape},
    rule::Blocks,
};
use reshard_model::{DType, Dims, Region};

/// How often the elements of a tensor may be cast, one type after the other.
const MAX_CASTS: usize = 8;

/// A tensor that is made of pieces of sources. The pieces share no element. Elements that no piece has are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedTensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    pub(crate) pieces: Vec<Piece>,
}

impl MappedTensor {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements along each axis.
    pub fn shape(&self) -> &Dims {
        &self.shape
    }

    /// What it is made of.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces that make up a region, which must lie in the shape. Their places in the tensor count from its start, not from
    /// that of the region.
    pub fn region(&self, region: &Region) -> Vec<Piece> {
        let mut out = Vec::new();
        for piece in &self.pieces {
            // Without a limit nothing fails.
            drop(piece.within(region, &mut out, usize::MAX));
        }
        out
    }

    /// Whether each element is that of the same place in one source.
    pub fn is_identity(&self) -> bool {
        let same = |p: &Piece| {
            p.is_identity() && self.pieces.first().is_some_and(|f| f.source == p.source)
        };
        self.pieces.iter().all(same) && Some(self.volume()) == self.shape.volume()
    }

    /// The number of elements that come from sources.
    pub(crate) fn volume(&self) -> u64 {
        self.pieces
            .iter()
            .map(Piece::volume)
            .fold(0, u64::saturating_add)
    }

    /// A source as it is.
    pub(crate) fn of_source(source: usize, dtype: DType, shape: &Dims) -> Result<Self, Fault> {
        check_shape(shape)?;
        Ok(Self {
            dtype,
            shape: shape.clone(),
            pieces: Piece::whole(source, shape).into_iter().collect(),
        })
    }

    /// A tensor of zeros.
    pub(crate) fn zeros(dtype: DType, shape: Dims) -> Result<Self, Fault> {
        check_shape(&shape)?;
        Ok(Self {
            dtype,
            shape,
            pieces: Vec::new(),
        })
    }

    /// The number of elements along an axis.
    pub(crate) fn extent(&self, axis: usize) -> Result<u64, Fault> {
        self.shape.get(axis).copied().ok_or_else(|| {
            Fault::wrong(format!(
                "there is no axis {axis}; it has {} axes, counted from 0",
                self.shape.len()
            ))
        })
    }

    /// The places `start .. start + len` of an axis, which must lie in it.
    pub(crate) fn slice(
        &self,
        axis: usize,
        start: u64,
        len: u64,
        max: usize,
    ) -> Result<Self, Fault> {
        let mut region = Region::whole(&self.shape);
        (region.offsets[axis], region.lengths[axis]) = (start, len);
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            piece.within(&region, &mut pieces, max)?;
        }
        for piece in &mut pieces {
            piece.to[axis] -= start;
        }
        Ok(Self {
            dtype: self.dtype,
            shape: region.lengths,
            pieces,
        })
    }

    /// The tensor in one that has `extent` places along an axis, from place `at` on. The others are zero.
    pub(crate) fn embed(mut self, axis: usize, at: u64, extent: u64) -> Result<Self, Fault> {
        self.shape[axis] = extent;
        check_shape(&self.shape)?;
        for piece in &mut self.pieces {
            piece.to[axis] += at;
        }
        Ok(self)
    }

    /// With an axis more, which has one place.
    pub(crate) fn insert_axis(mut self, axis: usize) -> Result<Self, Fault> {
        if axis > self.shape.len() {
            return Err(Fault::wrong(format!(
                "no axis {axis} can be added; it has {} axes",
                self.shape.len()
            )));
        }
        let with = |dims: &Dims, value| -> Dims {
            let (before, after) = dims.split_at(axis);
            [before, &[value], after].concat().into()
        };
        self.shape = with(&self.shape, 1);
        check_shape(&self.shape)?;
        for piece in &mut self.pieces {
            piece.to = with(&piece.to, 0);
            for l in &mut piece.loops {
                l.to.axis += usize::from(l.to.axis >= axis);
            }
        }
        Ok(self)
    }

    /// Without an axis that has one place.
    pub(crate) fn remove_axis(mut self, axis: usize) -> Self {
        let without = |dims: &Dims| -> Dims {
            let others = dims.iter().enumerate().filter(|(a, _)| *a != axis);
            others.map(|(_, n)| *n).collect()
        };
        self.shape = without(&self.shape);
        for piece in &mut self.pieces {
            piece.to = without(&piece.to);
            for l in &mut piece.loops {
                l.to.axis -= usize::from(l.to.axis > axis);
            }
        }
        self
    }

    /// Axis `axes[a]` becomes axis `a`.
    pub(crate) fn transpose(mut self, axes: &[usize]) -> Result<Self, Fault> {
        if axes.len() != self.shape.len() {
            return Err(Fault::wrong(format!(
                "`axes` names {} axes, and it has {}",
                axes.len(),
                self.shape.len()
            )));
        }
        let permuted = |dims: &Dims| -> Dims { axes.iter().map(|a| dims[*a]).collect() };
        let place = |axis: usize| axes.iter().position(|a| *a == axis).unwrap_or(axis);
        self.shape = permuted(&self.shape);
        let turn = |mut piece: Piece| {
            piece.to = permuted(&piece.to);
            for l in &mut piece.loops {
                l.to.axis = place(l.to.axis);
            }
            piece.tidy()
        };
        self.pieces = self.pieces.into_iter().map(turn).collect();
        Ok(self)
    }

    /// The same elements in row-major order, with other axes.
    pub(crate) fn reshape(self, shape: Dims, max: usize) -> Result<Self, Fault> {
        check_shape(&shape)?;
        if self.shape.volume() != shape.volume() {
            return Err(Fault::wrong(format!(
                "shape {shape} has another number of elements"
            )));
        }
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            piece.reshape(&self.shape, &shape, &mut pieces, max)?;
        }
        Ok(Self {
            dtype: self.dtype,
            shape,
            pieces,
        })
    }

    /// Several tensors one after the other along an axis.
    pub(crate) fn concat(parts: Vec<Self>, axis: usize) -> Result<Self, Fault> {
        let Some(first) = parts.first() else {
            return Err(Fault::wrong("there is nothing to join"));
        };
        first.extent(axis)?;
        let (dtype, mut shape) = (first.dtype, first.shape.clone());
        let mut total = 0u64;
        for part in &parts {
            let mut other = part.shape.clone();
            total = total.saturating_add(part.extent(axis)?);
            other[axis] = shape[axis];
            if (part.dtype, &other) != (dtype, &shape) {
                return Err(Fault::wrong(format!(
                    "{} of shape {} and {dtype} of shape {shape} can't be joined along axis {axis}",
                    part.dtype, part.shape
                )));
            }
        }
        shape[axis] = total;
        let mut out = Self::zeros(dtype, shape)?;
        let mut at = 0;
        for part in parts {
            let extent = part.shape[axis];
            out.pieces.extend(part.embed(axis, at, total)?.pieces);
            at += extent;
        }
        Ok(out)
    }

    /// Several tensors of one shape along a new axis.
    pub(crate) fn stack(parts: Vec<Self>, axis: usize) -> Result<Self, Fault> {
        let parts = parts.into_iter().map(|p| p.insert_axis(axis));
        Self::concat(parts.collect::<Result<_, _>>()?, axis)
    }

    /// From parts one after the other, each of which has a block for each group, to the blocks of each group one after the other.
    /// `sizes` are those of the blocks of a group.
    pub(crate) fn interleave(self, blocks: &Blocks<u64>, max: usize) -> Result<Self, Fault> {
        let (axis, groups, sizes) = (blocks.axis, blocks.groups, &blocks.sizes);
        let group = self.check_groups(blocks)?;
        let shape = self.shape.clone();
        let mut out = Self::zeros(self.dtype, split_axis(&shape, axis, groups, group))?;
        let mut before = 0;
        for size in sizes {
            let part = self.slice(axis, before * groups, size * groups, max)?;
            let blocks = split_axis(&shape, axis, groups, *size);
            let part = part.reshape(blocks, max)?.embed(axis + 1, before, group)?;
            out.pieces.extend(part.pieces);
            fits(out.pieces.len(), max)?;
            before += size;
        }
        out.reshape(shape, max)
    }

    /// The inverse of [`interleave`](Self::interleave).
    pub(crate) fn deinterleave(self, blocks: &Blocks<u64>, max: usize) -> Result<Self, Fault> {
        let (axis, groups, sizes) = (blocks.axis, blocks.groups, &blocks.sizes);
        let group = self.check_groups(blocks)?;
        let shape = self.shape.clone();
        let grouped = self.reshape(split_axis(&shape, axis, groups, group), max)?;
        let mut parts = Vec::with_capacity(sizes.len());
        let (mut before, mut pieces) = (0, 0);
        for size in sizes {
            let mut part = shape.clone();
            part[axis] = size * groups;
            let blocks = grouped.slice(axis + 1, before, *size, max)?;
            let blocks = blocks.reshape(part, max)?;
            pieces += blocks.pieces.len();
            fits(pieces, max)?;
            parts.push(blocks);
            before += size;
        }
        Self::concat(parts, axis)
    }

    /// The size of a group; an axis must have so many groups.
    fn check_groups(&self, blocks: &Blocks<u64>) -> Result<u64, Fault> {
        let Blocks {
            axis,
            groups,
            sizes,
        } = blocks;
        let extent = self.extent(*axis)?;
        match sum(sizes) {
            Some(group) if group.checked_mul(*groups) == Some(extent) => Ok(group),
            _ => Err(Fault::wrong(format!(
                "axis {axis} has {extent} places, which are not {groups} groups of {}",
                joined(sizes)
            ))),
        }
    }

    /// With another element type.
    pub(crate) fn cast(mut self, to: DType) -> Result<Self, Fault> {
        if self.dtype != to {
            if self.pieces.iter().any(|p| p.casts.len() >= MAX_CASTS) {
                return Err(Fault::wrong(format!(
                    "it is cast {MAX_CASTS} times before; leave casts out whose types no other rule needs"
                )));
            }
            self.dtype = to;
            self.pieces.iter_mut().for_each(|p| p.casts.push(to));
        }
        Ok(self)
    }
}

/// Fails if there are too many pieces.
fn fits(pieces: usize, max: usize) -> Result<(), Fault> {
    match pieces > max {
        true => Err(Fault::Pieces),
        false => Ok(()),
    }
}

/// The sum of sizes; `None` if it is too large.
pub(crate) fn sum(sizes: &[u64]) -> Option<u64> {
    sizes.iter().try_fold(0u64, |sum, n| sum.checked_add(*n))
}

/// Sizes in a message.
pub(crate) fn joined(sizes: &[u64]) -> String {
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    sizes.join(" + ")
}

/// A shape with two axes in place of one.
fn split_axis(shape: &[u64], axis: usize, outer: u64, inner: u64) -> Dims {
    let (before, after) = shape.split_at(axis.min(shape.len()));
    let after = after.get(1..).unwrap_or_default();
    [before, &[outer, inner], after].concat().into()
}
