use crate::{
    Piece, Result, ShardingPolicy, Shards,
    by_task::put,
    tasks::{by_task, groups},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// In each task, one shard per owner and one shard for the rest: RFC 454's model separation.
///
/// The owner of a piece is its tag (`with_tag` of its leaf). Without a tag, its path in the state dict gives the owner.
///
/// ```
/// # use reshard_model::{DType, Region};
/// # use reshard_policy::{Content, Limits, Overhead, Piece, decide};
/// use reshard_policy::ByOwner;
/// # let region = Region::whole(&[1]);
/// # let piece = |name: &'static str, owner| Piece {
/// #     key: name, name, content: Content::Tensor(DType::UInt8), global_shape: &[1], region: &region,
/// #     task: 0, device: "cpu", owner, tag: None, bytes: 1, whole: false,
/// #     overhead: Overhead::default(),
/// # };
/// let pieces = [
///     piece("generator.layers.0.weight", "generator.layers.0"),
///     piece("critic.weight", "critic"),
///     piece("generator.bias", "generator"),
///     piece("step", ""),
/// ];
/// let shards = |policy| -> Vec<Vec<u32>> {
///     let sharding = decide(&policy, &pieces, Limits::default()).unwrap();
///     sharding.shards.iter().map(|s| s.cuts.iter().map(|c| c.piece).collect()).collect()
/// };
/// assert_eq!(shards(ByOwner::each()), [vec![0, 2], vec![1], vec![3]]);
/// // the named models, in this order; the rest gets a shard too, so nothing is lost
/// assert_eq!(shards(ByOwner::new(["critic", "generator.layers"])), [vec![1], vec![0], vec![2, 3]]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByOwner {
    /// Tags, or paths in the state dict. A path includes everything below it; if several paths fit, the longest counts. If
    /// the list is empty, every tag and every path of `depth` steps is an owner.
    pub owners: Vec<String>,
    /// How many steps of a path name an owner. 1 means the entries at the top of the state dict. If the path of a leaf is shorter, its
    /// parent is the owner.
    #[serde(skip_serializing_if = "is_one")]
    pub depth: usize,
}

impl Default for ByOwner {
    fn default() -> Self {
        Self {
            owners: Vec::new(),
            depth: 1,
        }
    }
}

fn is_one(depth: &usize) -> bool {
    *depth == 1
}

impl ByOwner {
    /// The owners are these tags and paths.
    pub fn new(owners: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            owners: owners.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// The owners are every tag, and every entry at the top of the state dict that contains other entries.
    pub fn each() -> Self {
        Self::default()
    }
}

#[typetag::serde(name = "by_owner")]
impl ShardingPolicy for ByOwner {
    fn description(&self) -> String {
        match self.owners.as_slice() {
            [] if self.depth <= 1 => "one shard per owner".into(),
            [] => format!("one shard per owner, down to depth {}", self.depth),
            owners => format!(
                "one shard for each of {}, and one for the rest",
                owners.join(", ")
            ),
        }
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        let numbers: BTreeMap<&str, usize> =
            self.owners.iter().map(String::as_str).zip(0..).collect();
        for task in by_task(pieces) {
            let shards = if self.owners.is_empty() {
                let owner = |i: usize| owner(&pieces[i], self.depth);
                let mut shards = groups(task, owner);
                shards.sort_by_key(|shard| owner(shard[0]).is_none());
                shards
            } else {
                let mut shards = vec![Vec::new(); self.owners.len() + 1];
                for i in task {
                    let number = number(&numbers, &pieces[i]).unwrap_or(self.owners.len());
                    shards[number].push(i);
                }
                shards
            };
            put(pieces, shards, out)?;
        }
        Ok(())
    }
}

/// The tag, or the first steps of the path.
fn owner<'a>(piece: &Piece<'a>, depth: usize) -> Option<&'a str> {
    let end = piece
        .owner
        .match_indices('.')
        .nth(depth.saturating_sub(1))
        .map(|(at, _)| at);
    let path = &piece.owner[..end.unwrap_or(piece.owner.len())];
    piece.tag.or(Some(path).filter(|path| !path.is_empty()))
}

/// Of the owners that are known by tag or by path, the one that fits; the longer paths are tried first.
fn number(numbers: &BTreeMap<&str, usize>, piece: &Piece<'_>) -> Option<usize> {
    let above = piece
        .owner
        .rmatch_indices('.')
        .map(|(at, _)| &piece.owner[..at]);
    let mut names = piece.tag.into_iter().chain([piece.owner]).chain(above);
    names.find_map(|name| numbers.get(name).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Owned, told};

    #[test]
    fn a_tag_goes_before_the_path_and_what_belongs_to_nobody_is_kept() {
        let state = [
            Owned::f32("step", &[]),
            Owned::f32("a.x", &[1]).tag("frozen"),
            Owned::f32("a.y.z", &[1]),
            Owned::f32("ab.w", &[1]).tag("nobody"),
            Owned::f32("a.v", &[1]).task(1),
        ];
        let deep = [
            Owned::f32("a.b.c.x", &[1]),
            Owned::f32("a.b.d.y", &[1]),
            Owned::f32("a.e.z", &[1]),
        ];
        let to_depth = |depth| ByOwner {
            depth,
            ..ByOwner::each()
        };
        assert_eq!(told(&ByOwner::each(), &deep), ["a.b.c.x a.b.d.y a.e.z"]);
        assert_eq!(told(&to_depth(2), &deep), ["a.b.c.x a.b.d.y", "a.e.z"]);
        assert_eq!(told(&to_depth(9), &deep), ["a.b.c.x", "a.b.d.y", "a.e.z"]);
        assert_eq!(
            told(&ByOwner::each(), &state),
            ["a.x", "a.y.z", "ab.w", "step", "a.v"]
        );
        assert_eq!(
            told(&ByOwner::new(["a", "frozen"]), &state),
            ["a.y.z", "a.x", "step ab.w", "a.v"]
        );
        assert_eq!(
            told(&ByOwner::new(["a", "a.y"]), &state),
            ["a.x", "a.y.z", "step ab.w", "a.v"]
        );
    }
}
