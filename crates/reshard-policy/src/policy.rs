use crate::{Piece, Result, Shards};
use std::fmt::Debug;

/// Decides which part of which piece lies in which shard, and nothing else. A shard is a file.
///
/// The answer consists of cuts of the given pieces, so a policy can't add, rename, reshape or cast anything. After every
/// call [`decide`](crate::decide) checks that the cuts are disjoint and complete. Parameters are fields, and `typetag` names
/// the type, so configuration can hold any policy, including yours. `docs/policies.md` shows how to write one.
#[typetag::serde(tag = "type")]
pub trait ShardingPolicy: Debug + Send + Sync + 'static {
    /// A short description for people who later ask why the files are as they are. It is stored with the checkpoint.
    fn description(&self) -> String;

    /// Puts cuts of `pieces` into shards. The pieces come task by task. A shard holds pieces of one task only.
    ///
    /// # Errors
    /// Any reason why the policy can't answer.
    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()>;

    /// Whether one task, the coordinator's, writes all pieces. The others send it theirs in an exchange. Called on the coordinator.
    fn gathers(&self) -> bool {
        false
    }

    /// The minimal number of files that each task writes. If a task has fewer shards, it writes empty files, for readers
    /// that expect a fixed number of files. At most 65,536 more than there are pieces, and as many of all tasks together as
    /// [`Limits::max_files`](crate::Limits::max_files) says.
    fn files_per_task(&self) -> u32 {
        0
    }

    /// The size that no file exceeds unless it holds a single item that can't be cut, if the policy promises one. A save
    /// compares the lengths of its files with it before it writes them, and fails if one is larger. A format that makes one
    /// file takes only policies that promise a size, and refuses a file above it.
    fn max_file_bytes(&self) -> Option<u64> {
        None
    }

    /// All settings on which its answers depend, as text. Two policies of one type with equal settings must give the same answer for
    /// the same pieces, always. Then a repeated save of a structure that is known need not ask again. `None`, the default, means that it
    /// is asked in each save. If `Debug` is derived, it is such a text.
    fn plan_settings(&self) -> Option<String> {
        None
    }
}
