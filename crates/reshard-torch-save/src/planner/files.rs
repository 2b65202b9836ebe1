//! Which file holds which keys, and which rank writes it.

use super::whole::{invalid, unsupported};
use crate::{
    chosen::TorchSaveWriter,
    dicts::{self, KeyTypes},
    names::{WEIGHTS, shard},
    overhead::{WithoutLeaves, of_file},
    told::{At, DictPlan, FilePlan, Files, LeafPlan, PythonTensor, Told, What, pack},
};
use reshard_model::{Path, Region, Step};
use reshard_plan::{
    Entry, Held, Metadata, PlanError, PlannerData, Result, SavePlan, place_item, take_items,
};
use reshard_policy::{
    Content, Overhead, Piece, PolicyMetrics, Sharding, ShardingPolicy, decide, gathers,
};
use std::collections::{BTreeMap, BTreeSet};

/// A key, with all its pieces.
struct Leaf {
    plan: LeafPlan,
    pieces: Vec<Held>,
    /// Bytes of its elements.
    bytes: u64,
    /// The rank that has most of it.
    home: u32,
}

/// A file, and the rank that writes it.
struct File {
    name: String,
    indexed: bool,
    by: u32,
    leaves: Vec<Leaf>,
}

/// The plans, in which each rank writes its files.
pub(super) fn assign(
    writer: &TorchSaveWriter,
    told: &Told,
    mut plans: Vec<SavePlan>,
    metadata: &Metadata,
) -> Result<Vec<SavePlan>> {
    let mut with_files = plans.iter().filter(|plan| !plan.files.is_empty());
    if let Some(item) = with_files.next().and_then(|plan| plan.items.first()) {
        let what = "a planner has decided on files, but a file of torch.save holds whole tensors of all ranks";
        return Err(invalid(&item.key, what));
    }
    let leaves = leaves(&mut plans, told, metadata)?;
    let dicts = dicts::plans(metadata.annotations())?;
    let subclasses = dicts::subclasses(metadata.annotations())?;
    let (files, mut policy) = match &writer.policy {
        Some(policy) => {
            let (files, did) = by_policy(writer, &**policy, leaves, &dicts)?;
            (files, Some(did))
        }
        None => {
            let only = File {
                name: writer.file_name().into(),
                indexed: false,
                by: richest(&leaves),
                leaves,
            };
            (vec![only], None)
        }
    };
    let mut of_ranks: BTreeMap<u32, Files> = BTreeMap::new();
    for file in files {
        let mut all = Vec::with_capacity(file.leaves.len());
        let has_items = file.leaves.iter().any(|leaf| !leaf.pieces.is_empty());
        for Leaf { plan, pieces, .. } in file.leaves {
            all.push(plan);
            for held in pieces {
                place_item(&mut plans, file.by, held)?;
            }
        }
        // A folder of several files holds flat dicts.
        let (empty, dicts, subclasses) = match file.indexed {
            true => (Vec::new(), Vec::new(), Vec::new()),
            false => (writer.empty.clone(), dicts.clone(), subclasses.clone()),
        };
        of_ranks.entry(file.by).or_default().0.push(FilePlan {
            name: file.name,
            indexed: file.indexed,
            leaves: all,
            empty,
            dicts,
            subclasses,
            // A file without items has no receipt.
            policy: policy.take_if(|_| has_items),
        });
    }
    for (rank, files) in of_ranks {
        let plan = plans.get_mut(rank as usize);
        let plan = plan.ok_or_else(|| invalid("", format!("there is no rank {rank}")))?;
        plan.storage_data = pack(&files)?;
    }
    Ok(plans)
}

/// All keys, in the order of the state where it is known. Their items are taken out of the plans.
fn leaves(plans: &mut [SavePlan], told: &Told, metadata: &Metadata) -> Result<Vec<Leaf>> {
    let mut pieces: BTreeMap<Box<str>, Vec<Held>> = BTreeMap::new();
    for held in take_items(plans)?.into_iter().flatten() {
        pieces.entry(held.item.key.clone()).or_default().push(held);
    }
    let paths = match metadata.planner_data() {
        Some(PlannerData::Paths(paths)) => Some(paths),
        _ => None,
    };
    let mut left: BTreeMap<&str, Entry<'_>> = metadata.entries().map(|e| (e.key(), e)).collect();
    let mut ordered = Vec::with_capacity(left.len());
    let known = paths.into_iter().flat_map(|paths| paths.keys());
    ordered.extend(known.filter_map(|key| left.remove(&**key)));
    ordered.extend(left.into_values());
    let types = KeyTypes::of(metadata.annotations());
    let python = dicts::python_tensors(metadata.annotations());
    ordered
        .into_iter()
        .map(|entry| {
            let key: Box<str> = entry.key().into();
            let of = pieces.remove(&key).unwrap_or_default();
            let path = paths.and_then(|paths| paths.get(&key));
            let python = path.and_then(|path| python.get(path));
            let python = python.cloned().unwrap_or_default();
            let steps = steps(&key, path, told.ints.get(&key), &types);
            leaf((key, steps), &entry, python, of)
        })
        .collect()
}

fn leaf(
    (key, path): (Box<str>, Vec<At>),
    entry: &Entry<'_>,
    python: PythonTensor,
    mut pieces: Vec<Held>,
) -> Result<Leaf> {
    let (what, bytes) = match entry {
        Entry::Object(..) => (What::Object, 0),
        Entry::Tensor(t) => {
            let what = What::Tensor {
                dtype: t.dtype(),
                shape: t.shape(),
                requires_grad: t.properties().requires_grad,
                python,
            };
            (what, t.bytes())
        }
    };
    let size = |held: &Held| held.item.tensor().map_or(1, |t| t.bytes());
    let mut shares: BTreeMap<u32, u64> = BTreeMap::new();
    for held in &pieces {
        let share = shares.entry(held.from).or_default();
        *share = share.saturating_add(size(held));
    }
    let offset = |held: &Held| held.item.tensor().map(|t| t.region.offsets.clone());
    pieces.sort_by_cached_key(offset);
    Ok(Leaf {
        home: most(&shares),
        plan: LeafPlan { key, path, what },
        pieces,
        bytes,
    })
}

/// The rank with the most; of equal ones the lowest.
fn most(shares: &BTreeMap<u32, u64>) -> u32 {
    let most = shares.values().max();
    let found = shares.iter().find(|(_, share)| Some(*share) == most);
    found.map_or(0, |(rank, _)| *rank)
}

/// The rank that has the most of all.
fn richest(leaves: &[Leaf]) -> u32 {
    let mut shares: BTreeMap<u32, u64> = BTreeMap::new();
    for held in leaves.iter().flat_map(|leaf| &leaf.pieces) {
        let share = shares.entry(held.from).or_default();
        *share = share.saturating_add(held.item.tensor().map_or(1, |t| t.bytes()));
    }
    most(&shares)
}

/// The steps of a path, with what contains them. A reader takes the text of a path for the key, so a leaf whose key is not the text of its path
/// is stored under its key.
fn steps(
    key: &str,
    path: Option<&Path>,
    ints: Option<&BTreeSet<u16>>,
    types: &KeyTypes<'_>,
) -> Vec<At> {
    let Some(path) = path.filter(|path| !path.0.is_empty() && path.to_string() == key) else {
        return vec![At::Key(key.into())];
    };
    let step = |(n, step): (u16, &Step)| match step {
        Step::Index(i) => At::Index(*i),
        Step::Key(text) => {
            let int = ints.filter(|ints| ints.contains(&n));
            let int = int.and_then(|_| text.parse().ok()).map(At::Int);
            let typed = || types.key(path.0.get(..=usize::from(n))?, text);
            int.or_else(typed).unwrap_or_else(|| At::Key(text.clone()))
        }
    };
    (0u16..).zip(&path.0).map(step).collect()
}

/// The files that a policy makes of whole tensors. It sees each of them as something that can't be cut, which the rank with most of it
/// writes.
fn by_policy(
    writer: &TorchSaveWriter,
    policy: &dyn ShardingPolicy,
    leaves: Vec<Leaf>,
    dicts: &[DictPlan],
) -> Result<(Vec<File>, PolicyMetrics)> {
    if let Some(leaf) = leaves
        .iter()
        .find(|leaf| matches!(leaf.plan.what, What::Object))
    {
        let what = "it is not a tensor, and several files with an index hold only tensors; leave the policy out, leave the object out, or choose another format";
        return Err(unsupported(&leaf.plan.key, what));
    }
    let all = richest(&leaves);
    let gathers = gathers(policy).map_err(PlanError::planner)?;
    let no_axes = Region::default();
    // Tensors without elements lie where the first other tensor does, because nobody writes an item for them.
    let (with, without): (Vec<Leaf>, Vec<Leaf>) =
        leaves.into_iter().partition(|leaf| !leaf.pieces.is_empty());
    let without_leaves = WithoutLeaves::new().map_err(PlanError::planner)?;
    let overhead = |leaf: &Leaf| {
        let bound = without_leaves.bound_of(&leaf.plan);
        bound.map_err(PlanError::planner)
    };
    let mut file = of_file(&writer.empty, dicts).map_err(PlanError::planner)?;
    for leaf in &without {
        file = file.saturating_add(overhead(leaf)?);
    }
    let piece = |leaf| -> Result<Piece<'_>> {
        let Leaf {
            plan, bytes, home, ..
        }: &Leaf = leaf;
        let key = &*plan.key;
        Ok(Piece {
            key,
            name: key,
            content: Content::Object,
            global_shape: &[],
            region: &no_axes,
            task: if gathers { all } else { *home },
            device: "cpu",
            owner: key.rsplit_once('.').map_or("", |(owner, _)| owner),
            tag: None,
            bytes: *bytes,
            whole: true,
            overhead: Overhead {
                slice: overhead(leaf)?,
                file,
            },
        })
    };
    let pieces = with.iter().map(piece).collect::<Result<Vec<_>>>()?;
    // The pieces come task by task.
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&n| pieces.get(n).map(|piece| piece.task));
    let sorted: Vec<Piece<'_>> = order
        .iter()
        .filter_map(|&n| pieces.get(n).copied())
        .collect();
    let sharding = decide(policy, &sorted, writer.limits).map_err(PlanError::planner)?;
    let metrics = sharding.metrics.clone();
    writer.asked.get_or_init(|| metrics.clone());
    Ok((files(sharding, &order, with, without), metrics))
}

fn files(sharding: Sharding, order: &[usize], with: Vec<Leaf>, without: Vec<Leaf>) -> Vec<File> {
    let mut with: Vec<Option<Leaf>> = with.into_iter().map(Some).collect();
    let count = sharding.shards.len().max(1);
    let name = |n: usize| match count {
        1 => WEIGHTS.into(),
        _ => shard(n + 1, count),
    };
    let mut out: Vec<File> = Vec::with_capacity(count);
    for (n, found) in sharding.shards.into_iter().enumerate() {
        let own = found.cuts.iter().filter_map(|cut| {
            let at = order.get(cut.piece as usize)?;
            with.get_mut(*at)?.take()
        });
        out.push(File {
            name: name(n),
            indexed: count > 1,
            by: found.task,
            leaves: own.collect(),
        });
    }
    if out.is_empty() {
        out.push(File {
            name: name(0),
            indexed: false,
            by: 0,
            leaves: Vec::new(),
        });
    }
    if let Some(first) = out.first_mut() {
        first.leaves.extend(without);
    }
    out
}
