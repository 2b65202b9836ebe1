//! Into how many parts a variable is cut, and where.
//!
//! A [`Partitioner`] gives a number of parts per axis; a [`PartitionSpec`] is such numbers, or lengths at will; a [`Grid`] is
//! either of them on a shape, with the region of every part. What is made from a grid uses its real offsets, so that uneven
//! parts are no special case.

mod grid;
mod partitioners;
mod spec;

pub use grid::{Grid, MAX_PARTS};
pub use partitioners::{
    ElementType, FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
    fixed_size_partitioner, min_max_variable_partitioner, variable_axis_size_partitioner,
};
pub use spec::PartitionSpec;
