//! NumPy's basic slicing, over parts of any grid.

use super::Variable;
use crate::{EmbeddingError, Result, memory::written};
use reshard_model::{Dims, Region, Tensor};
use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

/// One entry of a subscript, as in NumPy's basic indexing. A range of `i64` is a slice with step 1.
///
/// ```
/// use reshard_embedding::{Index, ShardedVariable};
/// use reshard_model::Tensor;
/// let part = |rows: Vec<i32>| Tensor::from_vec(&[rows.len() as u64 / 2, 2], rows);
/// let v = ShardedVariable::from_parts("v", [part(vec![0, 1, 10, 11])?, part(vec![20, 21])?])?;
/// let last = v.slice(&[Index::At(-1)])?; // v[-1]
/// assert_eq!(last.to_vec::<i32>().unwrap(), [20, 21]);
/// let column = v.slice(&[Index::slice(None, None, -1), 1.into()])?; // v[::-1, 1]
/// assert_eq!(column.to_vec::<i32>().unwrap(), [21, 11, 1]);
/// let rows = v.slice(&[(1..).into(), Index::NewAxis])?; // v[1:, newaxis]
/// assert_eq!(*rows.shape(), [2, 1, 2].into());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// One index. A negative index counts from the end. The result lacks this axis.
    At(i64),
    /// `start:stop:step`, each as NumPy has it.
    Slice {
        /// First index; negative ones count from the end.
        start: Option<i64>,
        /// One past the last; negative ones count from the end.
        stop: Option<i64>,
        /// Step, 1 by default; not 0.
        step: Option<i64>,
    },
    /// `...`: all axes that the other entries leave. At most one is allowed.
    Ellipsis,
    /// A new axis of length 1.
    NewAxis,
}

impl Index {
    /// `start:stop:step`.
    pub fn slice(
        start: impl Into<Option<i64>>,
        stop: impl Into<Option<i64>>,
        step: impl Into<Option<i64>>,
    ) -> Self {
        Self::Slice {
            start: start.into(),
            stop: stop.into(),
            step: step.into(),
        }
    }

    const ALL: Self = Self::Slice {
        start: None,
        stop: None,
        step: None,
    };
}

impl From<i64> for Index {
    fn from(at: i64) -> Self {
        Self::At(at)
    }
}

impl From<Range<i64>> for Index {
    fn from(r: Range<i64>) -> Self {
        Self::slice(r.start, r.end, None)
    }
}

impl From<RangeFrom<i64>> for Index {
    fn from(r: RangeFrom<i64>) -> Self {
        Self::slice(r.start, None, None)
    }
}

impl From<RangeTo<i64>> for Index {
    fn from(r: RangeTo<i64>) -> Self {
        Self::slice(None, r.end, None)
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Self::ALL
    }
}

/// The indexes `start + step * k` for `k < count` of an axis. All of them lie in the axis.
#[derive(Clone, Copy, Debug)]
struct Selected {
    start: u64,
    step: i128,
    count: u64,
}

impl Selected {
    /// Which `k` give indexes in `lo..hi`.
    fn within(&self, lo: u64, hi: u64) -> Range<u64> {
        if hi <= lo || self.count == 0 {
            return 0..0;
        }
        let (start, n) = (i128::from(self.start), i128::from(self.count));
        // The first k whose index has come to `bound`, in the direction of the step.
        let reach = |bound: i128| {
            let (distance, step) = if self.step > 0 {
                (bound - start, self.step)
            } else {
                (start - bound, -self.step)
            };
            ((distance + step - 1).div_euclid(step)).clamp(0, n) as u64
        };
        if self.step > 0 {
            reach(lo.into())..reach(hi.into())
        } else {
            reach(i128::from(hi) - 1)..reach(i128::from(lo) - 1)
        }
    }

    fn index(&self, k: u64) -> u64 {
        (i128::from(self.start) + self.step * i128::from(k)) as u64
    }
}

impl Variable {
    /// The same as NumPy's result of this subscript, in new memory. Axes without an entry are taken whole.
    ///
    /// # Errors
    /// An index outside its axis, a step of 0, more entries than axes, two ellipses, or a part that has no data here.
    pub fn slice(&self, subscript: &[Index]) -> Result<Tensor> {
        let (selected, shape) = self.select(subscript)?;
        let cover = self.cover()?;
        let parts: Vec<(&Region, bytes::Bytes)> =
            cover.iter().map(|(r, t)| (*r, t.to_bytes())).collect();
        let item = self.dtype.size();
        let counts: Dims = selected.iter().map(|s| s.count).collect();
        let out = written(&self.name, self.dtype, &counts, |out| {
            // Of an empty one the strides may be anything.
            let parts = if out.is_empty() {
                &[]
            } else {
                parts.as_slice()
            };
            for (region, bytes) in parts {
                let axes = walks(item, &selected, &counts, region);
                if axes.iter().all(|axis| axis.count > 0) {
                    walk(&axes, bytes, 0, out, 0, item as usize);
                }
            }
            Ok(())
        })?;
        Ok(out.view(&shape)?)
    }

    /// What is selected of each axis, and the shape of the result.
    fn select(&self, subscript: &[Index]) -> Result<(Vec<Selected>, Dims)> {
        let fail = |what: String| Err(EmbeddingError::invalid(&self.name, what));

        // New axes and the ellipsis use up no axis of the variable.
        let named = subscript
            .iter()
            .filter(|i| matches!(i, Index::At(_) | Index::Slice { .. }))
            .count();
        let ellipses = subscript.iter().filter(|i| **i == Index::Ellipsis).count();
        if ellipses > 1 {
            return fail("a subscript has at most one ellipsis".into());
        }
        let Some(rest) = self.shape.len().checked_sub(named) else {
            return fail(format!(
                "{named} indexes for shape {}, which has {}",
                self.shape,
                self.shape.len()
            ));
        };

        // A subscript without an ellipsis has one at its end, as in NumPy. Below there is one entry for each axis.
        let mut entries: Vec<Index> = Vec::with_capacity(subscript.len() + rest);
        for &entry in subscript {
            match entry {
                Index::Ellipsis => entries.extend(std::iter::repeat_n(Index::ALL, rest)),
                entry => entries.push(entry),
            }
        }
        if ellipses == 0 {
            entries.extend(std::iter::repeat_n(Index::ALL, rest));
        }

        // `selected` has every axis of the variable. `shape` is that of the result, where single indexes drop their
        // axis.
        let (mut selected, mut shape) = (Vec::with_capacity(self.shape.len()), Dims::default());
        for entry in entries {
            let axis = selected.len();
            let extent = self.shape.get(axis).copied().unwrap_or(0);
            match entry {
                Index::NewAxis => shape.push(1),
                Index::At(at) => {
                    // In 128 bits neither a negative index nor an extent beyond `i64` can overflow.
                    let from_start = if at < 0 {
                        i128::from(at) + i128::from(extent)
                    } else {
                        at.into()
                    };
                    if from_start < 0 || from_start >= i128::from(extent) {
                        return fail(format!(
                            "index {at} is outside of axis {axis}, which has length {extent}"
                        ));
                    }
                    selected.push(Selected {
                        start: from_start as u64,
                        step: 1,
                        count: 1,
                    });
                }
                Index::Slice { step: Some(0), .. } => {
                    return fail(format!("a slice of axis {axis} has step 0"));
                }
                Index::Slice { start, stop, step } => {
                    let s = clamped(start, stop, step.unwrap_or(1), extent);
                    shape.push(s.count);
                    selected.push(s);
                }
                Index::Ellipsis => {}
            }
        }
        Ok((selected, shape))
    }
}

/// Python's rule for `start:stop:step` of a sequence of `extent`.
fn clamped(start: Option<i64>, stop: Option<i64>, step: i64, extent: u64) -> Selected {
    let (extent, step) = (i128::from(extent), i128::from(step));
    let (lowest, highest) = if step > 0 {
        (0, extent)
    } else {
        (-1, extent - 1)
    };
    let bound = |given: Option<i64>, default: i128| match given.map(i128::from) {
        None => default,
        Some(i) if i < 0 => (i + extent).max(lowest),
        Some(i) => i.min(highest),
    };
    let (first, end) = if step > 0 {
        (lowest, highest)
    } else {
        (highest, lowest)
    };
    let (start, stop) = (bound(start, first), bound(stop, end));
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 {
        0
    } else {
        (distance - 1) / step.abs() + 1
    };
    Selected {
        start: start.max(0) as u64,
        step,
        count: count as u64,
    }
}

/// How one axis of a part goes to the result: so many indexes, bytes to go in the part and in the result for each.
#[derive(Clone, Copy, Debug)]
struct Walk {
    count: u64,
    first: (u64, u64),
    from: i128,
    to: u64,
}

/// All axes of one part; empty axes make an empty walk.
fn walks(item: u64, selected: &[Selected], counts: &[u64], region: &Region) -> Vec<Walk> {
    let (mut from, mut to) = (item, item);
    let mut out: Vec<Walk> = Vec::with_capacity(selected.len());
    for axis in (0..selected.len()).rev() {
        let (s, lo) = (&selected[axis], region.offsets[axis]);
        let k = s.within(lo, region.end(axis));
        let count = k.end.saturating_sub(k.start);
        let first = if count == 0 {
            (0, 0)
        } else {
            (
                (s.index(k.start) - lo).saturating_mul(from),
                k.start.saturating_mul(to),
            )
        };
        out.push(Walk {
            count,
            first,
            from: s.step * i128::from(from),
            to,
        });
        // Strides of a part that has nothing to give are not used.
        from = from.saturating_mul(region.lengths[axis]);
        to = to.saturating_mul(counts[axis]);
    }
    out.reverse();
    out
}

/// Copies what the axes say, from `from` in a part to `to` in the result.
fn walk(axes: &[Walk], bytes: &[u8], from: usize, out: &mut [u8], to: usize, item: usize) {
    let Some((axis, inner)) = axes.split_first() else {
        out[to..to + item].copy_from_slice(&bytes[from..from + item]);
        return;
    };
    let (mut from, mut to) = (from + axis.first.0 as usize, to + axis.first.1 as usize);
    if inner.is_empty() && axis.from == item as i128 {
        let run = axis.count as usize * item;
        out[to..to + run].copy_from_slice(&bytes[from..from + run]);
        return;
    }
    for k in 0..axis.count {
        walk(inner, bytes, from, out, to, item);
        if k + 1 < axis.count {
            from = (from as i128 + axis.from) as usize;
            to += axis.to as usize;
        }
    }
}
