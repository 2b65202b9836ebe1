use super::PartitionSpec;
use crate::{PolicyError, Result};
use reshard_model::{Dims, Region};

/// The maximal number of parts of a [`Grid`]. More parts are surely a mistake, and each of them takes memory.
pub const MAX_PARTS: u64 = 1 << 20;

/// A tensor that is cut along its axes, each axis at its own positions. Parts are numbered row-major.
///
/// ```
/// use reshard_model::Region;
/// use reshard_policy::partition::Grid;
/// let grid = Grid::even(&[5, 3], &[2, 3])?;
/// assert_eq!(grid.len(), 6);
/// assert_eq!(*grid.splits()[0], [3, 2]); // longer parts come first
/// assert_eq!(grid.region(4), Some(Region::new([3, 1], [2, 1])));
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    shape: Dims,
    splits: Vec<Dims>,
    /// Where the parts of each axis begin.
    starts: Vec<Dims>,
}

impl Grid {
    /// Cuts each axis into a number of parts of nearly equal length. For `n` parts of an axis of length `l`, the first
    /// `l % n` parts have `l / n + 1` indexes and the others have `l / n`. If there are more parts than indexes, the last
    /// ones are empty.
    ///
    /// # Errors
    /// The number of axes differs from the shape's, an axis has no parts, or there are more than [`MAX_PARTS`] in all.
    pub fn even(shape: &[u64], parts: &[u64]) -> Result<Self> {
        same_rank(shape, parts.len())?;
        check_count(shape, parts)?;
        let splits = shape
            .iter()
            .zip(parts)
            .map(|(&length, &n)| even(length, n))
            .collect();
        Ok(Self::build(shape, splits))
    }

    /// Cuts each axis into parts of given lengths. Each list must add up to the length of its axis. Parts may be empty.
    ///
    /// # Errors
    /// The number of lists differs from the shape's number of axes, a list has a wrong sum, or there are more than
    /// [`MAX_PARTS`] in all.
    pub fn of_splits(shape: &[u64], splits: &[Dims]) -> Result<Self> {
        same_rank(shape, splits.len())?;
        let parts: Dims = splits.iter().map(|s| s.len() as u64).collect();
        check_count(shape, &parts)?;
        for (axis, (&length, split)) in shape.iter().zip(splits).enumerate() {
            let sum = split.iter().try_fold(0u64, |sum, &n| sum.checked_add(n));
            if sum != Some(length) {
                let sum = sum.map_or("more than 64 bits hold".into(), |s| s.to_string());
                return Err(PolicyError::invalid(format!(
                    "the lengths {split} along axis {axis} add up to {sum}, but shape {} has {length} there",
                    Dims::from(shape)
                )));
            }
        }
        Ok(Self::build(shape, splits.to_vec()))
    }

    fn build(shape: &[u64], splits: Vec<Dims>) -> Self {
        let starts = |split: &Dims| {
            let running = split.iter().scan(0u64, |at, &n| {
                let start = *at;
                *at = at.saturating_add(n);
                Some(start)
            });
            running.collect()
        };
        Self {
            shape: shape.into(),
            starts: splits.iter().map(starts).collect(),
            splits,
        }
    }

    /// Shape of the whole.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Lengths of the parts, axis by axis.
    pub fn splits(&self) -> &[Dims] {
        &self.splits
    }

    /// Number of parts per axis.
    pub fn partitions(&self) -> Dims {
        self.splits.iter().map(|s| s.len() as u64).collect()
    }

    /// Number of parts. A scalar has one.
    pub fn len(&self) -> usize {
        self.splits.iter().map(|s| s.len()).product()
    }

    /// Whether there is no part. Always `false`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part with this number.
    pub fn region(&self, part: usize) -> Option<Region> {
        if part >= self.len() {
            return None;
        }
        let index = self.partitions().index_of(part as u64);
        let at =
            |axes: &[Dims]| (axes.iter().zip(&index).map(|(axis, i)| axis[*i as usize])).collect();
        Some(Region {
            offsets: at(&self.starts),
            lengths: at(&self.splits),
        })
    }

    /// All parts, by their numbers.
    pub fn regions(&self) -> impl Iterator<Item = Region> {
        (0..self.len()).filter_map(|part| self.region(part))
    }

    /// The partition in its shortest form: lengths are listed only for axes that are not cut evenly.
    pub fn spec(&self) -> PartitionSpec {
        let is_even = |(split, &length): (&Dims, &u64)| *split == even(length, split.len() as u64);
        if self.splits.iter().zip(&self.shape).all(is_even) {
            PartitionSpec::Partitions(self.partitions())
        } else {
            PartitionSpec::Splits(self.splits.clone())
        }
    }
}

fn even(length: u64, parts: u64) -> Dims {
    (0..parts)
        .map(|i| length / parts + u64::from(i < length % parts))
        .collect()
}

fn same_rank(shape: &[u64], axes: usize) -> Result<()> {
    if axes == shape.len() {
        return Ok(());
    }
    Err(PolicyError::invalid(format!(
        "a partition of {axes} axes for shape {}, which has {}; give one number, or one list, per axis",
        Dims::from(shape),
        shape.len()
    )))
}

fn check_count(shape: &[u64], parts: &[u64]) -> Result<()> {
    let shape = Dims::from(shape);
    if let Some(axis) = parts.iter().position(|&n| n == 0) {
        return Err(PolicyError::invalid(format!(
            "no parts along axis {axis} of shape {shape}; 1 leaves an axis whole"
        )));
    }
    match Dims::from(parts).volume() {
        Some(n) if n <= MAX_PARTS => Ok(()),
        _ => Err(PolicyError::invalid(format!(
            "{} parts of shape {shape} are more than {MAX_PARTS}",
            Dims::from(parts)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_model::first_fault;

    fn says(result: Result<Grid>, what: &str) {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    }

    #[test]
    fn thirteen_in_five_are_three_threes_and_two_twos() {
        let grid = Grid::even(&[13], &[5]).unwrap();
        assert_eq!(*grid.splits()[0], [3, 3, 3, 2, 2]);
        assert_eq!(*grid.starts[0], [0, 3, 6, 9, 11]);
    }

    #[test]
    fn a_scalar_is_one_part() {
        let grid = Grid::even(&[], &[]).unwrap();
        assert_eq!(grid.regions().collect::<Vec<_>>(), [Region::default()]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        says(
            Grid::even(&[4, 3], &[2]),
            "1 axes for shape [4, 3], which has 2",
        );
        says(Grid::even(&[4, 3], &[2, 0]), "no parts along axis 1");
        says(
            Grid::even(&[1 << 40, 9], &[1 << 40, 9]),
            "more than 1048576",
        );
        says(
            Grid::even(&[9, 9], &[u64::MAX, u64::MAX]),
            "more than 1048576",
        );
        says(
            Grid::of_splits(&[4], &[[3, 2].into()]),
            "[3, 2] along axis 0 add up to 5, but shape [4] has 4",
        );
        says(
            Grid::of_splits(&[4], &[[u64::MAX, 5].into()]),
            "more than 64 bits hold",
        );
        says(
            Grid::of_splits(&[4], &[Dims::default()]),
            "no parts along axis 0",
        );
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn parts_are_disjoint_and_complete(
            splits in prop::collection::vec(prop::collection::vec(0u64..4, 1..4), 0..4),
        ) {
            let splits: Vec<Dims> = splits.into_iter().map(Dims::from).collect();
            let shape: Vec<u64> = splits.iter().map(|s| s.iter().sum()).collect();
            let grid = Grid::of_splits(&shape, &splits).unwrap();
            let regions: Vec<Region> = grid.regions().collect();
            prop_assert_eq!(regions.len(), grid.len());
            prop_assert_eq!(grid.region(grid.len()), None);
            let range = |i: usize, a: usize| regions[i].offsets[a]..regions[i].end(a);
            prop_assert_eq!(first_fault(&Region::whole(&shape), regions.len(), range), None);
            prop_assert_eq!(grid.spec().grid_with_empty(&shape).unwrap(), grid);
        }
    }
}
