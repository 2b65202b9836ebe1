//! Whether the chunks of a tensor are the tensor: within bounds, disjoint, complete.

use crate::{At, Fault, Metadata, Problem, TensorRef, flat::FlatGrid};
use reshard_model::{BoxFault, Region, first_fault, first_overlap};

/// The first thing that is wrong with the chunks of a tensor, which these ranks write. Where holes are allowed nothing is said of them.
pub(crate) fn fault(
    tensor: TensorRef<'_>,
    allow_holes: bool,
    rank: impl Fn(usize) -> Option<u32>,
) -> Option<Fault> {
    let (shape, first, ndim) = (tensor.shape(), tensor.positions().start, tensor.ndim());
    let at = |i: usize| At::new(&tensor.region(first + i as u32), rank(i));
    let range = |i: usize, axis: usize| tensor.range(first + i as u32, axis);
    let chunks = tensor.chunk_count();
    let outside = |&i: &usize| (0..ndim).any(|axis| range(i, axis).end > shape[axis]);
    if let Some(i) = (0..chunks).find(outside) {
        return Some(Fault::OutOfBounds { at: at(i), shape });
    }
    let found = match allow_holes {
        true => first_overlap(chunks, ndim, range).map(|(i, j)| BoxFault::Overlap(i, j)),
        false => first_fault(&Region::whole(&shape), chunks, range),
    };
    found.map(|fault| Fault::of_chunks(fault, shape, at))
}

impl Metadata {
    /// Tensors whose chunks reach out of them, overlap, or leave a hole, and those that are stored flattened in a shape that does not fit
    /// theirs: the first such thing of each tensor, by key.
    pub fn problems(&self) -> Vec<Problem> {
        let problem = |t: TensorRef<'_>| {
            let grid = FlatGrid::of(t).err();
            let fault = grid.or_else(|| fault(t, false, |_| None))?;
            Some(fault.of(t.key()))
        };
        self.tensors().filter_map(problem).collect()
    }
}
