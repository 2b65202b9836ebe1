//! Which stored chunks a region needs.

use crate::TensorRef;
use reshard_model::Region;

/// The chunks of one tensor, to be asked for regions.
#[derive(Debug)]
pub(crate) struct Index<'m> {
    tensor: TensorRef<'m>,
    /// Sorted once it pays.
    sorted: Option<Sorted>,
    asked: u32,
}

/// Chunks by their start on one axis.
#[derive(Debug)]
struct Sorted {
    axis: usize,
    starts: Vec<u64>,
    /// The largest end up to each of them.
    reach: Vec<u64>,
    positions: Vec<u32>,
}

/// So few chunks are looked at one by one.
const FEW: usize = 32;

impl<'m> Index<'m> {
    pub(crate) fn new(tensor: TensorRef<'m>) -> Self {
        Self {
            tensor,
            sorted: None,
            asked: 0,
        }
    }

    /// Positions of the chunks that share elements with `region`, ascending. A region without axes meets every chunk.
    pub(crate) fn meet(&mut self, region: &Region) -> Vec<u32> {
        if region.is_empty() {
            return Vec::new();
        }
        self.asked = self.asked.saturating_add(1);
        // Looking at all of them once is cheaper than sorting them.
        if self.sorted.is_none() && self.asked > 1 && self.tensor.chunk_count() > FEW {
            self.sorted = Sorted::new(self.tensor);
        }
        let exact = |p: &u32| {
            (0..region.ndim()).all(|axis| {
                let r = self.tensor.range(*p, axis);
                r.start < r.end && r.start < region.end(axis) && region.offsets[axis] < r.end
            })
        };
        let Some(s) = &self.sorted else {
            return self.tensor.positions().filter(exact).collect();
        };
        let mut end = s
            .starts
            .partition_point(|start| *start < region.end(s.axis));
        let mut out = Vec::new();
        while end > 0 && s.reach[end - 1] > region.offsets[s.axis] {
            end -= 1;
            out.extend(Some(s.positions[end]).filter(exact));
        }
        out.sort_unstable();
        out
    }
}

impl Sorted {
    /// By the axis on which chunks are shortest beside the tensor; `None` for tensors without axes.
    fn new(tensor: TensorRef<'_>) -> Option<Self> {
        let shape = tensor.shape();
        let length = |axis: usize| {
            let sum: f64 = tensor
                .positions()
                .map(|p| tensor.range(p, axis))
                .map(|r| (r.end - r.start) as f64)
                .sum();
            sum / shape[axis].max(1) as f64
        };
        let axis = (0..tensor.ndim()).min_by(|a, b| length(*a).total_cmp(&length(*b)))?;
        let mut positions: Vec<u32> = tensor.positions().collect();
        positions.sort_by_key(|p| tensor.range(*p, axis).start);
        let starts = positions
            .iter()
            .map(|p| tensor.range(*p, axis).start)
            .collect();
        let reach = positions
            .iter()
            .scan(0, |reach, p| {
                *reach = tensor.range(*p, axis).end.max(*reach);
                Some(*reach)
            })
            .collect();
        Some(Self {
            axis,
            starts,
            reach,
            positions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metadata;
    use reshard_model::DType;

    /// The same before and after the chunks are sorted.
    fn met(chunks: &[Region], region: &Region) -> Vec<u32> {
        let mut b = Metadata::builder();
        let w = b
            .add_tensor("w", DType::Int8, &[100, 4], Default::default())
            .unwrap();
        for c in chunks {
            b.add_chunk(w, c).unwrap();
        }
        let metadata = b.finish(None).unwrap();
        let mut index = Index::new(metadata.tensor("w").unwrap());
        let [first, second] = [(); 2].map(|()| index.meet(region));
        let sorts = chunks.len() > FEW && !region.is_empty();
        assert_eq!((index.sorted.is_some(), &first), (sorts, &second));
        first
    }

    #[test]
    fn chunks_that_only_touch_a_region_or_are_empty_do_not_meet_it() {
        for rows in [10, 50] {
            let row = |i: u64| Region::new([i, 0], [1, 4]);
            let mut chunks: Vec<Region> = (0..rows).map(row).collect();
            chunks.push(Region::new([5, 0], [0, 4]));
            chunks.push(Region::new([5, 2], [2, 0]));
            assert_eq!(met(&chunks, &Region::new([4, 1], [3, 2])), [4, 5, 6]);
            assert_eq!(met(&chunks, &Region::new([4, 1], [1, 1])), [4]);
            assert_eq!(met(&chunks, &Region::new([4, 1], [0, 1])), [0; 0]);
            assert_eq!(met(&chunks, &Region::new([99, 0], [1, 4])), [0; 0]);
        }
    }
}
