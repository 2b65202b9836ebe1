//! Ranges of row-major tensors: where boxes of the tensor lie in them.

use crate::{Dims, Layout, Region};
use serde::{Deserialize, Serialize};

/// Says that elements are a range of a row-major tensor: in their own row-major order, they are those from `start` on of a tensor of
/// shape `shape`. Megatron Core's flattened ranges are such elements, in memory and as they are stored.
///
/// ```
/// use reshard_model::{FlatView, Layout, Region};
///
/// // The elements 3..9 of a tensor of shape [3, 4] lie in one row. The tensor's second row begins at the second of them.
/// let stored = Layout::contiguous(4, &[6]).unwrap();
/// let view = FlatView { shape: [3, 4].into(), start: 3 };
/// assert_eq!(view.narrow(&stored, &Region::new([1, 0], [1, 4])).unwrap().hull(), 4..20);
/// assert_eq!(view.narrow(&stored, &Region::new([0, 0], [1, 4])), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlatView {
    /// Shape of the tensor.
    pub shape: Dims,
    /// The first element of the range, in elements of that tensor.
    pub start: u64,
}

impl FlatView {
    /// Where a box of the tensor lies, if the range has the layout `range`. `None` if the box does not lie in the tensor, an element of it
    /// is not in the range, or the elements of the range are not at equal distances.
    pub fn narrow(&self, range: &Layout, region: &Region) -> Option<Layout> {
        if !region.fits(&self.shape) {
            return None;
        }
        let step = step(range)?;
        let rows = Layout::contiguous(range.item(), &self.shape)?.narrow(region);
        let mut start = range.start();
        if rows.elements() > 0 {
            let reach = rows
                .shape()
                .iter()
                .zip(rows.strides())
                .map(|(n, stride)| (n - 1) * stride)
                .sum::<u64>();
            let first = rows.start().checked_sub(self.start)?;
            (first.checked_add(reach)? < range.elements()).then_some(())?;
            start = start.checked_add(first.checked_mul(step)?)?;
        }
        let strides: Option<Dims> = rows
            .strides()
            .iter()
            .map(|stride| stride.checked_mul(step))
            .collect();
        Layout::new(rows.item(), start, rows.shape().clone(), strides?)
    }
}

/// The distance of neighbours in row-major order, if it is always the same.
fn step(layout: &Layout) -> Option<u64> {
    let mut axes = layout
        .shape()
        .iter()
        .zip(layout.strides())
        .rev()
        .filter(|(n, _)| **n > 1);
    let Some((&n, &step)) = axes.next() else {
        return Some(1);
    };
    let mut next = step.checked_mul(n)?;
    for (&n, &stride) in axes {
        if stride != next {
            return None;
        }
        next = stride.checked_mul(n)?;
    }
    Some(step)
}
