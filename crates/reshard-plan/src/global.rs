//! The global plan of a save: from the plans of all ranks, it decides which rank writes what, and what the checkpoint holds.

use crate::{
    At, Dedup, DefaultSavePlanner, Fault, Metadata, Offer, PlanError, PlannerData, Problem,
    Problems, Result, SavePlan, TensorWrite, WriteItem, WriteKind,
    geometry::{self, Allowed},
};
use indexmap::map::Entry;
use reshard_model::PathOfKey;
use std::collections::BTreeMap;

mod numbers;
mod pieces;

use numbers::{NONE, Numbers};
use pieces::Pieces;

/// Dedup, table and checks, in a few passes over all items. It allocates only some numbers per item.
pub(crate) fn plan(
    mut plans: Vec<SavePlan>,
    how: &DefaultSavePlanner,
) -> Result<(Vec<SavePlan>, Metadata)> {
    if plans.iter().map(|p| p.items.len()).sum::<usize>() >= NONE as usize
        || plans.len() >= NONE as usize
    {
        return Err(PlanError::invalid("", "more than 2³² pieces in one save"));
    }
    let paths = merge_paths(&mut plans);
    // All problems are collected and reported together, sorted by key, so that every run gives the same error.
    let (kept, metadata) = {
        let mut survey = Survey::of(&plans, how);
        let owners = survey.owners(&plans, how.dedup);
        let kept = survey.keep(&plans, &owners);
        let metadata = survey.metadata(&plans, &kept, paths)?;
        if !survey.problems.is_empty() {
            survey.problems.sort_by(|a, b| a.key.cmp(&b.key));
            return Err(PlanError::Save(Problems(survey.problems)));
        }
        (kept, metadata)
    };
    // Drops the items that another rank writes.
    let mut at = 0;
    for plan in &mut plans {
        plan.items.retain(|_| {
            at += 1;
            kept[at - 1]
        });
    }
    Ok((plans, metadata))
}

/// Merges the paths as `dict(ChainMap(*mappings))` does in PyTorch: keys are in the order of the last rank's mapping, then of
/// the mappings before it. Each path comes from the lowest rank that has the key. If ranks differ, the lowest rank with an item of
/// this key counts: a planner may have renamed leaves there, of which other ranks have replicas under old keys. The paths are
/// removed from the plans, so that they are not sent back to the ranks.
fn merge_paths(plans: &mut [SavePlan]) -> Option<PlannerData> {
    let mut all: Vec<(usize, PathOfKey)> = Vec::new();
    for (rank, plan) in plans.iter_mut().enumerate() {
        match plan.planner_data.take() {
            Some(PlannerData::Paths(paths)) => all.push((rank, paths)),
            other => plan.planner_data = other,
        }
    }
    let (_, mut merged) = all.pop()?;
    let mut writers: Option<BTreeMap<&str, usize>> = None;
    for (rank, paths) in all.into_iter().rev() {
        for (key, path) in paths {
            let mut known = match merged.entry(key) {
                Entry::Vacant(new) => {
                    new.insert(path);
                    continue;
                }
                Entry::Occupied(known) => known,
            };
            if *known.get() != path {
                let writers = writers.get_or_insert_with(|| lowest_writers(plans));
                if writers
                    .get(&**known.key())
                    .is_none_or(|writer| *writer <= rank)
                {
                    known.insert(path);
                }
            }
        }
    }
    Some(PlannerData::Paths(merged))
}

/// The lowest rank with an item of each key.
fn lowest_writers(plans: &[SavePlan]) -> BTreeMap<&str, usize> {
    let all = plans.iter().enumerate().rev();
    all.flat_map(|(rank, plan)| plan.items.iter().map(move |item| (&*item.key, rank)))
        .collect()
}

/// The first item of a key.
struct First<'p> {
    item: &'p WriteItem,
    rank: u32,
    /// Whether the key already has a problem.
    spoiled: bool,
}

/// An overview of everything that all ranks offer.
struct Survey<'p> {
    keys: Numbers<First<'p>>,
    pieces: Pieces<'p>,
    /// Key and piece of each item, rank by rank. An item that is not written has no piece.
    of_item: Vec<(u32, u32)>,
    allow_holes: bool,
    problems: Vec<Problem>,
}

impl<'p> Survey<'p> {
    fn of(plans: &'p [SavePlan], how: &DefaultSavePlanner) -> Self {
        let items = plans.iter().map(|p| p.items.len()).sum();
        let mut this = Self {
            keys: Numbers::with_capacity(0),
            pieces: Pieces::with_capacity(items),
            of_item: Vec::with_capacity(items),
            allow_holes: how.allow_holes,
            problems: Vec::new(),
        };
        for (rank, plan) in plans.iter().enumerate() {
            for item in &plan.items {
                let rank = rank as u32;
                let first = || First {
                    item,
                    rank,
                    spoiled: false,
                };
                let key = this.keys.intern(&*item.key, |f| &*f.item.key, first);
                let piece = this.piece(key, item, rank, how.offer);
                this.of_item.push((key, piece));
            }
        }
        this
    }

    /// The piece of an item, or `NONE` if it is not written. A problem of the item is recorded, at most one per key.
    fn piece(&mut self, key: u32, item: &'p WriteItem, rank: u32, offer: Offer) -> u32 {
        let first = self.keys.get(key);
        let mut wrong = None;
        let mut piece = NONE;
        match (&first.item.kind, &item.kind) {
            // Objects: main replicas may be offered only once.
            (WriteKind::Object { .. }, WriteKind::Object { .. }) => {
                piece = self.pieces.offer(key, item, rank);
                let offered = self.pieces.get(piece);
                if offer == Offer::MainReplica && offered.offers > 1 {
                    let ranks = vec![offered.rank, rank];
                    wrong = Some(Fault::Duplicate { ranks });
                }
            }
            // Tensors: pieces must agree on type and shape, and lie in the shape. Two pieces with the same offset are replicas
            // if their lengths agree too. An empty piece is not written.
            (WriteKind::Tensor(a), WriteKind::Tensor(b)) => {
                wrong = differ(first.rank, a, rank, b);
                if wrong.is_none() && !b.region.is_empty() && b.region.fits(&b.global_shape) {
                    piece = self.pieces.offer(key, item, rank);
                    let offered = self.pieces.get(piece);
                    let other = offered.item.tensor().map(|t| &t.region);
                    let twice = offer == Offer::MainReplica && offered.offers > 1;
                    if let Some(other) = other.filter(|o| twice || o.lengths != b.region.lengths) {
                        wrong = Some(Fault::Overlap {
                            a: At::new(other, offered.rank),
                            b: At::new(&b.region, rank),
                        });
                    }
                } else if wrong.is_none() && !b.region.fits(&b.global_shape) {
                    wrong = Some(Fault::OutOfBounds {
                        at: At::new(&b.region, rank),
                        shape: b.global_shape.clone(),
                    });
                }
            }
            // One rank has a tensor where another has an object.
            (a, _) => {
                let name = |tensor| if tensor { "a tensor" } else { "an object" };
                let tensor = matches!(a, WriteKind::Tensor(_));
                wrong = Some(Fault::Kind {
                    is: format!("{} on rank {}", name(tensor), first.rank),
                    other: format!("{} on rank {rank}", name(!tensor)),
                });
            }
        }
        // Many items of one key may have the same problem: the first one is enough.
        if let Some(wrong) = wrong
            && !std::mem::replace(&mut self.keys.get_mut(key).spoiled, true)
        {
            self.problems.push(wrong.of(&*item.key));
        }
        piece
    }

    /// The rank that writes each piece.
    fn owners(&self, plans: &[SavePlan], dedup: Dedup) -> Vec<u32> {
        let ranks = plans
            .iter()
            .zip(0..)
            .flat_map(|(plan, rank)| std::iter::repeat_n(rank, plan.items.len()));
        let offers = self.of_item.iter().zip(ranks);
        let offered =
            offers.filter_map(|(&(_, piece), rank)| (piece != NONE).then_some((piece, rank)));
        self.pieces.owners(plans.len(), dedup, offered)
    }

    /// Whether each item is written by its rank, rank by rank.
    fn keep(&self, plans: &[SavePlan], owners: &[u32]) -> Vec<bool> {
        let mut written = vec![false; owners.len()];
        let mut of_item = self.of_item.iter();
        let mut kept = Vec::with_capacity(self.of_item.len());
        for (rank, plan) in plans.iter().enumerate() {
            for (_, piece) in of_item.by_ref().take(plan.items.len()) {
                let mine = owners.get(*piece as usize) == Some(&(rank as u32));
                // A rank may offer one piece twice. Then only the first item counts.
                kept.push(mine && !std::mem::replace(&mut written[*piece as usize], true));
            }
        }
        kept
    }

    /// Makes the table of what is written, and checks each tensor. Keys and chunks are in the order of the plans, as in
    /// PyTorch.
    fn metadata(
        &mut self,
        plans: &'p [SavePlan],
        kept: &[bool],
        paths: Option<PlannerData>,
    ) -> Result<Metadata> {
        // Counts the chunks of each key, so that all columns below have their final size at once.
        let written = self.keys.len();
        let mut chunks = vec![0u32; written];
        for ((key, _), kept) in self.of_item.iter().zip(kept) {
            chunks[*key as usize] += u32::from(*kept);
        }
        // Keys are ordered by their first written item. A key of which nothing is written is placed by its first item.
        let mut order: Vec<(u32, &WriteItem)> = Vec::with_capacity(written);
        let mut first = vec![NONE; written];
        let items = || {
            plans
                .iter()
                .enumerate()
                .flat_map(|(r, p)| p.items.iter().map(move |i| (r as u32, i)))
        };
        for (((key, _), kept), (_, item)) in self.of_item.iter().zip(kept).zip(items()) {
            let (key, first) = (*key, &mut first[*key as usize]);
            if *first == NONE && (*kept || chunks[key as usize] == 0) {
                *first = order.len() as u32;
                order.push((key, item));
            }
        }
        // Sorts the chunks by key (counting sort), because the table wants all chunks of a tensor together.
        let mut next = vec![0u32; written];
        let mut sum = 0;
        for (key, _) in &order {
            next[*key as usize] = sum;
            sum += chunks[*key as usize];
        }
        let mut sorted: Vec<(u32, Option<&TensorWrite>)> = vec![(NONE, None); sum as usize];
        for (((key, _), kept), (rank, item)) in self.of_item.iter().zip(kept).zip(items()) {
            if *kept {
                let at = &mut next[*key as usize];
                sorted[*at as usize] = (rank, item.tensor());
                *at += 1;
            }
        }
        // Fills the table.
        let mut builder = Metadata::builder();
        let mut at = 0;
        for (key, item) in &order {
            let end = at + chunks[*key as usize] as usize;
            if let Some(t) = item.tensor() {
                let id = builder.add_tensor(
                    &item.key,
                    t.dtype,
                    &t.global_shape,
                    t.properties.clone(),
                )?;
                builder.set_original_shape(id, t.original_shape.clone());
                for chunk in sorted[at..end].iter().filter_map(|(_, t)| *t) {
                    builder.add_chunk(id, &chunk.region)?;
                }
            } else {
                builder.add_object(&item.key)?;
            }
            at = end;
        }
        // Checks that the chunks of each tensor make up the whole. A key that already has a problem is skipped, because its
        // pieces would only cause follow-up problems.
        let metadata = builder.finish(paths)?;
        let mut at = 0;
        for (key, item) in &order {
            let from = at;
            at += chunks[*key as usize] as usize;
            if self.keys.get(*key).spoiled || item.tensor().is_none() {
                continue;
            }
            let Some(tensor) = metadata.tensor(&item.key) else {
                continue;
            };
            let rank = |i: usize| Some(sorted[from + i].0);
            let allowed = Allowed {
                holes: self.allow_holes,
                empty_outside: false,
            };
            let fault = geometry::fault(tensor, allowed, rank);
            let problem = fault.map(|fault| fault.of(&*item.key));
            self.problems.extend(problem);
        }
        Ok(metadata)
    }
}

/// How two chunks of one tensor contradict each other.
fn differ(rank: u32, a: &TensorWrite, other: u32, b: &TensorWrite) -> Option<Fault> {
    if a.dtype != b.dtype {
        return Some(Fault::DType {
            is: a.dtype,
            other: b.dtype,
            ranks: Some((rank, other)),
        });
    }
    let shape = |t: &TensorWrite, rank: u32| match &t.original_shape {
        None => format!("{} on rank {rank}", t.global_shape),
        Some(original) => format!(
            "{original}, flattened to {}, on rank {rank}",
            t.global_shape
        ),
    };
    let same = a.global_shape == b.global_shape && a.original_shape == b.original_shape;
    (!same).then(|| Fault::Shape {
        is: shape(a, rank),
        other: shape(b, other),
    })
}
