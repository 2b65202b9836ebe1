//! Whether the chunks of a tensor are the tensor: within bounds, disjoint, complete.

use crate::{At, Fault, Metadata, Problem, TensorRef, flat::FlatGrid};
use reshard_model::{BoxFault, Region, first_fault, first_overlap};

/// What is no fault of the chunks of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// Elements that no chunk has.
    pub(crate) holes: bool,
    /// Chunks without elements that lie outside of the tensor.
    pub(crate) empty_outside: bool,
}

/// The first thing that is wrong with the chunks of a tensor, which these ranks write.
pub(crate) fn fault(
    tensor: TensorRef<'_>,
    allowed: Allowed,
    rank: impl Fn(usize) -> Option<u32>,
) -> Option<Fault> {
    let (shape, first, ndim) = (tensor.shape(), tensor.positions().start, tensor.ndim());
    let at = |i: usize| At::new(&tensor.region(first + i as u32), rank(i));
    let range = |i: usize, axis: usize| tensor.range(first + i as u32, axis);
    let chunks = tensor.chunk_count();
    let counts = |i: usize| !(allowed.empty_outside && (0..ndim).any(|a| range(i, a).is_empty()));
    let outside = |&i: &usize| counts(i) && (0..ndim).any(|a| range(i, a).end > shape[a]);
    if let Some(i) = (0..chunks).find(outside) {
        return Some(Fault::OutOfBounds { at: at(i), shape });
    }
    let found = match allowed.holes {
        true => first_overlap(chunks, ndim, range).map(|(i, j)| BoxFault::Overlap(i, j)),
        false => first_fault(&Region::whole(&shape), chunks, range),
    };
    found.map(|fault| Fault::of_chunks(fault, shape, at))
}

impl TensorRef<'_> {
    /// The first thing that is wrong with its chunks: one reaches out of it, two overlap, or they leave a hole. Or it is stored
    /// flattened in a shape that does not fit its own, or its elements can't be counted. Chunks without elements may lie anywhere.
    pub fn fault(&self) -> Option<Fault> {
        let allowed = Allowed {
            holes: false,
            empty_outside: true,
        };
        let shape = self.shape();
        if shape.volume().is_none() {
            return Some(Fault::TooLarge { shape });
        }
        let grid = FlatGrid::of(*self).err();
        grid.or_else(|| fault(*self, allowed, |_| None))
    }
}

impl Metadata {
    /// The [faults](TensorRef::fault) of tensors, one at most of each.
    pub fn problems(&self) -> Vec<Problem> {
        let problem = |t: TensorRef<'_>| Some(t.fault()?.of(t.key()));
        self.tensors().filter_map(problem).collect()
    }
}
