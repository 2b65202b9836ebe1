//! Whether the chunks of a tensor are the tensor: within bounds, disjoint, complete.

use crate::{At, Metadata, Problem, TensorRef, flat::FlatGrid};
use reshard_model::{BoxFault, Region, first_fault, first_overlap};

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
            Self::OutOfBounds(i) => Problem::OutOfBounds {
                key,
                at: at(i),
                shape,
            },
            Self::Overlap(i, j) => Problem::Overlap {
                key,
                a: at(i),
                b: at(j),
            },
            Self::Hole(region) => Problem::Hole { key, region, shape },
        }
    }
}

/// The first thing that is wrong with the chunks of a tensor. Where holes are allowed nothing is said of them.
pub(crate) fn fault(tensor: TensorRef<'_>, allow_holes: bool) -> Option<Fault> {
    let (shape, first, ndim) = (tensor.shape(), tensor.positions().start, tensor.ndim());
    let range = |i: usize, axis: usize| tensor.range(first + i as u32, axis);
    let chunks = tensor.chunk_count();
    let outside = |&i: &usize| {
        shape
            .iter()
            .enumerate()
            .any(|(axis, &extent)| range(i, axis).end > extent)
    };
    if let Some(i) = (0..chunks).find(outside) {
        return Some(Fault::OutOfBounds(i));
    }
    if allow_holes {
        return first_overlap(chunks, ndim, range).map(|(i, j)| Fault::Overlap(i, j));
    }
    first_fault(&Region::whole(&shape), chunks, range).map(|fault| match fault {
        BoxFault::Overlap(i, j) => Fault::Overlap(i, j),
        BoxFault::Hole(region) => Fault::Hole(region),
    })
}

impl Metadata {
    /// Tensors whose chunks reach out of them, overlap, or leave a hole, and those that are stored flattened in a shape that does not fit
    /// theirs: the first such thing of each tensor, by key.
    pub fn problems(&self) -> Vec<Problem> {
        self.tensors()
            .filter_map(|t| {
                let at = |i: usize| At {
                    region: t.region(t.positions().start + i as u32),
                    rank: None,
                };
                let fault = || fault(t, false).map(|f| f.problem(t, at));
                FlatGrid::of(t).err().or_else(fault)
            })
            .collect()
    }
}
