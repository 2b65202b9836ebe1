//! Saves whose replicated pieces are written by all ranks of a group.

use crate::{
    distribute::{Distribution, id},
    group::sub_group,
};
use async_trait::async_trait;
use derive_setters::Setters;
use reshard_comm::Comm;
use reshard_model::{FlatStateDict, Path, ReplicaId, Sharded};
use reshard_plan::Declared;
use reshard_strategy::{
    PipelineOptions, Result, SaveCx, SaveLayer, SaveSetup, SaveShardedStrategy, StrategyError,
    agree, cause, declaration_digest,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

type Digest = [u8; 32];

/// Settings of a save in which each replicated tensor is written by one rank of a group, so that all of its ranks write about as many
/// bytes. It is Megatron Core's `FullyParallelSaveStrategyWrapper`, as a layer around any strategy: `FullyParallelSave::new().around(strategy)`.
///
/// ```json
/// { "format": "torch_dist", "layers": [{ "type": "fully_parallel", "group": "dp" }] }
/// ```
///
/// The format does not change. Only tensors are distributed, by [`distribute_shards_to_ranks`](crate::distribute_shards_to_ranks), and only
/// those whose main replica is in the group. The planner must offer main replicas, as the default one does;
/// [`DefaultSavePlanner::DCP`](reshard_plan::DefaultSavePlanner::DCP) distributes replicas over all ranks by itself,
/// and so does the format setting `keep_only_main_replica = false` of `torch_dist`: with them the layer changes nothing.
///
/// # Replicas
/// Replicas must be equal. A rank writes its own copy of what it was chosen for. What is validated are the replicas that ranks declare, as in a save without this
/// wrapper.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Setters)]
#[setters(strip_option)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FullyParallelSave {
    /// The name of the sub-group whose ranks share their work; all ranks without. A save gets it by `sub_group`.
    #[setters(into)]
    pub group: Option<String>,
    /// Whether to keep the distribution for the next save with a clone of these settings. Ranks then compare 64 bytes each, and distribute again if
    /// what any rank declares has changed.
    pub cache: bool,
    #[serde(skip)]
    #[setters(skip)]
    kept: Arc<Cache>,
}

impl FullyParallelSave {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the layer around a strategy, or around a format.
    pub fn around(self, strategy: impl Into<SaveShardedStrategy>) -> SaveShardedStrategy {
        strategy.into().layer(self)
    }
}

/// The distribution of the last save.
#[derive(Debug, Default)]
struct Cache(Mutex<Option<(Digest, Arc<Distribution>)>>);

impl Cache {
    fn get(&self) -> Option<(Digest, Arc<Distribution>)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn put(&self, digest: Digest, distribution: &Arc<Distribution>) {
        let kept = Some((digest, Arc::clone(distribution)));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    }
}

#[typetag::serde(name = "fully_parallel")]
#[async_trait]
impl SaveLayer for FullyParallelSave {
    fn permits(&self, options: &PipelineOptions) -> Result<()> {
        if options.rank_local {
            let what = "a rank-local save writes what each rank has, so its ranks can't share replicas; leave out `fully_parallel`";
            return Err(StrategyError::Invalid(what.into()));
        }
        Ok(())
    }

    async fn set_up(
        &self,
        setup: SaveSetup,
        state: &FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<SaveSetup> {
        // A rank without the group must not let the others wait in it.
        let group = match &self.group {
            Some(name) => {
                let found = sub_group(("fully_parallel", "save"), name, cx.groups);
                Some(agree(&cx.comm, "plan", found).await?)
            }
            None => None,
        };
        let guard = cx.comm.guard("distributing a save");
        let comm = match group {
            Some(group) => Comm::new(group).with_deadline(cx.comm.deadline()),
            None => cx.comm,
        };
        let inner = comm.guard("distributing a save");
        let distributed = self.distribute(state, comm).await;
        inner.done();
        let distributed = match group {
            // What has failed in one group is told to all.
            Some(_) => agree(&cx.comm, "plan", distributed).await,
            None => distributed,
        };
        guard.done();
        Ok(SaveSetup {
            replicas: distributed?,
            ..setup
        })
    }
}

impl FullyParallelSave {
    /// Returns new replica ids: main ones for the tensors that this rank was chosen for, other ones for those of other ranks of its group.
    async fn distribute(
        &self,
        state: &FlatStateDict,
        comm: Comm<'_>,
    ) -> Result<Vec<(Path, ReplicaId)>> {
        let mut replicas = Vec::new();
        if comm.size() == 1 {
            return Ok(replicas);
        }
        let declared = Declared::of(state);
        let distribution = self.agreed(&declared, comm).await?;
        let me = comm.rank().0;
        let mut seen = BTreeSet::new();
        for ((path, leaf), declaration) in state.iter().zip(&declared.leaves) {
            let (Sharded::Tensor(_), Some(rank)) = (leaf, distribution.rank(declaration)) else {
                continue;
            };
            // A rank that holds a shard twice writes the first.
            let chosen = rank == me && seen.insert(id(declaration));
            let now = ReplicaId(Box::new([u32::from(!chosen)]));
            replicas.push((path.clone(), now));
        }
        Ok(replicas)
    }

    /// The distribution of the group: that of the last save if nothing has changed on any member, and all of them have it.
    async fn agreed(&self, declared: &Declared, comm: Comm<'_>) -> Result<Arc<Distribution>> {
        let cache = self.cache.then_some(&self.kept);
        let kept = cache.and_then(|cache| cache.get());
        let of = kept.as_ref().map(|(of, _)| *of);
        let told = match cache {
            Some(_) => declaration_digest(declared).map(|digest| Told::Digest(digest, of)),
            None => Ok(Told::Whole(declared.clone())),
        };
        let all: Vec<Told> = comm.all_gather("plan", told.map_err(|e| cause(&e))).await?;
        let now = of_all(&all);
        if let (Some((of, distribution)), Some(now)) = (kept, now)
            && of == now
            && all.iter().all(|told| told.keeps(now))
        {
            return Ok(distribution);
        }
        // Those that told a digest tell it whole. All ranks see alike whether there is one.
        let digests = all.iter().any(|told| matches!(told, Told::Digest(..)));
        let again: Vec<Option<Declared>> = match digests {
            true => {
                let mine = self.cache.then(|| declared.clone());
                comm.all_gather("plan", Ok(mine)).await?
            }
            false => all.iter().map(|_| None).collect(),
        };
        let members = all.into_iter().zip(again).map(|(told, again)| match told {
            Told::Whole(declared) => declared,
            Told::Digest(..) => again.unwrap_or_default(),
        });
        let distribution = Arc::new(Distribution::of(&members.collect::<Vec<_>>()));
        if let (Some(cache), Some(now)) = (cache, now) {
            cache.put(now, &distribution);
        }
        Ok(distribution)
    }
}

/// What a member tells of its leaves.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// All of it: it keeps nothing.
    Whole(Declared),
    /// The digest of it, and of what all members had declared when it kept a distribution.
    Digest(Digest, Option<Digest>),
}

impl Told {
    /// Whether it keeps the distribution of this.
    fn keeps(&self, of: Digest) -> bool {
        matches!(self, Self::Digest(_, Some(kept)) if *kept == of)
    }
}

/// The digest of what all members declare, if all of them keep it.
fn of_all(all: &[Told]) -> Option<Digest> {
    let mut hash = Sha256::new();
    for told in all {
        match told {
            Told::Digest(digest, _) => hash.update(digest),
            Told::Whole(_) => return None,
        }
    }
    Some(hash.finalize().into())
}
