//! Which tensor, or which part of it, goes into which file of a checkpoint; and into how many parts a variable is cut.
//!
//! A [`ShardingPolicy`] is asked once a save, on the coordinator, with all [`Piece`]s of all tasks. It answers with cuts of
//! these pieces, grouped into shards; [`decide`] checks the answer by coverage, whoever gave it. Pure: no bytes are seen here.
//!
//! | policy | what lies in a shard |
//! | --- | --- |
//! | [`ShardByTask`], [`ShardByDevice`] | what one task, or one device of it, has |
//! | [`MaxShardSize`] | so many bytes; larger tensors are cut |
//! | [`ByFiles`], [`ByItem`] | a share of a task's pieces, or one of them |
//! | [`ByOwner`] | one model's pieces |
//! | [`Importance`] | a chosen key, or the rest |
//! | [`AllInOne`] | everything |
//! | [`Then`] | what a second policy makes of a shard of the first |
//!
//! [`partition`] has partitioners, which cut variables into parts, and [`SliceSpec`] is TensorFlow's text for a part. A guide
//! to choosing, configuring and writing policies is `docs/policies.md`.

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
pub use decide::{Limits, PolicyMetrics, Shard, Sharding, decide, describe, gathers};
pub use error::{PolicyError, Result};
pub use files::{ByFiles, ByItem};
pub use importance::Importance;
pub use max_shard_size::{MaxShardSize, MaxShardSizeMode};
pub use piece::{Content, Piece, Slice};
pub use policy::ShardingPolicy;
pub use shards::{Cut, Shards};
pub use size::{ByteSize, GIB, KIB, MIB};
pub use slice_spec::SliceSpec;
pub use tasks::by_task;
pub use then::Then;
