//! The same elements in row-major order, with other axes.

use super::{Loop, Move, Piece, strides};
use crate::error::Fault;
use reshard_model::Dims;

impl Piece {
    /// Adds to `out` the same elements in a tensor of another shape with as many elements. If a loop does not fit the new
    /// axes, the piece is cut.
    pub(crate) fn reshape(
        &self,
        old: &[u64],
        new: &[u64],
        out: &mut Vec<Self>,
        max: usize,
    ) -> Result<(), Fault> {
        let axes = Axes::of(new);
        let old = strides(old);
        let mut rest = vec![self.clone()];
        while let Some(piece) = rest.pop() {
            if out.len() + rest.len() >= max {
                return Err(Fault::Pieces);
            }
            match axes.place(&piece, &old) {
                Ok(placed) => out.push(placed),
                Err(Cut { at, places }) => {
                    let count = piece.loops.get(at).map_or(1, |l| l.count);
                    let places = places.clamp(1, count.saturating_sub(1).max(1));
                    rest.push(piece.select(at, places, count - places));
                    rest.push(piece.select(at, 0, places));
                }
            }
        }
        Ok(())
    }
}

/// A loop that has to be cut after so many places.
struct Cut {
    at: usize,
    places: u64,
}

/// The axes of a shape.
struct Axes<'a> {
    shape: &'a [u64],
    strides: Dims,
}

impl<'a> Axes<'a> {
    fn of(shape: &'a [u64]) -> Self {
        Self {
            shape,
            strides: strides(shape),
        }
    }

    /// The last axis whose stride is at most `by`, among those with more than one place.
    fn along(&self, by: u64) -> Option<usize> {
        (0..self.shape.len()).find(|a| self.shape[*a] > 1 && self.strides[*a] <= by)
    }

    /// The piece along these axes, if each loop can go along one axis, or along several from inner to outer.
    fn place(&self, piece: &Piece, old: &Dims) -> Result<Piece, Cut> {
        let first: u64 = piece
            .to
            .iter()
            .zip(old)
            .map(|(at, stride)| at * stride)
            .sum();
        let mut rest = first;
        let mut to = Dims::zeros(self.shape.len());
        for a in 0..self.shape.len() {
            to[a] = rest / self.strides[a];
            rest %= self.strides[a];
        }

        // From small strides to large ones. `last` is the last element along each axis that a placed loop reaches.
        let mut last = to.clone();
        let mut loops = Vec::with_capacity(piece.loops.len());
        let mut order: Vec<usize> = (0..piece.loops.len()).collect();
        let stride = |l: &Loop| l.to.step * old[l.to.axis];
        order.sort_by_key(|at| stride(&piece.loops[*at]));
        for at in order {
            let whole = piece.loops[at];
            self.place_loop(whole, stride(&whole), &mut last, &mut loops)
                .map_err(|places| Cut { at, places })?;
        }
        Ok(Piece {
            to,
            loops,
            ..piece.clone()
        }
        .tidy())
    }

    /// Lays a loop whose places are `by` elements apart along the axes. The error is the number of places after which the loop
    /// must be cut.
    fn place_loop(
        &self,
        whole: Loop,
        by: u64,
        last: &mut Dims,
        out: &mut Vec<Loop>,
    ) -> Result<(), u64> {
        // `done` places of the loop are one place of what is left of it.
        let (mut left, mut by, mut done) = (whole.count, by, 1);
        while left > 1 {
            let Some(axis) = self.along(by) else {
                return Err(1);
            };
            let step = by / self.strides[axis];
            if by % self.strides[axis] != 0 {
                return Err(left / 2 * done);
            }
            let extent = self.shape[axis];
            let room = (extent - 1 - last[axis]) / step + 1;
            let count = if left <= room {
                left
            } else {
                // The loop runs over the end of the axis. It goes on along the next outer one, if it fills this axis exactly.
                let full = extent / step;
                if last[axis] >= step || !extent.is_multiple_of(step) {
                    return Err(room * done);
                }
                if left % full != 0 {
                    return Err(left / full * full * done);
                }
                full
            };
            last[axis] += step * (count - 1);
            if count > 1 {
                out.push(Loop {
                    count,
                    to: Move { axis, step },
                    from: Move {
                        step: whole.from.step * done,
                        ..whole.from
                    },
                });
            }
            left /= count;
            done *= count;
            by = by.saturating_mul(count);
            if count == 1 {
                // Nothing fits along this axis; a larger stride can't help.
                return Err(done);
            }
        }
        Ok(())
    }
}
