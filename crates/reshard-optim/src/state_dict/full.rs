//! Whole tensors: gathered from all ranks, or sent to them in parts.
//!
//! Tensors go in rounds, so a rank has at most one of them, or [`ROUND`] bytes, in memory in addition to what it keeps.

use super::{
    declared::{Declarations, Want, not_whole, regions},
    plain::Sendable,
};
use crate::{OptimError, Result};
use bytes::Bytes;
use reshard_comm::{Cause, Comm, Rank};
use reshard_model::{
    DType, Dims, Leaf, LentBuffer, Path, Region, ShardedTensor, StateDict, Step, Tensor, Tree,
    Value, ValueTree, unflatten,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of one round, unless one tensor has more.
const ROUND: u64 = 64 << 20;

/// A tensor of which a rank holds regions.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    path: Path,
    dtype: DType,
    shape: Dims,
    regions: Vec<Region>,
    main: bool,
}

impl Part {
    fn of(path: &[Step], t: &ShardedTensor) -> Self {
        Self {
            path: path.into(),
            dtype: t.dtype,
            shape: t.global_shape.clone(),
            regions: regions(t),
            main: t.replica_id.is_main(),
        }
    }
}

fn bytes_of(dtype: DType, regions: &[Region]) -> u64 {
    let elements = regions.iter().map(|r| r.volume().unwrap_or(u64::MAX));
    elements
        .fold(0u64, u64::saturating_add)
        .saturating_mul(dtype.size())
}

pub(super) fn cause(error: &OptimError) -> Cause {
    Cause::from_error(error.kind(), error)
}

/// Positions of the next round: neighbours with at most [`ROUND`] bytes in all, but at least one.
fn rounds(sizes: &[u64]) -> Vec<std::ops::Range<usize>> {
    let (mut rounds, mut first, mut sum) = (Vec::new(), 0, 0u64);
    for (i, size) in sizes.iter().enumerate() {
        if i > first && sum.saturating_add(*size) > ROUND {
            rounds.push(first..i);
            (first, sum) = (i, 0);
        }
        sum = sum.saturating_add(*size);
    }
    if first < sizes.len() {
        rounds.push(first..sizes.len());
    }
    rounds
}

/// Makes whole tensors of the parts of all ranks: those of every rank's dict, in the dict of each rank (`to_all`) or of the coordinator alone. Other
/// leaves are the rank's own; ranks that get no tensors get an empty dict.
pub(super) async fn gather(
    state: Result<StateDict>,
    comm: Comm<'_>,
    to_all: bool,
) -> Result<StateDict> {
    let declared = state.as_ref().map_err(cause).and_then(parts_of);
    let everybody = comm.all_gather("full state dict", declared).await?;
    let mut state = state?;
    let tensors = united(&everybody).map_err(|e| cause(&e));
    comm.agree(
        "full state dict",
        tensors.as_ref().map(drop).map_err(Clone::clone),
    )
    .await?;
    let tensors = tensors.unwrap_or_default();
    let gets = |rank: u32| to_all || Rank(rank) == comm.coordinator();

    let sizes: Vec<u64> = tensors
        .iter()
        .map(|t| bytes_of(t.dtype, &[Region::whole(&t.shape)]))
        .collect();
    for round in rounds(&sizes) {
        let round = &tensors[round];
        let mine = own_bytes(&state, round, comm.rank());
        let to = mine.map_err(|e| cause(&e)).map(|mine| {
            let part = |rank| if gets(rank) { mine.clone() } else { Vec::new() };
            (0..comm.size()).map(part).collect()
        });
        let got = comm.all_to_all("full state dict", to).await?;
        let whole = match gets(comm.rank().0) {
            true => whole(round, got),
            false => Ok(Vec::new()),
        };
        // A tensor that can't be made is the same on all ranks that make it.
        comm.agree("full state dict", whole.as_ref().map(drop).map_err(cause))
            .await?;
        for (path, tensor) in whole? {
            put(&mut state, &path, tensor);
        }
    }
    Ok(match gets(comm.rank().0) {
        true => state,
        false => StateDict::new(),
    })
}

/// Replaces the leaf at a path, or adds one. A tensor of another rank may belong to a dict that this rank lacks.
fn put(state: &mut StateDict, path: &Path, tensor: Tensor) {
    let leaf = Tree::Leaf(tensor.into());
    match state.at_mut(&path.0) {
        Some(at) => *at = leaf,
        None => state.insert_at(&path.0, leaf),
    }
}

fn parts_of(state: &StateDict) -> Result<Vec<Part>, Cause> {
    let (mut parts, mut failed) = (Vec::new(), None);
    state.visit(&mut |path, leaf| match leaf {
        Leaf::Tensor(t) => parts.push(Part::of(path, t)),
        Leaf::Factory(f) => {
            failed.get_or_insert_with(|| OptimError::NotWhole {
                name: Path::from(path).to_string(),
                what: format!(
                    "the factory {} makes several tensors of it; whole tensors are made of tensors only",
                    f.key
                ),
            });
        }
        _ => {}
    });
    match failed {
        None => Ok(parts),
        Some(e) => Err(cause(&e)),
    }
}

/// A tensor with the regions that each rank sends.
#[derive(Clone, Debug)]
struct Whole {
    path: Path,
    dtype: DType,
    shape: Dims,
    /// By rank. No region is there twice.
    from: BTreeMap<u32, Vec<Region>>,
}

/// All tensors of all ranks, in the order of the ranks and of their dicts.
fn united(everybody: &[Vec<Part>]) -> Result<Vec<Whole>> {
    let mut order: Vec<&Path> = Vec::new();
    let mut by_path: BTreeMap<&Path, Vec<(u32, &Part)>> = BTreeMap::new();
    for (rank, parts) in (0..).zip(everybody) {
        for part in parts {
            let of_path = by_path.entry(&part.path).or_default();
            if of_path.is_empty() {
                order.push(&part.path);
            }
            of_path.push((rank, part));
        }
    }
    let whole = |path: &Path| {
        let parts = by_path.get(path).map_or(&[][..], Vec::as_slice);
        let Some((_, first)) = parts.first() else {
            return Err(not_whole(path, "no rank has it"));
        };
        // Of equal pieces a main replica sends, else that of the lowest rank.
        let mut senders: BTreeMap<&[Region], (bool, u32)> = BTreeMap::new();
        for (rank, part) in parts {
            if (part.dtype, &part.shape) != (first.dtype, &first.shape) {
                let what = format!(
                    "rank {rank} has a part of a tensor of {} {}, and another rank one of {} {}",
                    part.dtype, part.shape, first.dtype, first.shape
                );
                return Err(not_whole(path, what));
            }
            let sender = senders.entry(&part.regions).or_insert((part.main, *rank));
            if part.main && !sender.0 {
                *sender = (true, *rank);
            }
        }
        let mut from: BTreeMap<u32, Vec<Region>> = BTreeMap::new();
        for (regions, (_, rank)) in senders {
            let filled = regions.iter().filter(|r| !r.is_empty()).cloned();
            from.entry(rank).or_default().extend(filled);
        }
        let all: Vec<Region> = from.values().flatten().cloned().collect();
        let there = bytes_of(first.dtype, &all);
        let wanted = bytes_of(first.dtype, &[Region::whole(&first.shape)]);
        if there != wanted {
            let what = format!("the ranks have {there} bytes of {wanted}");
            return Err(not_whole(path, what));
        }
        Ok(Whole {
            path: path.clone(),
            dtype: first.dtype,
            shape: first.shape.clone(),
            from,
        })
    };
    order.into_iter().map(whole).collect()
}

/// What a rank sends in a round.
fn own_bytes(state: &StateDict, round: &[Whole], me: Rank) -> Result<Vec<Bytes>> {
    let mut out = Vec::new();
    for tensor in round {
        let Some(regions) = tensor.from.get(&me.0) else {
            continue;
        };
        let Some(Tree::Leaf(Leaf::Tensor(t))) = state.at(&tensor.path.0) else {
            return Err(not_whole(&tensor.path, "it is gone"));
        };
        // Data of another type or shape than declared must not be taken for the declared elements.
        t.validate()?;
        let Some(data) = t.data.to_host(&t.key)? else {
            let what = "this rank has no data for its part of it";
            return Err(not_whole(&tensor.path, what));
        };
        let (bytes, declared) = (data.to_bytes(), bytes_of(t.dtype, regions));
        if bytes.len() as u64 != declared {
            let what = format!(
                "this rank's part has {} bytes, and its declaration has {declared}",
                bytes.len()
            );
            return Err(not_whole(&tensor.path, what));
        }
        out.push(bytes);
    }
    Ok(out)
}

/// Makes the tensors of a round from what the ranks have sent.
fn whole(round: &[Whole], mut got: Vec<Bytes>) -> Result<Vec<(Path, Tensor)>> {
    let mut out = Vec::new();
    for tensor in round {
        let key = tensor.path.to_string();
        let new = Tensor::zeros(&key, tensor.dtype, &tensor.shape)?;
        let (lent, views) = LentBuffer::new(&key, vec![new]).map_err(|(e, _)| e)?;
        let Some(view) = views.first() else {
            return Err(not_whole(&tensor.path, "it has no memory"));
        };
        let mut wants = Vec::new();
        let mut sources = Vec::new();
        for (rank, regions) in &tensor.from {
            let from = got.get_mut(*rank as usize);
            let from = from.ok_or_else(|| not_whole(&tensor.path, "a rank sent nothing"))?;
            for region in regions {
                let length = bytes_of(tensor.dtype, std::slice::from_ref(region));
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if from.len() < length {
                    let what = format!("rank {rank} sent too few bytes");
                    return Err(not_whole(&tensor.path, what));
                }
                sources.push(from.split_to(length));
                wants.push((view, region.clone()));
            }
        }
        for (into, bytes) in lent.regions_mut(&wants)?.into_iter().zip(sources) {
            into.fill(&bytes)?;
        }
        let made = lent.reclaim(views);
        let made = made.map_err(|_| not_whole(&tensor.path, "a region of it is still lent"))?;
        out.extend(made.into_iter().map(|t| (tensor.path.clone(), t)));
    }
    Ok(out)
}

/// An entry of the coordinator's dict.
#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    Sendable(Sendable),
    Tensor(DType, Dims),
}

/// The entries of the coordinator's dict, in its order.
type List = Vec<(Path, Entry)>;

/// Sends each rank its part of the coordinator's dict. What a rank's model does not have is sent to it as a placeholder without elements, so that it knows
/// of it.
pub(super) async fn scatter(
    state: ValueTree,
    declared: Result<&Declarations, Cause>,
    comm: Comm<'_>,
) -> Result<ValueTree> {
    let (list, tensors) = match comm.is_coordinator() {
        true => match listed(&state) {
            Ok((list, tensors)) => (Some(Ok(list)), tensors),
            Err(e) => (Some(Err(cause(&e))), Vec::new()),
        },
        false => (None, Vec::new()),
    };
    let list: List = comm.broadcast("broadcast state dict", list).await?;
    let wants = declared.and_then(|declared| wanted(&list, declared).map_err(|e| cause(&e)));
    let wants = comm.all_gather("broadcast state dict", wants).await?;
    let mine = wants
        .get(comm.rank().0 as usize)
        .cloned()
        .unwrap_or_default();

    let of_list: Vec<(usize, DType)> = list
        .iter()
        .enumerate()
        .filter_map(|(i, (_, entry))| match entry {
            Entry::Tensor(dtype, _) => Some((i, *dtype)),
            Entry::Sendable(_) => None,
        })
        .collect();
    let size = |(t, (_, dtype)): (usize, &(usize, DType))| {
        let of_rank = |wants: &Vec<Want>| wants.get(t).map_or(0, |w| bytes_of(*dtype, &w.regions));
        wants.iter().map(of_rank).fold(0, u64::saturating_add)
    };
    let sizes: Vec<u64> = of_list.iter().enumerate().map(size).collect();
    let mut parts: BTreeMap<usize, Tensor> = BTreeMap::new();
    for round in rounds(&sizes) {
        let to = |wants: &Vec<Want>| -> Vec<Bytes> {
            let both = wants.iter().zip(&tensors).take(round.end).skip(round.start);
            both.flat_map(|(want, tensor)| want.cut(tensor)).collect()
        };
        let sent = wants.iter().map(to).collect();
        let got = comm.all_to_all("broadcast state dict", Ok(sent)).await?;
        let mut from = got
            .into_iter()
            .nth(comm.coordinator().0 as usize)
            .unwrap_or_default();
        for t in round {
            let (Some(want), Some((at, dtype))) = (mine.get(t), of_list.get(t)) else {
                continue;
            };
            let length = bytes_of(*dtype, &want.regions);
            let length = usize::try_from(length)
                .unwrap_or(usize::MAX)
                .min(from.len());
            // Its own memory: what arrives is a view of a whole round.
            let bytes = from.split_to(length).to_vec();
            parts.insert(*at, Tensor::new(*dtype, &want.shape, bytes)?);
        }
    }
    let values = list
        .into_iter()
        .enumerate()
        .filter_map(|(i, (path, entry))| {
            Some(match entry {
                Entry::Sendable(plain) => (path, plain.into()),
                Entry::Tensor(..) => (path, Value::Tensor(parts.remove(&i)?)),
            })
        });
    Ok(unflatten(values)?)
}

/// The entries of a dict, and its tensors in the same order.
fn listed(state: &ValueTree) -> Result<(List, Vec<Tensor>)> {
    let (mut list, mut tensors, mut failed) = (Vec::new(), Vec::new(), None);
    state.visit(&mut |path, value| {
        let entry = match value {
            Value::Tensor(t) => {
                tensors.push(t.clone());
                Some(Entry::Tensor(t.dtype(), t.shape().clone()))
            }
            other => Sendable::of(other).map(Entry::Sendable),
        };
        match entry {
            Some(entry) => list.push((Path::from(path), entry)),
            None => {
                let what = format!("a {} can't be sent to other ranks", value.type_name());
                failed.get_or_insert_with(|| not_whole(&path.into(), what));
            }
        }
    });
    failed.map_or(Ok((list, tensors)), Err)
}

/// What this rank wants of each tensor of the list.
fn wanted(list: &[(Path, Entry)], declared: &Declarations) -> Result<Vec<Want>> {
    let want = |(path, entry): &(Path, Entry)| match entry {
        Entry::Sendable(_) => None,
        Entry::Tensor(_, shape) => Some(declared.want(path, shape)),
    };
    list.iter().filter_map(want).collect()
}
