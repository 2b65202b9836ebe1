use crate::{Piece, PolicyError, Result, ShardingPolicy, Shards};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Everything in one shard: RFC 454's first example.
///
/// A shard is a file of one task. So with several tasks this policy is refused, unless one task writes everything.
///
/// ```
/// # use reshard_model::{DType, Region};
/// # use reshard_policy::{Content, Limits, Overhead, Piece, decide};
/// use reshard_policy::AllInOne;
/// # let region = Region::whole(&[1]);
/// # let piece = |task| Piece {
/// #     key: "k", name: "k", content: Content::Tensor(DType::UInt8), global_shape: &[1], region: &region,
/// #     task, device: "cpu", owner: "", tag: None, bytes: 1, whole: false,
/// #     overhead: Overhead::default(),
/// # };
/// assert_eq!(decide(&AllInOne::new(), &[piece(0), piece(0)], Limits::default())?.shards.len(), 1);
/// assert!(decide(&AllInOne::new(), &[piece(0), piece(1)], Limits::default()).is_err());
/// let gathering = AllInOne::new().gather(); // in a save the coordinator then writes the pieces of all ranks
/// # assert!(reshard_policy::ShardingPolicy::gathers(&gathering));
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AllInOne {
    /// One task writes everything. The others send it theirs.
    pub gather: bool,
}

impl AllInOne {
    /// One shard, if there is one task.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets one task write everything.
    pub fn gather(self) -> Self {
        Self { gather: true }
    }
}

#[typetag::serde(name = "all_in_one")]
impl ShardingPolicy for AllInOne {
    fn description(&self) -> String {
        if self.gather {
            "everything in one shard, brought to one task".into()
        } else {
            "everything in one shard".into()
        }
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        let tasks = pieces.iter().map(|p| p.task).collect::<BTreeSet<_>>().len();
        if tasks > 1 {
            let what = format!(
                "{tasks} tasks can't write into one shard; gather everything on one task (`gather`), or take \
                 `shard_by_task` for one shard each"
            );
            return Err(PolicyError::invalid(what));
        }
        pieces
            .iter()
            .enumerate()
            .try_for_each(|(i, piece)| out.push(i, piece.region.clone()))
    }

    fn gathers(&self) -> bool {
        self.gather
    }
}
