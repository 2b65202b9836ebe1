use crate::{Piece, Result, ShardingPolicy, Shards, by_task::put, tasks::by_task};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Puts each chosen key into a shard of its own, and then the rest of each task into one shard: RFC 454's importance. If you
/// load only chosen keys, only their files are opened.
///
/// ```
/// # use reshard_model::{DType, Region};
/// # use reshard_policy::{Content, Limits, Overhead, Piece, decide};
/// use reshard_policy::Importance;
/// # let region = Region::whole(&[1]);
/// # let piece = |name: &'static str| Piece {
/// #     key: name, name, content: Content::Tensor(DType::UInt8), global_shape: &[1], region: &region,
/// #     task: 0, device: "cpu", owner: "", tag: None, bytes: 1, whole: false,
/// #     overhead: Overhead::default(),
/// # };
/// let pieces = [piece("embedding"), piece("step"), piece("head"), piece("body")];
/// let sharding = decide(&Importance::new(["head", "embedding"]), &pieces, Limits::default())?;
/// let shards: Vec<Vec<u32>> = sharding.shards.iter().map(|s| s.cuts.iter().map(|c| c.piece).collect()).collect();
/// assert_eq!(shards, [vec![2], vec![0], vec![1, 3]]);
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Importance {
    /// Keys, or names in the state dict, most important first. It is no error if a task lacks one of them.
    pub keys: Vec<String>,
}

impl Importance {
    /// These keys, most important first.
    pub fn new(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            keys: keys.into_iter().map(Into::into).collect(),
        }
    }
}

#[typetag::serde(name = "importance")]
impl ShardingPolicy for Importance {
    fn description(&self) -> String {
        format!(
            "shards of their own for {}, and one for the rest",
            self.keys.join(", ")
        )
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        let mut ranks: BTreeMap<&str, usize> = BTreeMap::new();
        for (rank, key) in self.keys.iter().enumerate() {
            ranks.entry(key).or_insert(rank);
        }
        for task in by_task(pieces) {
            let mut chosen: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            let mut rest = Vec::new();
            for i in task {
                let piece = &pieces[i];
                match ranks.get(piece.key).or_else(|| ranks.get(piece.name)) {
                    Some(&rank) => chosen.entry(rank).or_default().push(i),
                    None => rest.push(i),
                }
            }
            put(pieces, chosen.into_values().chain([rest]), out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Owned, told};

    #[test]
    fn each_task_has_its_own_chosen_ones_and_a_rest() {
        let state = [
            Owned::f32("a", &[1]),
            Owned::f32("b", &[1]),
            Owned::f32("b", &[4]).part(&[2], &[2]).task(1),
            Owned::f32("c", &[1]).task(1),
            Owned::f32("d", &[1]).task(2),
        ];
        assert_eq!(
            told(&Importance::new(["b", "nothing", "a", "b"]), &state),
            ["b", "a", "b", "c", "d"]
        );
    }
}
