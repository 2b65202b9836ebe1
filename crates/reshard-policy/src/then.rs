use crate::{Cut, Piece, PolicyError, Result, ShardingPolicy, Shards, Slice};
use serde::{Deserialize, Serialize};

/// Applies one policy to each shard of another, and joins the results in order: RFC 454's composition.
///
/// The second policy is called once for each shard of the first, with the cuts in this shard as pieces. Such a piece keeps
/// key, name, owner, tag, device and task. Its region, bytes and lengths of strings are those of the cut.
///
/// ```
/// # use reshard_model::{DType, Region};
/// # use reshard_policy::{Content, Limits, Overhead, Piece, decide};
/// use reshard_policy::{ByOwner, MaxShardSize, ShardingPolicy, Then};
/// # let region = Region::whole(&[6]);
/// # let piece = |name: &'static str, owner| Piece {
/// #     key: name, name, content: Content::Tensor(DType::Float32), global_shape: &[6], region: &region,
/// #     task: 0, device: "cpu", owner, tag: None, bytes: 24, whole: false,
/// #     overhead: Overhead::default(),
/// # };
/// let per_model = Then::new(ByOwner::each(), MaxShardSize::new(16));
/// let pieces = [piece("critic.w", "critic"), piece("generator.w", "generator")]; // 24 bytes each
/// let sharding = decide(&per_model, &pieces, Limits::default())?;
/// let shards: Vec<String> = sharding.shards.iter().map(|s| format!("{} {}", s.cuts[0].piece, s.cuts[0].region)).collect();
/// assert_eq!(shards, ["0 [0:4]", "0 [4:6]", "1 [0:4]", "1 [4:6]"]);
///
/// let json = r#"{
///     "type": "then",
///     "first": { "type": "by_owner" },
///     "second": { "type": "max_shard_size", "max_shard_size": 16 }
/// }"#;
/// let same: Box<dyn ShardingPolicy> = serde_json::from_str(json).unwrap();
/// assert_eq!(same.description(), per_model.description());
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// Sees all pieces.
    pub first: Box<dyn ShardingPolicy>,
    /// Sees the contents of one shard of the first.
    pub second: Box<dyn ShardingPolicy>,
}

impl Then {
    /// Each may be a policy, or a box with a policy from configuration.
    pub fn new(
        first: impl Into<Box<dyn ShardingPolicy>>,
        second: impl Into<Box<dyn ShardingPolicy>>,
    ) -> Self {
        Self {
            first: first.into(),
            second: second.into(),
        }
    }
}

impl<P: ShardingPolicy> From<P> for Box<dyn ShardingPolicy> {
    fn from(policy: P) -> Self {
        Box::new(policy)
    }
}

#[typetag::serde(name = "then")]
impl ShardingPolicy for Then {
    fn description(&self) -> String {
        format!(
            "{}, then {}",
            self.first.description(),
            self.second.description()
        )
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        for (number, cuts) in answer(&*self.first, pieces, out)?.iter().enumerate() {
            let slice = |cut: &Cut| known(pieces, cut, number)?.slice(cut.region.clone());
            let slices: Result<Vec<Slice<'_>>> = cuts.iter().map(slice).collect();
            let slices = slices.map_err(|e| failed(&*self.first, e))?;
            let inner: Vec<Piece<'_>> = slices.iter().map(Slice::piece).collect();
            for (number, shard) in answer(&*self.second, &inner, out)?.into_iter().enumerate() {
                out.start();
                for cut in shard {
                    let of = known(cuts, &cut, number).map_err(|e| failed(&*self.second, e))?;
                    out.push(of.piece as usize, cut.region)?;
                }
            }
        }
        Ok(())
    }

    fn gathers(&self) -> bool {
        self.first.gathers() || self.second.gathers()
    }

    fn max_file_bytes(&self) -> Option<u64> {
        let both = [&self.first, &self.second];
        both.into_iter().filter_map(|p| p.max_file_bytes()).min()
    }

    fn plan_settings(&self) -> Option<String> {
        let of = |policy: &dyn ShardingPolicy| {
            let settings = policy.plan_settings()?;
            Some((policy.typetag_name(), settings))
        };
        Some(format!("{:?}", (of(&*self.first)?, of(&*self.second)?)))
    }
}

fn answer(
    policy: &dyn ShardingPolicy,
    pieces: &[Piece<'_>],
    out: &Shards,
) -> Result<Vec<Vec<Cut>>> {
    let mut inner = out.for_another();
    policy
        .shard(pieces, &mut inner)
        .and_then(|()| inner.finish())
        .map_err(|e| failed(policy, e))
}

fn failed(policy: &dyn ShardingPolicy, source: PolicyError) -> PolicyError {
    PolicyError::failed(&policy.description(), source)
}

fn known<'l, T>(list: &'l [T], cut: &Cut, shard: usize) -> Result<&'l T> {
    list.get(cut.piece as usize)
        .ok_or_else(|| PolicyError::NoPiece {
            piece: cut.piece,
            pieces: list.len(),
            region: cut.region.clone(),
            shard,
        })
}

#[cfg(test)]
mod tests;
