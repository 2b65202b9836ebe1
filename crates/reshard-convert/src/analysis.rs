//! What is in the tensors of a checkpoint, and how those of two checkpoints differ. Tensors are read in blocks, on several threads, so
//! memory does not depend on their size.

mod blocks;
mod diff;
mod numbers;
mod stats;
mod view;

pub use blocks::BLOCK as ANALYSIS_BLOCK;
pub use diff::{CheckpointDiff, Diff, TensorDiff, Tolerance, diff, diff_mapped};
pub use stats::{DamagedTensor, Flag, Stats, TensorStats, stats};
