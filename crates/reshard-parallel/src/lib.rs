//! Strategies around strategies, which share the work of a checkpoint between replicas. They fit around any format.
//!
//! - [`FullyParallelSave`]: each replicated tensor is written by one rank of a group, and all of its ranks write about as many bytes.
//! - [`distribute_shards_to_ranks`]: Megatron Core's choice of these ranks.
//!
//! ```
//! use reshard::{ShardedTensor, StateDict, Tensor, blocking};
//! use reshard_parallel::FullyParallelSave;
//! use reshard_torch_dist::TorchDistConfig;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = dir.path().join("ckpt").display().to_string();
//! let mut state = StateDict::new();
//! state.insert("w", ShardedTensor::full("w", Tensor::from_vec(&[2], vec![1f32, 2.])?));
//! let settings = FullyParallelSave::new(TorchDistConfig::default());
//! blocking::run(reshard::save(&state, &url).strategy(settings))?;
//! # Ok(())
//! # }
//! ```

mod distribute;
mod group;
mod load;
mod planner;
mod save;

pub use distribute::{HeldShard, distribute_shards_to_ranks};
pub use load::FullyParallelLoad;
pub use reshard_plan::ExchangeAlgo;
pub use save::FullyParallelSave;
