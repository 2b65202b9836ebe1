//! Decides into how many parts a variable is cut, and where.
//!
//! A [`Partitioner`] returns a number of parts per axis. A [`PartitionSpec`] has such numbers, or arbitrary lengths. A
//! [`Grid`] applies either of them to a shape, and has the region of every part. Users of a grid use its real offsets, so
//! uneven parts are no special case.

mod grid;
mod partitioners;
mod spec;

pub use grid::{Grid, MAX_PARTS};
pub use partitioners::{
    ElementType, FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
    fixed_size_partitioner, min_max_variable_partitioner, variable_axis_size_partitioner,
};
pub use spec::PartitionSpec;
