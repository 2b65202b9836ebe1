//! Regular grids of chunks.

use reshard_model::{Dims, Region};

/// More chunks of one array are surely a mistake: each is a file.
pub(crate) const MAX_CHUNKS: u64 = 1 << 24;

/// A shape, cut into chunks of equal shape. Chunks at the end of an axis may reach beyond the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    shape: Dims,
    chunk: Dims,
}

impl Grid {
    /// `None` if the two have different numbers of axes, or chunks have no elements.
    pub(crate) fn new(shape: Dims, chunk: Dims) -> Option<Self> {
        (shape.len() == chunk.len() && !chunk.contains(&0)).then_some(Self { shape, chunk })
    }

    /// Elements per axis of a chunk.
    pub(crate) fn chunk(&self) -> &Dims {
        &self.chunk
    }

    /// Number of chunks per axis, as a box of positions.
    pub(crate) fn positions(&self) -> Region {
        let counts = self.shape.iter().zip(&*self.chunk);
        Region {
            offsets: Dims::zeros(self.shape.len()),
            lengths: counts.map(|(n, c)| n.div_ceil(*c)).collect(),
        }
    }

    /// Number of chunks; `None` if it does not fit 64 bits.
    pub(crate) fn count(&self) -> Option<u64> {
        self.positions().volume()
    }

    /// The elements of the chunk at a position, with those beyond the shape.
    pub(crate) fn cell(&self, at: &[u64]) -> Region {
        Region {
            offsets: at
                .iter()
                .zip(&*self.chunk)
                .map(|(i, n)| i.saturating_mul(*n))
                .collect(),
            lengths: self.chunk.clone(),
        }
    }

    /// The elements of the chunk at a position.
    pub(crate) fn region(&self, at: &[u64]) -> Region {
        let mut region = self.cell(at);
        for axis in 0..region.ndim() {
            let left = self.shape[axis].saturating_sub(region.offsets[axis]);
            region.lengths[axis] = region.lengths[axis].min(left);
        }
        region
    }

    /// The position of the chunk with an element.
    pub(crate) fn at(&self, element: &[u64]) -> Dims {
        element
            .iter()
            .zip(&*self.chunk)
            .map(|(i, n)| i / n)
            .collect()
    }

    /// The positions of the chunks that a region touches. The region must have elements.
    pub(crate) fn met(&self, region: &Region) -> Region {
        let offsets = self.at(&region.offsets);
        let lengths = (0..region.ndim())
            .map(|a| {
                region
                    .end(a)
                    .div_ceil(self.chunk[a])
                    .saturating_sub(offsets[a])
            })
            .collect();
        Region { offsets, lengths }
    }

    /// Whether there is a chunk at a position.
    pub(crate) fn contains(&self, at: &[u64]) -> bool {
        let counts = self.positions().lengths;
        at.len() == counts.len() && at.iter().zip(&*counts).all(|(i, n)| i < n)
    }

    /// The position of chunk `number`, counted in row-major order.
    pub(crate) fn nth(&self, number: u64) -> Dims {
        let positions = self.positions();
        let mut rest = number;
        let digit = |(stride, n): (&u64, &u64)| {
            let digit = rest / stride.max(&1);
            rest %= stride.max(&1);
            digit.min(n.saturating_sub(1))
        };
        let strides = positions.strides();
        strides.iter().zip(&*positions.lengths).map(digit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_at_the_end_reach_beyond_the_shape() {
        let grid = Grid::new([10, 7].into(), [4, 7].into()).unwrap();
        assert_eq!(grid.count(), Some(3));
        assert_eq!(grid.region(&[2, 0]), Region::new([8, 0], [2, 7]));
        assert_eq!(grid.cell(&[2, 0]), Region::new([8, 0], [4, 7]));
        let met = grid.met(&Region::new([3, 1], [2, 1]));
        assert_eq!(met, Region::new([0, 0], [2, 1]));
        assert_eq!(Grid::new([4].into(), [0].into()), None);
        assert_eq!(Grid::new([4].into(), [1, 1].into()), None);
        let scalar = Grid::new(Dims::default(), Dims::default()).unwrap();
        assert_eq!((scalar.count(), scalar.nth(0)), (Some(1), Dims::default()));
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn chunks_are_disjoint_and_make_up_the_shape(
            axes in proptest::collection::vec((0u64..9, 1u64..5), 0..4),
        ) {
            let (shape, chunk): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
            let grid = Grid::new(shape[..].into(), chunk[..].into()).unwrap();
            let all: Vec<Region> =
                (0..grid.count().unwrap()).map(|n| grid.region(&grid.nth(n))).collect();
            let volume: u64 = all.iter().map(|r| r.volume().unwrap()).sum();
            prop_assert_eq!(volume, shape.iter().product::<u64>());
            for (n, region) in all.iter().enumerate() {
                prop_assert!(region.fits(&shape) && !region.is_empty());
                prop_assert_eq!(grid.at(&region.offsets), grid.nth(n as u64));
                prop_assert_eq!(grid.met(region).volume(), Some(1));
                prop_assert!(all[..n].iter().all(|other| other.intersect(region).is_none() || shape.is_empty()));
            }
        }
    }
}
