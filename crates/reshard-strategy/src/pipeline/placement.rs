//! Applies a sharding policy to a save: after the global plan, before the layout of files.

use crate::{
    Result, StrategyError,
    declared::{Digest, Told},
};
use reshard_model::{Data, FlatStateDict, Path, Region, Sharded};
use reshard_plan::{
    ChunkId, Held, Metadata, SavePlan, TensorWrite, WriteItem, WriteKind, place_item, take_items,
};
use reshard_policy::{
    Content, Limits, Piece, PolicyMetrics, Sharding, ShardingPolicy, decide, describe, gathers,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a rank hands in: its plan, and the facts about its leaves that a policy needs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) plan: SavePlan,
    about: Option<About>,
    /// What the rank declares of its leaves.
    pub(super) told: Told,
    /// The digest of all on which its plan depends, if it keeps plans.
    pub(super) structure: Option<Digest>,
}

/// Facts that only policies need.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    /// The description of the policy that was set on this rank.
    policy: String,
    /// The leaves, by their position in the rank's flat state.
    leaves: Vec<LeafInfo>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct LeafInfo {
    name: Box<str>,
    device: Box<str>,
    tag: Option<Box<str>>,
}

impl Offer {
    pub(super) fn new(
        plan: SavePlan,
        state: &FlatStateDict,
        policy: Option<&dyn ShardingPolicy>,
        told: Told,
        structure: Option<Digest>,
    ) -> Result<Self> {
        let about = |p| -> Result<About> {
            let leaves = state
                .iter()
                .map(|(path, leaf)| LeafInfo::of(path, leaf))
                .collect();
            Ok(About {
                policy: describe(p)?,
                leaves,
            })
        };
        Ok(Self {
            plan,
            about: policy.map(about).transpose()?,
            told,
            structure,
        })
    }
}

impl LeafInfo {
    fn of(path: &Path, leaf: &Sharded) -> Self {
        let device = match leaf {
            Sharded::Tensor(t) => match &t.data {
                Data::Device(d) => d.buffer().device(),
                _ => "cpu",
            },
            Sharded::Object(_) => "cpu",
        };
        Self {
            name: path.to_string().into(),
            device: device.into(),
            tag: leaf.tag().map(Into::into),
        }
    }
}

/// An item of one rank, with the leaf that it comes from.
struct Offered<'a> {
    /// The rank that writes it.
    task: u32,
    held: Held,
    leaf: Option<&'a LeafInfo>,
}

/// The part of the offers that [`place`] needs; the planner gets the plans.
pub(super) struct Leaves(Vec<Option<About>>);

pub(super) fn take_apart(offers: Vec<Offer>) -> (Vec<SavePlan>, Leaves) {
    let (plans, about) = offers.into_iter().map(|o| (o.plan, o.about)).unzip();
    (plans, Leaves(about))
}

/// Which ranks write the pieces: the ranks of the plans count from `first`, and the coordinator is one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tasks {
    pub(super) first: u32,
    pub(super) coordinator: u32,
}

/// Lets the policy place the items of the global plan.
pub(super) fn place(
    policy: Option<&dyn ShardingPolicy>,
    mut plans: Vec<SavePlan>,
    leaves: &Leaves,
    metadata: &mut Metadata,
    tasks: Tasks,
    limits: Limits,
) -> Result<(Vec<SavePlan>, Option<PolicyMetrics>)> {
    same_policy(policy, leaves, tasks)?;
    let Some(policy) = policy else {
        return Ok((plans, None));
    };
    // Each item becomes a piece of the policy, together with the leaf that it comes from. A policy that gathers sees all items
    // as the coordinator's. The plans are emptied: the policy's answer fills them again.
    let gathers = gathers(policy)? && plans.len() > 1;
    let mut offered = Vec::with_capacity(plans.iter().map(|p| p.items.len()).sum());
    for (rank, items) in (0u32..).zip(take_items(&mut plans)?) {
        let task = if gathers {
            tasks.coordinator
        } else {
            tasks.first + rank
        };
        offered.extend(items.into_iter().map(|held| {
            let about = leaves.0.get(held.from as usize).and_then(Option::as_ref);
            Offered {
                task,
                leaf: about.and_then(|a| a.leaves.get(held.item.source as usize)),
                held,
            }
        }));
    }
    // The metadata must have the chunks that the policy cut, before anybody writes them.
    let sharding = ask(policy, &offered, limits)?;
    let last = tasks.first.saturating_add(plans.len() as u32);
    sharding.check_files(tasks.first..last, limits)?;
    cut_chunks(&offered, &sharding, metadata)?;
    // Each shard is a file of one task: its cuts are the next items of that task's plan. If another rank has the data, it gives
    // them to the task in an exchange.
    for shard in sharding.shards {
        let by = shard.task - tasks.first;
        let Some(plan) = plans.get_mut(by as usize) else {
            continue;
        };
        plan.files.push(shard.cuts.len() as u32);
        for cut in shard.cuts {
            let Held { from, item, .. } = &offered[cut.piece as usize].held;
            place_item(&mut plans, by, Held::new(*from, part(item, cut.region)))?;
        }
    }
    // Some readers expect a number of files, so a task with fewer shards writes empty files.
    for plan in &mut plans {
        let files = plan.files.len().max(sharding.files_per_task as usize);
        plan.files.resize(files, 0);
    }
    Ok((plans, Some(sharding.metrics)))
}

/// Refuses the save if ranks have different policies.
fn same_policy(policy: Option<&dyn ShardingPolicy>, leaves: &Leaves, tasks: Tasks) -> Result<()> {
    let mine = policy.map(describe).transpose()?;
    let other = leaves
        .0
        .iter()
        .position(|a| a.as_ref().map(|a| &a.policy) != mine.as_ref());
    let Some(rank) = other else { return Ok(()) };
    let name = |p: Option<&str>| p.map_or("no policy".into(), |p| format!("the policy \"{p}\""));
    let theirs = leaves.0[rank].as_ref().map(|a| a.policy.as_str());
    Err(StrategyError::Invalid(format!(
        "rank {} was given {}, but the coordinator {}; give all ranks the same",
        tasks.first as usize + rank,
        name(theirs),
        name(mine.as_deref())
    )))
}

fn ask(policy: &dyn ShardingPolicy, offered: &[Offered<'_>], limits: Limits) -> Result<Sharding> {
    let no_axes = Region::default();
    let pieces: Vec<Piece<'_>> = offered
        .iter()
        .map(|o| {
            let key = &*o.held.item.key;
            let chunk = o.held.item.tensor();
            let name = o.leaf.map_or(key, |l| &l.name);
            Piece {
                key,
                name,
                content: chunk.map_or(Content::Object, |t| Content::Tensor(t.dtype)),
                global_shape: chunk.map_or(&[], |t| &t.global_shape),
                region: chunk.map_or(&no_axes, |t| &t.region),
                task: o.task,
                device: o.leaf.map_or("cpu", |l| &l.device),
                // The owner is the path of the parent. In a flat dict the keys themselves contain the dots.
                owner: name.rsplit_once('.').map_or("", |(owner, _)| owner),
                tag: o.leaf.and_then(|l| l.tag.as_deref()),
                bytes: match &o.held.item.kind {
                    WriteKind::Tensor(t) => t.bytes(),
                    WriteKind::Object { bytes_hint } => *bytes_hint,
                },
            }
        })
        .collect();
    Ok(decide(policy, &pieces, limits)?)
}

fn part(item: &WriteItem, region: Region) -> WriteItem {
    let kind = match &item.kind {
        WriteKind::Tensor(t) => WriteKind::Tensor(TensorWrite {
            region,
            ..t.clone()
        }),
        object => object.clone(),
    };
    WriteItem {
        key: item.key.clone(),
        source: item.source,
        kind,
    }
}

/// A piece that was cut becomes several chunks of its tensor in the metadata.
fn cut_chunks(offered: &[Offered<'_>], sharding: &Sharding, metadata: &mut Metadata) -> Result<()> {
    let mut cut: BTreeMap<u32, Vec<Region>> = BTreeMap::new();
    for c in sharding.shards.iter().flat_map(|s| &s.cuts) {
        if offered[c.piece as usize]
            .held
            .item
            .tensor()
            .is_some_and(|t| t.region != c.region)
        {
            cut.entry(c.piece).or_default().push(c.region.clone());
        }
    }
    if cut.is_empty() {
        return Ok(());
    }
    let mut chunks: BTreeMap<ChunkId, Vec<Region>> = BTreeMap::new();
    for (piece, parts) in cut {
        let item = &offered[piece as usize].held.item;
        let chunk = item.tensor().and_then(|t| {
            metadata
                .tensor(&item.key)?
                .chunk_at(&t.region.offsets, None)
        });
        let Some(chunk) = chunk else {
            let what = format!(
                "the planner's metadata has no chunk {}, which a policy wants to cut",
                item.id()
            );
            return Err(StrategyError::Invalid(what));
        };
        chunks.insert(chunk, parts);
    }
    *metadata = metadata.with_cuts(|id| chunks.get(&id).map(Vec::as_slice))?;
    Ok(())
}
