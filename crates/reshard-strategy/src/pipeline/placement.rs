//! Applies a sharding policy to a save: after the global plan, before the layout of files.

use crate::{
    Result, StorageWriter, StrategyError,
    declared::{Digest, Told},
};
use reshard_model::{Data, FlatStateDict, Path, Region, Sharded};
use reshard_plan::{
    ChunkId, Held, Metadata, SavePlan, TensorWrite, WriteItem, WriteKind, place_item, take_items,
};
use reshard_policy::{
    Content, Cut, Limits, Overhead, Piece, PolicyMetrics, Sharding, ShardingPolicy, decide,
    describe, gathers,
};
use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry as MapEntry},
};

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
    held: Held,
    leaf: Option<&'a LeafInfo>,
}

/// A piece of the policy: one item, or all items of a tensor that the format stores whole.
struct Unit<'a> {
    items: Vec<Offered<'a>>,
    /// The rank that writes it.
    task: u32,
    /// The part of the tensor that it is.
    region: Region,
    bytes: u64,
    whole: bool,
    /// The overhead of each slice of it.
    overhead: u64,
}

impl<'a> Unit<'a> {
    fn of(writer: &dyn StorageWriter, task: u32, offered: Offered<'a>) -> Result<Self> {
        let item = &offered.held.item;
        let footprint = writer.footprint(item)?;
        let whole = footprint.whole && item.tensor().is_some();
        let (region, bytes) = match &item.kind {
            WriteKind::Tensor(t) if whole => {
                let volume = t.global_shape.volume().unwrap_or(u64::MAX);
                (
                    Region::whole(&t.global_shape),
                    volume.saturating_mul(t.dtype.size()),
                )
            }
            WriteKind::Tensor(t) => (t.region.clone(), t.bytes()),
            WriteKind::Object { bytes_hint } => (Region::default(), *bytes_hint),
        };
        Ok(Self {
            items: vec![offered],
            task,
            region,
            bytes,
            whole,
            overhead: footprint.overhead,
        })
    }

    /// The rank that holds most of it, and the first of several.
    fn richest(&self) -> u32 {
        let mut shares: BTreeMap<u32, u64> = BTreeMap::new();
        for held in self.items.iter().map(|o| &o.held) {
            let share = shares.entry(held.from).or_default();
            *share = share.saturating_add(held.item.tensor().map_or(1, TensorWrite::bytes));
        }
        let most = shares
            .iter()
            .max_by_key(|(rank, bytes)| (**bytes, Reverse(**rank)));
        most.map_or(self.task, |(rank, _)| *rank)
    }

    /// The item that names it for the policy: of its writer if that has one, and else the first.
    fn first(&self, first_rank: u32) -> Option<&Offered<'a>> {
        let own = |o: &&Offered<'_>| first_rank + o.held.from == self.task;
        self.items.iter().find(own).or_else(|| self.items.first())
    }
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
    writer: &dyn StorageWriter,
    policy: Option<&dyn ShardingPolicy>,
    mut plans: Vec<SavePlan>,
    leaves: &Leaves,
    metadata: &mut Metadata,
    (tasks, limits): (Tasks, Limits),
) -> Result<(Vec<SavePlan>, Option<PolicyMetrics>)> {
    same_policy(policy, leaves, tasks)?;
    let Some(policy) = policy else {
        return Ok((plans, None));
    };
    let of_file = writer.file_overhead(&plans)?;
    let mut units = units(writer, policy, &mut plans, leaves, tasks)?;
    // The metadata must have the chunks that the policy cut, before anybody writes them.
    let sharding = ask(policy, &units, (tasks.first, of_file), limits)?;
    let last = tasks.first.saturating_add(plans.len() as u32);
    sharding.check_files(tasks.first..last, limits)?;
    cut_chunks(&units, &sharding, metadata)?;
    // Each shard is a file of one task: its cuts are the next items of that task's plan. If another rank has the data, it gives
    // them to the task in an exchange.
    for shard in sharding.shards {
        let by = shard.task - tasks.first;
        let Some(plan) = plans.get_mut(by as usize) else {
            continue;
        };
        let of_cut = |cut: &Cut| units[cut.piece as usize].items.len() as u32;
        plan.files.push(shard.cuts.iter().map(of_cut).sum());
        for cut in shard.cuts {
            let unit = &mut units[cut.piece as usize];
            if unit.whole {
                for Offered { held, .. } in std::mem::take(&mut unit.items) {
                    place_item(&mut plans, by, held)?;
                }
                continue;
            }
            for Offered { held, .. } in &unit.items {
                let item = part(&held.item, cut.region.clone());
                place_item(&mut plans, by, Held::new(held.from, item))?;
            }
        }
    }
    // Some readers expect a number of files, so a task with fewer shards writes empty files.
    for plan in &mut plans {
        let files = plan.files.len().max(sharding.files_per_task as usize);
        plan.files.resize(files, 0);
    }
    Ok((plans, Some(sharding.metrics)))
}

/// Takes all items out of the plans, as pieces of the policy, task by task. A policy that gathers sees all of them as the coordinator's.
fn units<'a>(
    writer: &dyn StorageWriter,
    policy: &dyn ShardingPolicy,
    plans: &mut [SavePlan],
    leaves: &'a Leaves,
    tasks: Tasks,
) -> Result<Vec<Unit<'a>>> {
    let gathers = gathers(policy)? && plans.len() > 1;
    let mut units: Vec<Unit<'a>> = Vec::with_capacity(plans.iter().map(|p| p.items.len()).sum());
    // The number of the unit of each tensor that is stored whole.
    let mut wholes: BTreeMap<Box<str>, usize> = BTreeMap::new();
    for (rank, items) in (0u32..).zip(take_items(plans)?) {
        let task = match gathers {
            true => tasks.coordinator,
            false => tasks.first + rank,
        };
        for held in items {
            let about = leaves.0.get(held.from as usize).and_then(Option::as_ref);
            let leaf = about.and_then(|a| a.leaves.get(held.item.source as usize));
            let unit = Unit::of(writer, task, Offered { held, leaf })?;
            let key = unit.items.first().map(|o| o.held.item.key.clone());
            let known = key.filter(|_| unit.whole).map(|key| wholes.entry(key));
            match known {
                Some(MapEntry::Occupied(at)) => units[*at.get()].items.extend(unit.items),
                Some(MapEntry::Vacant(at)) => {
                    at.insert(units.len());
                    units.push(unit);
                }
                None => units.push(unit),
            }
        }
    }
    if !gathers {
        for unit in units.iter_mut().filter(|unit| unit.items.len() > 1) {
            unit.task = tasks.first + unit.richest();
        }
        units.sort_by_key(|unit| unit.task);
    }
    Ok(units)
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

fn ask(
    policy: &dyn ShardingPolicy,
    units: &[Unit<'_>],
    (first_rank, of_file): (u32, u64),
    limits: Limits,
) -> Result<Sharding> {
    let pieces: Vec<Piece<'_>> = units
        .iter()
        .filter_map(|unit| {
            let Offered { held, leaf } = unit.first(first_rank)?;
            let key = &*held.item.key;
            let chunk = held.item.tensor();
            let name = leaf.map_or(key, |l| &l.name);
            Some(Piece {
                key,
                name,
                content: chunk.map_or(Content::Object, |t| Content::Tensor(t.dtype)),
                global_shape: chunk.map_or(&[], |t| &t.global_shape),
                region: &unit.region,
                task: unit.task,
                device: leaf.map_or("cpu", |l| &l.device),
                // The owner is the path of the parent. In a flat dict the keys themselves contain the dots.
                owner: name.rsplit_once('.').map_or("", |(owner, _)| owner),
                tag: leaf.and_then(|l| l.tag.as_deref()),
                bytes: unit.bytes,
                whole: unit.whole,
                overhead: Overhead {
                    slice: unit.overhead,
                    file: of_file,
                },
            })
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
fn cut_chunks(units: &[Unit<'_>], sharding: &Sharding, metadata: &mut Metadata) -> Result<()> {
    let mut cut: BTreeMap<u32, Vec<Region>> = BTreeMap::new();
    for c in sharding.shards.iter().flat_map(|s| &s.cuts) {
        if units[c.piece as usize].region != c.region {
            cut.entry(c.piece).or_default().push(c.region.clone());
        }
    }
    if cut.is_empty() {
        return Ok(());
    }
    let mut chunks: BTreeMap<ChunkId, Vec<Region>> = BTreeMap::new();
    for (piece, parts) in cut {
        let Some(Offered { held, .. }) = units[piece as usize].items.first() else {
            continue;
        };
        let item = &held.item;
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
