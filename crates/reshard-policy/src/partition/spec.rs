use super::Grid;
use crate::{PolicyError, Result};
use reshard_model::Dims;
use serde::{Deserialize, Serialize};

/// How a variable is cut: into a number of parts, or into parts of given lengths. If several axes are cut, the parts form a
/// grid.
///
/// ```
/// use reshard_policy::partition::PartitionSpec;
/// let even = PartitionSpec::partitions([2, 1]);
/// let uneven = PartitionSpec::splits([[1, 4].as_slice(), &[3]]);
/// assert_eq!(*even.grid(&[5, 3])?.splits()[0], [3, 2]);
/// assert_eq!(*uneven.grid(&[5, 3])?.splits()[0], [1, 4]);
/// assert!(uneven.grid(&[6, 3]).is_err());
/// let json = r#"{ "splits": [[3, 2], [3]] }"#;
/// let spec: PartitionSpec = serde_json::from_str(json).unwrap();
/// assert_eq!(spec.grid(&[5, 3])?.spec(), even);
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionSpec {
    /// The number of parts per axis, of [nearly equal length](Grid::even).
    Partitions(Dims),
    /// The lengths of the parts, one list per axis.
    Splits(Vec<Dims>),
}

impl PartitionSpec {
    /// Cuts each axis into so many parts.
    pub fn partitions(parts: impl Into<Dims>) -> Self {
        Self::Partitions(parts.into())
    }

    /// Cuts each axis into parts of these lengths, one list per axis.
    pub fn splits<'a>(lists: impl IntoIterator<Item = &'a [u64]>) -> Self {
        Self::Splits(lists.into_iter().map(Dims::from).collect())
    }

    /// Cuts nothing, for a shape of so many axes.
    pub fn whole(ndim: usize) -> Self {
        Self::Partitions(Dims::splat(1, ndim))
    }

    /// The parts of a tensor of this shape. None of them is empty, except that an axis of length 0 has one empty part.
    ///
    /// # Errors
    /// The errors of [`grid_with_empty`](Self::grid_with_empty), and an empty part.
    pub fn grid(&self, shape: &[u64]) -> Result<Grid> {
        let grid = self.grid_with_empty(shape)?;
        let empty = |split: &Dims| split.len() > 1 && split.contains(&0);
        if let Some(axis) = grid.splits().iter().position(empty) {
            return Err(PolicyError::invalid(format!(
                "a part along axis {axis} of shape {} would be empty: {} in {} parts, with lengths {}",
                Dims::from(shape),
                shape[axis],
                grid.splits()[axis].len(),
                grid.splits()[axis],
            )));
        }
        Ok(grid)
    }

    /// As [`grid`](Self::grid), but parts may be empty. Some formats, such as TensorFlow's, can't store empty parts.
    ///
    /// # Errors
    /// The number of axes differs from the shape's, lengths don't add up to their axis, or there are no or too many parts.
    pub fn grid_with_empty(&self, shape: &[u64]) -> Result<Grid> {
        match self {
            Self::Partitions(parts) => Grid::even(shape, parts),
            Self::Splits(splits) => Grid::of_splits(shape, splits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_part_is_refused_unless_it_is_allowed_or_the_axis_is_empty() {
        let three = PartitionSpec::partitions([3]);
        let message = three.grid(&[2]).unwrap_err().to_string();
        assert!(
            message.contains("2 in 3 parts, with lengths [1, 1, 0]"),
            "{message}"
        );
        assert_eq!(three.grid_with_empty(&[2]).unwrap().len(), 3);
        assert!(
            PartitionSpec::splits([[0, 2].as_slice()])
                .grid(&[2])
                .is_err()
        );
        assert_eq!(PartitionSpec::whole(2).grid(&[0, 4]).unwrap().len(), 1);
        assert!(PartitionSpec::partitions([2, 1]).grid(&[0, 4]).is_err());
    }

    #[test]
    fn even_lengths_become_a_number_of_parts_and_others_stay() {
        let grid = |splits: &[u64]| PartitionSpec::splits([splits]).grid(&[7]);
        let normal = |splits: &[u64]| grid(splits).unwrap().spec();
        assert_eq!(normal(&[3, 2, 2]), PartitionSpec::partitions([3]));
        assert_eq!(normal(&[7]), PartitionSpec::whole(1));
        assert_eq!(
            normal(&[2, 3, 2]),
            PartitionSpec::splits([[2, 3, 2].as_slice()])
        );
        assert!(grid(&[3, 2]).is_err());
    }

    #[test]
    fn configuration_says_partitions_or_splits_and_nothing_else() {
        let parse = |s: &str| serde_json::from_str::<PartitionSpec>(s);
        assert_eq!(
            parse(r#"{"partitions": [2, 1]}"#).unwrap(),
            PartitionSpec::partitions([2, 1])
        );
        assert!(parse(r#"{"partitions": [2], "splits": [[1, 1]]}"#).is_err());
        assert!(parse(r#"{"parts": [2]}"#).is_err());
        assert!(parse(r#"{"partitions": [-1]}"#).is_err());
    }
}
