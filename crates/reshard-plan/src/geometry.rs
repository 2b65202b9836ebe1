//! Whether the chunks of a tensor are the tensor: within bounds, disjoint, complete.

use crate::{At, Metadata, Problem, TensorRef};
use reshard_model::{Region, first_hole, first_overlap};

/// What is wrong with the chunks of a tensor; numbers are indices into its list of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    OutOfBounds(usize),
    Overlap(usize, usize),
    Hole(Region),
}

impl Fault {
    pub(crate) fn problem(self, tensor: TensorRef<'_>, at: impl Fn(usize) -> At) -> Problem {
        let (key, shape) = (tensor.key().to_owned(), tensor.shape());
        match self {
            Self::OutOfBounds(i) => Problem::OutOfBounds { key, at: at(i), shape },
            Self::Overlap(i, j) => Problem::Overlap { key, a: at(i), b: at(j) },
            Self::Hole(region) => Problem::Hole { key, region, shape },
        }
    }
}

/// The first thing that is wrong with the chunks of a tensor.
pub(crate) fn fault(tensor: TensorRef<'_>) -> Option<Fault> {
    let (shape, first, ndim) = (tensor.shape(), tensor.positions().start, tensor.ndim());
    let range = |i: usize, axis: usize| tensor.range(first + i as u32, axis);
    let mut volume = 0u128;
    for i in 0..tensor.chunk_count() {
        let mut chunk = 1u128;
        for (axis, &extent) in shape.iter().enumerate() {
            let r = range(i, axis);
            if r.end > extent {
                return Some(Fault::OutOfBounds(i));
            }
            // Within bounds, chunks are no larger than the tensor; that one may be larger than any number.
            chunk = chunk.saturating_mul(u128::from(r.end - r.start));
        }
        volume = volume.saturating_add(chunk);
    }
    if let Some((i, j)) = first_overlap(tensor.chunk_count(), ndim, range) {
        return Some(Fault::Overlap(i, j));
    }
    let whole = shape.iter().fold(1u128, |v, &n| v.saturating_mul(n.into()));
    // A product that was cut short proves nothing.
    if volume == whole && whole < u128::MAX {
        return None;
    }
    let boxes: Vec<Region> = tensor.chunks().map(|(_, r)| r).collect();
    first_hole(&Region::whole(&shape), &boxes).map(Fault::Hole)
}

impl Metadata {
    /// Tensors whose chunks reach out of them, overlap, or leave a hole: the first such thing of each tensor, by key.
    pub fn problems(&self) -> Vec<Problem> {
        self.tensors()
            .filter_map(|t| {
                let at = |i: usize| At { region: t.region(t.positions().start + i as u32), rank: None };
                fault(t).map(|f| f.problem(t, at))
            })
            .collect()
    }
}
