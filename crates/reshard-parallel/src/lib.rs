//! Layers around strategies, which share the work of a checkpoint between replicas. They fit around any format.
//!
//! - [`FullyParallelSave`]: each replicated tensor is written by one rank of a group, and all of its ranks write about as many bytes.
//! - [`FullyParallelLoad`]: each piece is read by one rank of a group, which hands it to the others. Ranks that want different regions, which
//!   overlap or are columns of stored rows, share reads, too.
//! - [`TwoStageLoad`]: one rank of a group reads everything.
//! - [`OneReaderLoad`]: one rank opens and reads the files, and sends the other ranks the table and their parts.
//! - [`distribute_shards_to_ranks`]: Megatron Core's choice of these ranks.
//!
//! ```
//! use reshard::{LocalGroup, ShardedTensor, StateDict, Tensor, Value, ValueTree, blocking};
//! use reshard_parallel::{FullyParallelLoad, FullyParallelSave};
//! use reshard_torch_dist::{TorchDistConfig, TorchDistLoadConfig};
//! use std::thread;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = &dir.path().join("ckpt").display().to_string();
//! // Two ranks hold the same tensor. One of them writes it, and one of them reads it.
//! thread::scope(|scope| {
//!     for (rank, group) in (0u32..).zip(LocalGroup::new(2)) {
//!         scope.spawn(move || {
//!             let tensor = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
//!             let mut state = StateDict::new();
//!             state.insert("w", ShardedTensor::full("w", tensor).with_replica_id(rank));
//!             let settings = FullyParallelSave::new().around(TorchDistConfig::new());
//!             blocking::run(reshard::save(&state, url).group(&group).strategy(settings)).unwrap();
//!
//!             let settings = FullyParallelLoad::new().around(TorchDistLoadConfig::default());
//!             let loaded = blocking::run(reshard::load(state, url).group(&group).strategy(settings)).unwrap();
//!             let Some(ValueTree::Leaf(Value::Tensor(w))) = loaded.get("w") else { panic!("w is a tensor") };
//!             assert_eq!(w.to_vec::<f32>().unwrap(), [1., 2.]);
//!         });
//!     }
//! });
//! ```

mod distribute;
mod group;
mod load;
mod one_reader;
mod planner;
mod save;
mod two_stage;

pub use distribute::{HeldShard, distribute_shards_to_ranks};
pub use load::FullyParallelLoad;
pub use one_reader::OneReaderLoad;
pub use reshard_plan::ExchangeAlgo;
pub use save::FullyParallelSave;
pub use two_stage::TwoStageLoad;
