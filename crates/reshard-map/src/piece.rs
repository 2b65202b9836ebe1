//! Pieces: which elements of a tensor are which elements of a source.

use crate::error::Fault;
use reshard_model::{DType, Dims, Region};

mod reshape;

/// A walk along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// The axis.
    pub axis: usize,
    /// So many elements further each time.
    pub step: u64,
}

/// A walk through a tensor and its source at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loop {
    /// How many places it has, two or more.
    pub count: u64,
    /// Where each of them is in the tensor.
    pub to: Move,
    /// Where it is in the source.
    pub from: Move,
}

/// Elements of a tensor, and where they come from: nested loops that walk through both at once. No element of the tensor comes
/// twice, and none of the source.
///
/// A box that is copied as it is has one loop for each axis. If axes are transposed, a loop goes along different axes in
/// tensor and source. If an axis is interleaved, it has two loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which source it is.
    pub source: usize,
    /// The first element in the tensor.
    pub to: Dims,
    /// The first element in the source.
    pub from: Dims,
    /// Sorted by the axis of the tensor, then from large steps to small ones.
    pub loops: Vec<Loop>,
    /// The types to which the elements are cast, one after the other. None if they stay as they are.
    pub casts: Vec<DType>,
}

impl Piece {
    /// All of a source of this shape, as it is. `None` if it has no elements.
    pub(crate) fn whole(source: usize, shape: &[u64]) -> Option<Self> {
        if shape.contains(&0) {
            return None;
        }
        let walk = |(axis, &count): (usize, &u64)| {
            let step = Move { axis, step: 1 };
            (count > 1).then_some(Loop {
                count,
                to: step,
                from: step,
            })
        };
        Some(Self {
            source,
            to: Dims::zeros(shape.len()),
            from: Dims::zeros(shape.len()),
            loops: shape.iter().enumerate().filter_map(walk).collect(),
            casts: Vec::new(),
        })
    }

    /// The number of its elements.
    pub fn volume(&self) -> u64 {
        self.loops.iter().fold(1, |n, l| n.saturating_mul(l.count))
    }

    /// Whether each element has the same place in the tensor and in the source, and nothing is cast.
    pub fn is_identity(&self) -> bool {
        self.to == self.from && self.loops.iter().all(|l| l.to == l.from) && self.casts.is_empty()
    }

    /// The smallest box of the tensor that has all of its elements.
    pub fn to_box(&self) -> Region {
        hull(&self.to, self.loops.iter().map(|l| (l.count, l.to)))
    }

    /// The smallest box of the source that has all of its elements.
    pub fn from_box(&self) -> Region {
        hull(&self.from, self.loops.iter().map(|l| (l.count, l.from)))
    }

    /// With tensor and source exchanged. The casts are left out.
    pub(crate) fn swapped(&self, source: usize) -> Self {
        let swap = |l: &Loop| Loop {
            count: l.count,
            to: l.from,
            from: l.to,
        };
        Self {
            source,
            to: self.from.clone(),
            from: self.to.clone(),
            loops: self.loops.iter().map(swap).collect(),
            casts: Vec::new(),
        }
        .tidy()
    }

    /// With its loops in order, and with as few as possible.
    pub(crate) fn tidy(mut self) -> Self {
        self.loops.retain(|l| l.count > 1);
        self.loops
            .sort_by(|a, b| (a.to.axis, b.to.step).cmp(&(b.to.axis, a.to.step)));
        let mut out: Vec<Loop> = Vec::with_capacity(self.loops.len());
        for inner in self.loops {
            match out.last_mut() {
                // The outer loop goes on where the inner one ends, in both.
                Some(outer)
                    if goes_on(outer.to, inner.to, inner.count)
                        && goes_on(outer.from, inner.from, inner.count) =>
                {
                    *outer = Loop {
                        count: outer.count.saturating_mul(inner.count),
                        ..inner
                    };
                }
                _ => out.push(inner),
            }
        }
        self.loops = out;
        self
    }

    /// The part in which a loop takes `count` places from `start` on.
    pub(crate) fn select(&self, at: usize, start: u64, count: u64) -> Self {
        let mut out = self.clone();
        if let Some(l) = out.loops.get_mut(at) {
            out.to[l.to.axis] += l.to.step * start;
            out.from[l.from.axis] += l.from.step * start;
            l.count = count;
            if count < 2 {
                out.loops.remove(at);
            }
        }
        out
    }

    /// Adds to `out` the parts that lie in a box of the tensor.
    pub(crate) fn within(
        &self,
        region: &Region,
        out: &mut Vec<Self>,
        max: usize,
    ) -> Result<(), Fault> {
        if region.is_empty() || region.ndim() != self.to.len() {
            return Ok(());
        }
        let hull = self.to_box();
        if region.contains(&hull) {
            if out.len() >= max {
                return Err(Fault::Pieces);
            }
            out.push(self.clone());
            return Ok(());
        }
        if region.intersect(&hull).is_none() {
            return Ok(());
        }

        // An axis along which it sticks out, and its outermost loop there. There is one, because one place can't stick out of a
        // box and lie in it.
        let sticks_out =
            |a: &usize| hull.offsets[*a] < region.offsets[*a] || hull.end(*a) > region.end(*a);
        let Some(axis) = (0..region.ndim()).find(sticks_out) else {
            return Ok(());
        };
        let outermost = self
            .loops
            .iter()
            .enumerate()
            .filter(|(_, l)| l.to.axis == axis)
            .max_by_key(|(_, l)| l.to.step);
        let Some((at, Loop { count, to, .. })) = outermost else {
            return Ok(());
        };

        // Each place of the loop is `width` elements wide, from `first + step * i` on.
        let (lo, hi, first) = (region.offsets[axis], region.end(axis), self.to[axis]);
        let width = hull.lengths[axis] - to.step * (count - 1);
        let touched = lo
            .checked_sub(first + width)
            .map_or(0, |by| by / to.step + 1);
        let touched_end = hi.saturating_sub(first).div_ceil(to.step).min(*count);
        let inside = lo
            .saturating_sub(first)
            .div_ceil(to.step)
            .max(touched)
            .min(touched_end);
        let inside_end = hi
            .checked_sub(first + width)
            .map_or(0, |by| by / to.step + 1)
            .min(touched_end)
            .max(inside);
        for i in (touched..inside).chain(inside_end..touched_end) {
            self.select(at, i, 1).within(region, out, max)?;
        }
        if inside < inside_end {
            self.select(at, inside, inside_end - inside)
                .within(region, out, max)?;
        }
        Ok(())
    }
}

/// Whether an outer loop goes on where an inner one of `count` places ends.
fn goes_on(outer: Move, inner: Move, count: u64) -> bool {
    outer.axis == inner.axis && inner.step.checked_mul(count) == Some(outer.step)
}

fn hull(first: &Dims, moves: impl Iterator<Item = (u64, Move)>) -> Region {
    let mut lengths = Dims::splat(1, first.len());
    for (count, Move { axis, step }) in moves {
        lengths[axis] += step * (count - 1);
    }
    Region::new(first.clone(), lengths)
}

/// The elements from one place of each axis to the next, in row-major order. `shape` is one of a [checked](check_shape) tensor.
pub(crate) fn strides(shape: &[u64]) -> Dims {
    let mut out = Dims::splat(1, shape.len());
    for a in (1..shape.len()).rev() {
        out[a - 1] = out[a].saturating_mul(shape[a].max(1));
    }
    out
}

/// The most axes of a tensor.
pub(crate) const MAX_AXES: usize = 64;

/// Refuses shapes whose elements can't be counted. Afterwards no offset overflows.
pub(crate) fn check_shape(shape: &[u64]) -> Result<(), Fault> {
    if shape.len() > MAX_AXES {
        return Err(Fault::wrong(format!(
            "it would have more than {MAX_AXES} axes"
        )));
    }
    let volume = shape
        .iter()
        .try_fold(1u64, |n, extent| n.checked_mul((*extent).max(1)));
    match volume {
        Some(n) if n <= i64::MAX as u64 => Ok(()),
        _ => Err(Fault::wrong(format!(
            "shape {} has more elements than 63 bits can count",
            Dims::from(shape)
        ))),
    }
}
