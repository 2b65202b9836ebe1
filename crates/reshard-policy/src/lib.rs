//! Decides which tensor, or which part of it, goes into which file of a checkpoint, and into how many parts a variable
//! is cut.
//!
//! A [`ShardingPolicy`] is called once per save, on the coordinator, with all [`Piece`]s of all tasks. In a rank-local save
//! each rank calls it once, with its own pieces. It cuts these pieces and groups the cuts into shards. [`decide`] checks
//! the coverage of every answer. The crate is pure: it never sees the bytes.
//!
//! | policy | what lies in a shard |
//! | --- | --- |
//! | [`ShardByTask`], [`ShardByDevice`] | the pieces of one task, or of one device of a task |
//! | [`MaxShardSize`] | at most a given number of bytes on disk; larger tensors are cut |
//! | [`ByFiles`], [`ByItem`] | a share of a task's pieces, or a single piece |
//! | [`ByOwner`] | one model's pieces |
//! | [`Importance`] | the pieces of one chosen key, or of all other keys |
//! | [`AllInOne`] | everything |
//! | [`Then`] | a part of a shard of the first policy, as the second policy divides it |
//!
//! [`partition`] has partitioners, which cut variables into parts. [`SliceSpec`] is TensorFlow's text form of a part.
//! `docs/policies.md` explains how to choose, configure and write policies.

mod all_in_one;
#[cfg(doctest)]
mod book;
mod by_owner;
mod by_task;
mod decide;
mod error;
mod files;
mod importance;
mod max_shard_size;
mod names;
pub mod partition;
mod piece;
mod policy;
mod shards;
mod size;
mod slice_spec;
mod tasks;
#[cfg(test)]
mod testing;
mod then;

pub use all_in_one::AllInOne;
pub use by_owner::ByOwner;
pub use by_task::{ShardByDevice, ShardByTask};
pub use decide::{
    Limits, PolicyMetrics, Shard, Sharding, decide, describe, files_per_task, gathers,
    max_file_bytes, plan_settings,
};
pub use error::{PolicyError, Result};
pub use files::{ByFiles, ByItem};
pub use importance::Importance;
pub use max_shard_size::{MaxShardSize, MaxShardSizeMode};
pub use names::{names, names_of};
pub use piece::{Content, Overhead, Piece, Slice};
pub use policy::ShardingPolicy;
pub use shards::{Cut, Shards};
pub use size::{ByteSize, GIB, KIB, MIB};
pub use slice_spec::SliceSpec;
pub use tasks::by_task;
pub use then::Then;
