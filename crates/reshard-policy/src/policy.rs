use crate::{Piece, Result, Shards};
use std::fmt::Debug;

/// Decides placement, and only that: which part of which piece lies in which shard. A shard is a file.
///
/// The answer is made of cuts of the given pieces, so that adding, renaming, reshaping and recasting can't be expressed;
/// whether it is disjoint and complete is checked by [`decide`](crate::decide) after every call. Parameters are fields, and
/// `typetag` names the type, so that configuration can hold it, a third party's too. `docs/policies.md` shows how to write one.
#[typetag::serde(tag = "type")]
pub trait ShardingPolicy: Debug + Send + Sync + 'static {
    /// In a few words, for people who wonder later why files are as they are. Lies beside the checkpoint.
    fn description(&self) -> String;

    /// Writes cuts of `pieces`, which come task by task, into shards. A shard holds pieces of one task.
    ///
    /// # Errors
    /// Whatever keeps it from an answer.
    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()>;

    /// Whether all pieces shall be brought to one task first. Asked on the coordinator.
    fn gathers(&self) -> bool {
        false
    }

    /// Files that each task writes at least, empty ones if it has no more shards: what readers that count on a number of
    /// files are promised. At most 65,536 more than there are pieces.
    fn files_per_task(&self) -> u32 {
        0
    }
}
