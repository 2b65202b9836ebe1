//! What variables in parts promise, in sentences and in laws.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod hostile;
mod lookups;
mod rebalancing;
mod scatters;
mod scopes;
mod slices;
mod variables;

use proptest::prelude::*;
use reshard_embedding::{PartitionedVariable, ShardedVariable};
use reshard_model::{DType, Dims, Region, Tensor};
use reshard_policy::partition::PartitionSpec;

/// 0, 1, 2, … in this shape.
fn counted(shape: &[u64]) -> Tensor {
    let n = shape.iter().product::<u64>();
    Tensor::from_vec(shape, (0..n as i64).collect()).unwrap()
}

/// A table of int64 in parts of so many rows, of which element `i` is `i`.
fn table(rows: &[u64], inner: &[u64]) -> ShardedVariable {
    let mut at = 0;
    let parts = rows.iter().map(|&n| {
        let shape = [&[n], inner].concat();
        let first = at;
        at += shape.iter().product::<u64>() as i64;
        Tensor::from_vec(&shape, (first..at).collect::<Vec<i64>>()).unwrap()
    });
    ShardedVariable::from_parts("table", parts).unwrap()
}

/// A tensor's box, in memory of its own.
fn cut(whole: &Tensor, offset: &[u64], shape: &[u64]) -> Tensor {
    let part = whole.narrow(&Region::new(offset, shape));
    Tensor::from_vec(shape, part.to_vec::<i64>().unwrap()).unwrap()
}

/// A variable cut along all axes as `splits` says, of which element `i` is `i`.
fn grid(splits: &[Vec<u64>]) -> PartitionedVariable {
    let shape: Vec<u64> = splits.iter().map(|s| s.iter().sum()).collect();
    let spec = PartitionSpec::Splits(splits.iter().map(|s| Dims::from(s.as_slice())).collect());
    let whole = counted(&shape);
    let part = |_: &[u64], offset: &[u64], shape: &[u64]| Ok(cut(&whole, offset, shape));
    PartitionedVariable::create("w", &shape, DType::Int64, &spec, 3, part).unwrap()
}

/// Lengths of parts along some axes; parts may be empty.
fn splits(axes: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prop::collection::vec(0u64..4, 1..4), axes)
}

/// Rows of some parts, of which at least one has some.
fn rows() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0u64..7, 1..6)
        .prop_filter("some rows", |rows| rows.iter().any(|&n| n > 0))
}
