//! Which rank writes which chunk.

use super::{ChunkShapes, grid_of};
use crate::{
    grid::{Grid, MAX_CHUNKS},
    names::{ZARRAY, is_chunk, splits},
    version::Form,
};
use reshard_model::{Dims, Region};
use reshard_plan::{
    ChunkId, Held, Metadata, PlanError, Result, SavePlan, TensorWrite, WriteItem, WriteKind,
    place_item, take_items,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// A part of a chunk.
struct Piece {
    /// The rank that writes it as the plans are.
    by: u32,
    held: Held,
}

/// All chunks that are written, by key and position.
type Pieces = BTreeMap<(Box<str>, Dims), Vec<Piece>>;

/// Cuts the items of all plans where chunks end, and lets one rank write each chunk: the only one that has parts of it, or else the one
/// of them that has the least to write.
pub(super) fn by_chunks(
    mut plans: Vec<SavePlan>,
    metadata: Metadata,
    declared: &ChunkShapes,
    form: Form,
) -> Result<(Vec<SavePlan>, Metadata)> {
    if let Some(item) = plans
        .iter()
        .find(|p| !p.files.is_empty())
        .and_then(|p| p.items.first())
    {
        let what = "a planner has decided on files, but in a zarr checkpoint each chunk is a file";
        return Err(invalid(&item.key, what));
    }
    let grids = grids(&plans, declared)?;
    no_array_in_the_way(&grids, form)?;
    let mut loads = vec![0u64; plans.len()];
    let (pieces, empty, metadata) = cut(&mut plans, metadata, &grids)?;
    for (by, held) in empty {
        place_item(&mut plans, by, held)?;
    }
    let writers = writers(&pieces, &mut loads);
    let mut of_ranks = vec![ChunkShapes::default(); plans.len()];
    for ((at, pieces), by) in pieces.into_iter().zip(writers) {
        if let (Some(grid), Some(of)) = (grids.get(&at.0), of_ranks.get_mut(by as usize)) {
            of.0.entry(at.0).or_insert_with(|| grid.chunk().clone());
        }
        for piece in pieces {
            place_item(&mut plans, by, piece.held)?;
        }
    }
    for (plan, chunks) in plans.iter_mut().zip(of_ranks) {
        plan.storage_data = chunks.pack()?;
    }
    Ok((plans, metadata))
}

fn invalid(key: &str, what: impl Into<String>) -> PlanError {
    PlanError::Invalid {
        key: key.into(),
        what: what.into(),
    }
}

/// The grid of each array. A chunk is as long as the longest piece on each axis, so that pieces of a regular grid are its chunks. A
/// tensor that is stored flattened has a chunk for each cell.
fn grids(plans: &[SavePlan], declared: &ChunkShapes) -> Result<BTreeMap<Box<str>, Grid>> {
    let mut found: BTreeMap<&str, (&TensorWrite, Dims)> = BTreeMap::new();
    let items = plans.iter().flat_map(|plan| &plan.items);
    for (item, t) in items.filter_map(|item| Some((item, item.tensor()?))) {
        let ones = || Dims::splat(1, t.region.ndim());
        let (_, chunk) = found.entry(&item.key).or_insert_with(|| (t, ones()));
        for (longest, n) in chunk.iter_mut().zip(&t.region.lengths) {
            *longest = (*n).max(*longest);
        }
    }
    let grid = |(key, (t, mut chunk)): (&str, (&TensorWrite, Dims))| {
        match (
            &t.original_shape,
            t.global_shape.last(),
            declared.0.get(key),
        ) {
            (Some(_), Some(&elements), _) => {
                chunk = Dims::splat(1, t.global_shape.len());
                if let Some(last) = chunk.last_mut() {
                    *last = elements.max(1);
                }
            }
            (None, _, Some(declared)) => chunk = declared.clone(),
            _ => {}
        }
        let grid = grid_of(t, &chunk).ok_or_else(|| {
            invalid(
                key,
                format!("its chunks {chunk} don't fit its shape {}", t.global_shape),
            )
        })?;
        match grid.count() {
            Some(..=MAX_CHUNKS) => Ok((key.into(), grid)),
            _ => {
                let what = format!(
                    "it would be stored in chunks of {chunk}, which are more than {MAX_CHUNKS} files"
                );
                Err(invalid(key, what))
            }
        }
    };
    found.into_iter().map(grid).collect()
}

/// Fails if an array would lie in a folder that has the name of a file of another array.
fn no_array_in_the_way(grids: &BTreeMap<Box<str>, Grid>, form: Form) -> Result<()> {
    for key in grids.keys() {
        for (outer, inner) in splits(key) {
            let folder = inner.split('/').next().unwrap_or_default();
            let is_file = match form {
                Form::V2 => folder == ZARRAY || is_chunk(folder),
                Form::V3 { .. } => folder == "c",
            };
            if is_file && grids.contains_key(outer) {
                let what = format!(
                    "its folder {outer}/{folder} has the name of a file of the array {outer}; rename one of them"
                );
                return Err(invalid(key, what));
            }
        }
    }
    Ok(())
}

/// Pieces by chunk, pieces without elements with their ranks, and the metadata in which pieces are cut.
type CutPlans = (Pieces, Vec<(u32, Held)>, Metadata);

/// Takes all items out of the plans, and cuts them where chunks end.
fn cut(
    plans: &mut [SavePlan],
    metadata: Metadata,
    grids: &BTreeMap<Box<str>, Grid>,
) -> Result<CutPlans> {
    let (mut pieces, mut empty) = (Pieces::new(), Vec::new());
    let mut cuts: BTreeMap<ChunkId, Vec<Region>> = BTreeMap::new();
    for (by, all) in (0u32..).zip(take_items(plans)?) {
        for held in all {
            let key = &held.item.key;
            let (Some(t), Some(grid)) = (held.item.tensor(), grids.get(key)) else {
                return Err(invalid(key, "an object is planned in an array"));
            };
            if t.region.is_empty() {
                empty.push((by, held));
                continue;
            }
            let met = grid.met(&t.region);
            if met.volume() == Some(1) {
                let at = (key.clone(), met.offsets);
                pieces.entry(at).or_default().push(Piece { by, held });
                continue;
            }
            let chunk = chunk_of(&metadata, key, t)?;
            for at in met.blocks(1).map(|position| position.offsets) {
                let Some(part) = grid.region(&at).intersect(&t.region) else {
                    continue;
                };
                cuts.entry(chunk).or_default().push(part.clone());
                let held = Held::new(held.from, part_of(&held.item, t, part));
                let at = (key.clone(), at);
                pieces.entry(at).or_default().push(Piece { by, held });
            }
        }
    }
    for pieces in pieces.values_mut() {
        pieces.sort_by(|a, b| offsets(a).cmp(&offsets(b)));
    }
    let metadata = match cuts.is_empty() {
        true => metadata,
        false => metadata.with_cuts(|id| cuts.get(&id).map(Vec::as_slice))?,
    };
    Ok((pieces, empty, metadata))
}

fn offsets(piece: &Piece) -> Option<&Dims> {
    piece.held.item.tensor().map(|t| &t.region.offsets)
}

fn part_of(item: &WriteItem, t: &TensorWrite, region: Region) -> WriteItem {
    let kind = WriteKind::Tensor(TensorWrite {
        region,
        ..t.clone()
    });
    WriteItem {
        kind,
        ..item.clone()
    }
}

/// The chunk of the planner's metadata that an item writes.
fn chunk_of(metadata: &Metadata, key: &str, t: &TensorWrite) -> Result<ChunkId> {
    let found = metadata.tensor(key).and_then(|stored| {
        let is = |id: &ChunkId| {
            metadata
                .chunk(*id)
                .is_some_and(|(_, region)| region == t.region)
        };
        // An empty piece may begin at the same place.
        stored
            .chunk_at(&t.region.offsets, None)
            .filter(is)
            .or_else(|| Some(stored.chunks().find(|(_, region)| *region == t.region)?.0))
    });
    found.ok_or_else(|| {
        let what = format!("the planner's metadata has no chunk {}", t.region);
        invalid(key, what)
    })
}

/// The rank that writes each chunk, in their order.
fn writers(pieces: &Pieces, loads: &mut [u64]) -> Vec<u32> {
    let bytes = |pieces: &[Piece], of: Option<u32>| -> u64 {
        let of = pieces.iter().filter(|p| of.is_none_or(|rank| p.by == rank));
        of.map(|p| p.held.item.cost()).fold(0, u64::saturating_add)
    };
    let add = |loads: &mut [u64], rank: u32, more: u64| {
        if let Some(load) = loads.get_mut(rank as usize) {
            *load = load.saturating_add(more);
        }
    };
    // Chunks of one rank leave no choice, so they are counted first.
    let mut writers = Vec::with_capacity(pieces.len());
    let mut shared = Vec::new();
    for (n, pieces) in pieces.values().enumerate() {
        let ranks: BTreeSet<u32> = pieces.iter().map(|p| p.by).collect();
        let first = ranks.first().copied().unwrap_or(0);
        writers.push(first);
        match ranks.len() {
            0 | 1 => add(loads, first, bytes(pieces, None)),
            _ => shared.push((n, pieces, ranks)),
        }
    }
    for (n, pieces, ranks) in shared {
        let least = |rank: &u32| {
            let load = loads.get(*rank as usize).copied().unwrap_or(u64::MAX);
            (load, Reverse(bytes(pieces, Some(*rank))), *rank)
        };
        let Some(rank) = ranks.into_iter().min_by_key(least) else {
            continue;
        };
        add(loads, rank, bytes(pieces, None));
        writers[n] = rank;
    }
    writers
}
