//! Which tensor, or which part of it, goes into which file of a checkpoint; and into how many parts a variable is cut.
//!
//! A [`ShardingPolicy`] is asked once a save, on the coordinator, with all [`Piece`]s of all tasks. It answers with cuts of
//! these pieces, grouped into shards; [`decide`] checks the answer by coverage, whoever gave it. Pure: no bytes are seen here.

mod decide;
mod error;
mod files;
mod max_shard_size;
pub mod partition;
mod piece;
mod policy;
mod shards;
mod size;
mod tasks;
#[cfg(test)]
mod testing;

pub use decide::{Limits, PolicyMetrics, Shard, Sharding, decide};
pub use error::PolicyError;
pub use files::{ByFiles, ByItem};
pub use max_shard_size::{MaxShardSize, MaxShardSizeMode};
pub use piece::{Content, Piece, Slice};
pub use policy::ShardingPolicy;
pub use shards::{Cut, Shards};
pub use size::{ByteSize, GIB, KIB, MIB};

/// What can go wrong here.
pub type Result<T, E = PolicyError> = std::result::Result<T, E>;
