//! Finds plain tensors that differ between ranks. A checkpoint holds such a tensor once. A save that chose one of them
//! would silently lose the others, so it fails instead.
//!
//! Each rank computes a CRC-32 of each of its plain tensors. The coordinator compares these, together with types and
//! shapes. This finds every difference within 32 neighbouring bits, and misses one in 2^32 of all others.

use crate::{consistent::Digest, save::SaveOptions};
use indexmap::IndexMap;
use reshard_comm::{Cause, Comm, Rank};
use reshard_model::{DType, Data, Dialect, Dims, FlatStateDict, Path, PlainTensor, Step};
use reshard_strategy::{Result, StrategyError, agree as all_agree, cause, crc32_of_all};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A message names at most so many tensors.
const SHOWN: usize = 20;
/// A message lists at most so many variants of one tensor.
const WAYS: usize = 4;

/// What is compared between tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Print {
    dtype: DType,
    shape: Dims,
    crc: u32,
}

/// What a rank sends to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    prints: Vec<(Path, Print)>,
    /// The digest of the values of common state, if they are compared.
    common: Option<Digest>,
}

/// What all ranks learn.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Compared {
    /// The keys of the tensors that are left to the coordinator.
    pub(crate) left: Vec<String>,
    /// Whether the values in common state of a rank may differ from the coordinator's.
    pub(crate) common_differs: bool,
}

/// What a rank compares with others.
#[derive(Clone, Copy)]
pub(crate) struct Mine<'a> {
    pub(crate) plain: &'a [PlainTensor],
    pub(crate) common: Option<Digest>,
}

/// [`agree`](all_agree), which compares the plain tensors of all ranks in the same step, and digests of their common state.
///
/// # Errors
/// On every rank, when any of them failed, or when tensors differ.
pub(crate) async fn agree<T>(
    comm: &Comm<'_>,
    step: &'static str,
    outcome: Result<T>,
    mine: Mine<'_>,
    options: &SaveOptions,
) -> Result<(T, Compared)> {
    if comm.size() == 1 {
        return Ok((all_agree(comm, step, outcome).await?, Compared::default()));
    }
    let told = match &outcome {
        Err(e) => Err(cause(e)),
        Ok(_) if !compares(options) => Ok(Vec::new()),
        Ok(_) => prints(mine.plain).await.map_err(|e| cause(&e)),
    };
    let told = told.map(|prints| Told {
        prints,
        common: mine.common,
    });
    let compared = comm
        .all_reduce(step, told, |all| {
            Ok(Compared {
                left: compare(options, &all, comm.coordinator())?,
                common_differs: common_differs(&all, comm.coordinator()),
            })
        })
        .await?;
    Ok((outcome?, compared))
}

/// Whether a rank that compares its common state has other values than the coordinator.
fn common_differs(all: &[Told], coordinator: Rank) -> bool {
    let of = all.get(coordinator.index()).and_then(|told| told.common);
    let differs = |told: &Told| told.common.is_some() && told.common != of;
    of.is_some() && all.iter().any(differs)
}

/// Removes the plain leaves that are left to the coordinator.
pub(crate) fn leave_to_coordinator(
    keys: &[String],
    plain: &[PlainTensor],
    flat: &mut FlatStateDict,
) {
    let keys: BTreeSet<Step> = keys.iter().map(|k| k.as_str().into()).collect();
    let left: BTreeSet<Step> = plain
        .iter()
        .filter_map(|t| t.path.0.first())
        .filter(|k| keys.contains(*k))
        .cloned()
        .collect();
    if !left.is_empty() {
        flat.retain(|_, leaf| !left.contains(&leaf.key().into()));
    }
}

/// The prints of this rank's tensors.
async fn prints(plain: &[PlainTensor]) -> Result<Vec<(Path, Print)>> {
    let sums = crc32_of_all(plain.iter().map(|t| (t.path.to_string(), &t.data))).await?;
    let print = |(t, sum): (&PlainTensor, Option<u32>)| {
        let (dtype, shape) = match &t.data {
            Data::Host(h) => (h.dtype(), h.shape()),
            Data::Device(d) => (d.dtype(), d.layout().shape()),
            // Other leaves contain no plain tensors.
            Data::None | Data::Lazy(_) => return None,
        };
        let print = Print {
            dtype,
            shape: shape.clone(),
            crc: sum?,
        };
        Some((t.path.clone(), print))
    };
    Ok(plain.iter().zip(sums).filter_map(print).collect())
}

/// What each rank has under one path. A rank that has the item, but not this tensor in it, has nothing.
type Holders<'a> = BTreeMap<Rank, Option<&'a Print>>;

fn compares(options: &SaveOptions) -> bool {
    // In common state only the coordinator's tensors are saved anyway.
    options.pipeline.dialect != Dialect::Megatron || !options.coordinators_plain_tensors
}

/// Called on the coordinator: the keys that are left to it.
fn compare(options: &SaveOptions, all: &[Told], coordinator: Rank) -> Result<Vec<String>, Cause> {
    let ranks = || (0..).map(Rank).zip(all);
    // Equal prints on all ranks are the rule, and need no tables.
    if all.iter().all(|told| told.prints == all[0].prints) {
        return Ok(Vec::new());
    }

    let mut paths: BTreeMap<&Path, Holders<'_>> = BTreeMap::new();
    let mut items: BTreeMap<&Step, BTreeSet<Rank>> = BTreeMap::new();
    for (rank, told) in ranks() {
        for (path, print) in &told.prints {
            paths.entry(path).or_default().insert(rank, Some(print));
            if let Some(item) = path.0.first() {
                items.entry(item).or_default().insert(rank);
            }
        }
    }

    // A rank that should have a tensor but does not counts as a holder of nothing, so it differs.
    let mut left = BTreeSet::new();
    let mut problems = Vec::new();
    for (path, mut holders) in paths {
        let item = path.0.first();
        match options.pipeline.dialect {
            // A tensor that only some ranks lack is saved all the same.
            Dialect::Megatron => drop(holders.entry(coordinator).or_insert(None)),
            _ => {
                for rank in item.and_then(|item| items.get(item)).into_iter().flatten() {
                    holders.entry(*rank).or_insert(None);
                }
            }
        }

        // Where the coordinator has a tensor, the others are compared with it, and else with the lowest rank.
        let meant = if holders.contains_key(&coordinator) {
            Some(coordinator)
        } else {
            None
        };
        let first = meant.or_else(|| holders.keys().next().copied());
        let Some((first, is)) = first.and_then(|r| Some((r, *holders.get(&r)?))) else {
            continue;
        };
        holders.retain(|_, print| *print != is);

        // A difference is fine only if the caller left such tensors to the coordinator, and the coordinator has
        // this one.
        match (
            holders.is_empty(),
            options.coordinators_plain_tensors && meant.is_some(),
            item,
        ) {
            (true, ..) => {}
            (false, true, Some(item)) => drop(left.insert(item.to_string())),
            _ => problems.push(problem(path, first, is, &holders)),
        }
    }
    if problems.is_empty() {
        Ok(left.into_iter().collect())
    } else {
        Err(refused(options, &problems))
    }
}

fn refused(options: &SaveOptions, problems: &[String]) -> Cause {
    let mut what =
        "plain tensors are not the same on all ranks, and a checkpoint holds each of them once:"
            .to_owned();
    problems
        .iter()
        .take(SHOWN)
        .for_each(|p| what = format!("{what}\n  {p}"));
    if let Some(more @ 1..) = problems.len().checked_sub(SHOWN) {
        what = format!("{what}\n  and {more} more");
    }
    what += "\ndeclare pieces of one tensor with `ShardedTensor`, or copies, of which the main one is saved, with \
             `ShardedTensor::replicated`; or give each rank's tensor a key of its own";
    what += match options.coordinators_plain_tensors {
        true => "; the coordinator's tensor can't be saved where the coordinator has none",
        false => {
            "; or, if you mean the coordinator's tensor, save with `.coordinators_plain_tensors(true)`"
        }
    };
    cause(&StrategyError::Invalid(what))
}

/// How the tensors of one path differ, and on which ranks.
fn problem(path: &Path, first: Rank, is: Option<&Print>, others: &Holders<'_>) -> String {
    let spec = |p: &Print| format!("{} of shape {}", p.dtype, p.shape);
    // Ranks with equal tensors are named together.
    let mut ways: IndexMap<String, Vec<Rank>> = IndexMap::new();
    for (rank, other) in others {
        let way = match (is, other) {
            (Some(a), Some(b)) if (a.dtype, &a.shape) == (b.dtype, &b.shape) => {
                "other elements".to_owned()
            }
            (_, Some(b)) => spec(b),
            (_, None) => "none".to_owned(),
        };
        ways.entry(way).or_default().push(*rank);
    }
    let mut out = format!(
        "{path}: rank {first} has {}",
        is.map_or("none".to_owned(), spec)
    );
    for (way, ranks) in ways.iter().take(WAYS) {
        let have = if ranks.len() == 1 { "has" } else { "have" };
        out = format!("{out}, {} {have} {way}", Rank::list(ranks));
    }
    if ways.len() > WAYS {
        out += ", and other ranks have still other tensors";
    }
    out
}
