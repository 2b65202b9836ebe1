//! Runs a policy and checks its answer.

use crate::{Cut, Piece, PolicyError, Result, ShardingPolicy, Shards};
use serde::{Deserialize, Serialize};
use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

mod check;

/// Limits on the size of a policy's answer, and on what is made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximal number of slices. The default is 4 per piece, plus a million.
    pub max_slices: Option<usize>,
    /// The maximal number of files of all tasks together. The default is one per slice, plus 16 million empty ones.
    pub max_files: Option<u64>,
}

/// A checked shard, which is a file of one task.
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
    /// The minimal number of files that each task writes.
    pub files_per_task: u32,
    /// Figures of the call.
    pub metrics: PolicyMetrics,
}

impl Sharding {
    /// Checks how many files these tasks write together: each its shards, or [`files_per_task`](Self::files_per_task) if that is
    /// more. It takes memory for the tasks, but not for the files.
    ///
    /// # Errors
    /// [`PolicyError::TooManyFiles`].
    pub fn check_files(&self, tasks: Range<u32>, limits: Limits) -> Result<()> {
        let mut each = vec![0u64; tasks.len()];
        for shard in &self.shards {
            let at = shard.task.checked_sub(tasks.start);
            if let Some(files) = at.and_then(|at| each.get_mut(at as usize)) {
                *files += 1;
            }
        }
        let least = u64::from(self.files_per_task);
        let files = each.into_iter().map(|files| files.max(least));
        let files = files.fold(0, u64::saturating_add);
        let limit = limits.max_files;
        let limit = limit.unwrap_or_else(|| self.metrics.slices.saturating_add(MAX_EMPTY_OF_ALL));
        if files <= limit {
            return Ok(());
        }
        let source = PolicyError::TooManyFiles { files, limit };
        Err(PolicyError::failed(&self.metrics.description, source))
    }
}

/// Figures of a policy's call. The sizes that [`decide`] computes, and that its `tracing` event has as fields, are those of the
/// payload. A save replaces them by [the lengths of its files](Self::of_files).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyMetrics {
    /// The policy's description of itself.
    pub description: String,
    /// How long the call took. Zero in a save whose plan was known, for which the policy was not asked.
    pub duration: Duration,
    /// Number of shards.
    pub shards: u64,
    /// Number of slices.
    pub slices: u64,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Bytes of the largest shard.
    pub largest: u64,
    /// Bytes of the smallest shard.
    pub smallest: u64,
    /// Tensors of which a piece was cut.
    pub split_tensors: u64,
}

impl PolicyMetrics {
    /// Of a policy whose limit holds for a format that makes one file.
    pub fn of_one_file(description: String) -> Self {
        Self {
            description,
            ..Self::default()
        }
    }

    /// Replaces number and sizes of shards by those of the files that were written.
    #[must_use]
    pub fn of_files(self, lengths: &[u64]) -> Self {
        Self {
            shards: lengths.len() as u64,
            bytes: lengths.iter().fold(0, |sum, &n| sum.saturating_add(n)),
            largest: lengths.iter().copied().max().unwrap_or(0),
            smallest: lengths.iter().copied().min().unwrap_or(0),
            ..self
        }
    }
}

/// Calls `policy`, and checks its answer: every element of every piece lies in exactly one slice, an empty piece is in a
/// slice too, a shard has pieces of one task only, no whole piece is cut, and no other slice is empty or lies outside its
/// piece. The check takes
/// O(n log n) time and O(n) memory for n slices, in addition to the policy itself.
///
/// ```
/// use reshard_model::{DType, Region};
/// use reshard_policy::{Content, Limits, MaxShardSize, Overhead, Piece, decide};
/// let whole = Region::whole(&[10]);
/// let piece = Piece {
///     key: "w", name: "w", content: Content::Tensor(DType::Float32), global_shape: &[10], region: &whole,
///     task: 0, device: "cpu", owner: "", tag: None, bytes: 40, whole: false,
///     overhead: Overhead::default(),
/// };
/// let sharding = decide(&MaxShardSize::new(32), &[piece], Limits::default())?;
/// assert_eq!(sharding.shards[0].cuts[0].region, Region::new([0], [8]));
/// assert_eq!((sharding.metrics.largest, sharding.metrics.smallest), (32, 8));
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
///
/// # Errors
/// The error of the policy, its panic, or the fault in its answer, with the policy's description, the key, the slices and
/// the shard.
pub fn decide(
    policy: &dyn ShardingPolicy,
    pieces: &[Piece<'_>],
    limits: Limits,
) -> Result<Sharding> {
    if u32::try_from(pieces.len()).is_err() {
        return Err(PolicyError::invalid(format!(
            "{} pieces are too many; at most 2^32 - 1 are possible",
            pieces.len()
        )));
    }
    pieces.iter().try_for_each(Piece::check)?;

    // The policy may be the user's code, so each call of it is guarded against panics.
    let description = describe(policy)?;
    let files_per_task = guarded(&description, || policy.files_per_task())?;
    if files_per_task as usize > pieces.len().saturating_add(MAX_EMPTY) {
        let what = format!(
            "{files_per_task} files per task for {} pieces; take fewer",
            pieces.len()
        );
        return Err(PolicyError::failed(
            &description,
            PolicyError::invalid(what),
        ));
    }

    // A limit stops a policy that makes slices without end before it fills the memory.
    let limit = limits
        .max_slices
        .unwrap_or_else(|| pieces.len().saturating_mul(4).saturating_add(1_000_000));
    let limit = limit.min(u32::MAX as usize);
    let mut out = Shards::with_limit(limit);
    let start = Instant::now();
    let said = guarded(&description, || policy.shard(pieces, &mut out))?;
    let duration = start.elapsed();
    let answer = said.and_then(|()| out.finish()).and_then(|answer| {
        // A policy may have put another list in the place of the one that counted.
        let slices: usize = answer.iter().map(Vec::len).sum();
        if slices > limit {
            Err(PolicyError::TooMany { limit })
        } else {
            Ok(answer)
        }
    });
    let answer = answer.map_err(|source| PolicyError::failed(&description, source))?;
    check::check(&description, pieces, &answer)?;

    let metrics = PolicyMetrics {
        description,
        duration,
        ..metrics(pieces, &answer)
    };
    tracing::info!(
        policy = metrics.description,
        duration_us = metrics.duration.as_micros() as u64,
        shards = metrics.shards,
        slices = metrics.slices,
        bytes = metrics.bytes,
        largest = metrics.largest,
        smallest = metrics.smallest,
        split_tensors = metrics.split_tensors,
        "a sharding policy has decided"
    );

    // A shard has pieces of one task only, as the check made sure, so the first one tells.
    let task = |cuts: &[Cut]| cuts.first().map_or(0, |c| pieces[c.piece as usize].task);
    let shards = answer
        .into_iter()
        .map(|cuts| Shard {
            task: task(&cuts),
            cuts,
        })
        .collect();
    Ok(Sharding {
        shards,
        files_per_task,
        metrics,
    })
}

/// More empty files than that are surely a mistake.
const MAX_EMPTY: usize = 65_536;

/// And more of all tasks together, which take 64 MiB of memory before the first one is written.
const MAX_EMPTY_OF_ALL: u64 = 1 << 24;

/// What a policy says of itself.
///
/// # Errors
/// When it panics.
pub fn describe(policy: &dyn ShardingPolicy) -> Result<String> {
    guarded("", || policy.description())
}

/// Whether a policy wants all pieces on one task.
///
/// # Errors
/// When it panics.
pub fn gathers(policy: &dyn ShardingPolicy) -> Result<bool> {
    guarded(&describe(policy)?, || policy.gathers())
}

/// How many files a policy wants of each task at least.
///
/// # Errors
/// When it panics.
pub fn files_per_task(policy: &dyn ShardingPolicy) -> Result<u32> {
    guarded(&describe(policy)?, || policy.files_per_task())
}

/// The size that no file exceeds, if a policy promises one.
///
/// # Errors
/// When it panics.
pub fn max_file_bytes(policy: &dyn ShardingPolicy) -> Result<Option<u64>> {
    guarded(&describe(policy)?, || policy.max_file_bytes())
}

/// All settings on which a policy's answers depend, its type among them, if it says so.
///
/// # Errors
/// When it panics.
pub fn plan_settings(policy: &dyn ShardingPolicy) -> Result<Option<String>> {
    let settings = guarded(&describe(policy)?, || policy.plan_settings())?;
    Ok(settings.map(|settings| format!("{} {settings}", policy.typetag_name())))
}

/// A policy is somebody else's code: what it panics with is an error.
fn guarded<T>(description: &str, call: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| PolicyError::Panicked {
        policy: description.into(),
        what: words(&*panic),
    })
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| Some(panic.downcast_ref::<String>()?));
    text.unwrap_or("with something that is not text").into()
}

/// Of an answer that was checked.
fn metrics(pieces: &[Piece<'_>], answer: &[Vec<Cut>]) -> PolicyMetrics {
    let mut split: Vec<&str> = Vec::new();
    let mut sizes = Vec::with_capacity(answer.len());
    for cuts in answer {
        let mut bytes = 0u64;
        for cut in cuts {
            let piece = &pieces[cut.piece as usize];
            bytes = bytes.saturating_add(piece.inner_bytes(&cut.region));
            if cut.region != *piece.region && split.last() != Some(&piece.key) {
                split.push(piece.key);
            }
        }
        sizes.push(bytes);
    }
    split.sort_unstable();
    split.dedup();
    let metrics = PolicyMetrics {
        slices: answer.iter().map(|cuts| cuts.len() as u64).sum(),
        split_tensors: split.len() as u64,
        ..PolicyMetrics::default()
    };
    metrics.of_files(&sizes)
}

#[cfg(test)]
mod tests;
