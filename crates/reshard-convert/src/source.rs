//! A checkpoint as the state of N ranks, without loading its tensors.

use crate::{
    CastReport, ConvertError, Result,
    checked::Chunks,
    fit::{CommonAs, Fit},
    keys::Keys,
    optimizer::Canonical,
    tensor::Carried,
};
use reshard::{
    Checkpoint, Data, Dialect, Region, Save, ShardedObject, ShardedTensor, StateDict, StoredCommon,
    Value, ValueTree,
    model::{Leaf, Path, PathOfKey, Payload, Sharded, Step, Tree, split},
    plan::{Entry, PlannerData},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

#[derive(Debug)]
pub(crate) struct Source {
    dialect: Dialect,
    items: Vec<Item>,
    /// Not decoded, so content that this program can't represent is kept.
    common: Option<StoredCommon>,
    empty_dicts: Vec<Path>,
    /// The paths of all items, if common state becomes items.
    paths: Option<PlannerData>,
}

#[derive(Debug)]
enum Item {
    Tensor(Carried),
    Object(String, Payload),
    /// A tensor of common state, in memory.
    InMemory(Box<ShardedTensor>),
}

impl Item {
    fn key(&self) -> &str {
        match self {
            Self::Tensor(t) => t.key(),
            Self::Object(key, _) => key,
            Self::InMemory(t) => &t.key,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Tensor(t) => t.nbytes(),
            Self::Object(_, Payload::Encoded { bytes, .. }) => bytes.len() as u64,
            Self::Object(..) => 0,
            Self::InMemory(t) => match &t.data {
                Data::Host(data) => data.nbytes(),
                _ => 0,
            },
        }
    }

    /// The tensor, if it can be cut.
    fn cut(&self) -> Option<&Carried> {
        match self {
            Self::Tensor(t) if t.shape().first().is_some_and(|rows| *rows > 1) => Some(t),
            _ => None,
        }
    }
}

impl Source {
    /// Checks that all chunks have a location, because files are preallocated in full before the first byte is read.
    pub(crate) fn has_places(&self) -> Result<()> {
        for item in &self.items {
            if let Item::Tensor(tensor) = item {
                tensor.has_places()?;
            }
        }
        Ok(())
    }

    /// Reads objects in their stored form, and no tensors.
    pub(crate) async fn read(
        checkpoint: &Checkpoint,
        keys: &Keys<'_>,
        canonical: &Canonical,
        (fit, checks): (&Fit, &BTreeMap<String, Arc<Chunks>>),
    ) -> Result<Self> {
        let common = checkpoint
            .stored_common()
            .await
            .map_err(ConvertError::Read)?;
        let of_common = common.as_ref().and_then(StoredCommon::object_key);
        let is_common = |key: &str| of_common == Some(key);
        let mut items = Vec::new();
        for entry in checkpoint
            .metadata()
            .entries()
            .filter(|e| keys.has(e.key()) && !is_common(e.key()))
        {
            let key = entry.key();
            let Some(to) = canonical.key(key).filter(|to| fit.has(to)) else {
                continue;
            };
            let item = match entry {
                Entry::Tensor(t) => checkpoint.tensor(key).map(|tensor| {
                    let carried = Carried::stored(to, tensor).checked(checks.get(key).cloned());
                    Item::Tensor(carried.with_dtype(fit.written(t.dtype())))
                }),
                Entry::Object(..) => object(checkpoint, key, fit)
                    .await
                    .map(|payload| Item::Object(to.into(), payload)),
            };
            items.push(item.map_err(ConvertError::Read)?);
        }
        let made = canonical.made.iter().filter(|t| fit.has(t.key())).cloned();
        items.extend(made.map(|t| {
            let dtype = fit.written(t.dtype());
            Item::Tensor(t.with_dtype(dtype))
        }));
        let mut paths = None;
        let common = match (common, fit.common) {
            (None, _) | (_, CommonAs::Nothing) => None,
            (Some(old), CommonAs::Stored) => Some(match &canonical.common {
                Some(new) => old.replaced(new.clone()),
                None => old,
            }),
            (Some(old), as_what) => {
                let common = match &canonical.common {
                    Some(new) => ValueTree::from(new.clone()),
                    None => checkpoint.common().await.map_err(ConvertError::Read)?,
                };
                if as_what == CommonAs::Items {
                    paths = Some(add_common(&mut items, common)?);
                    None
                } else {
                    Some(old.in_file(common.into()))
                }
            }
        };
        let (sidecar, _) = checkpoint.sidecar().await;
        let mut empty_dicts = sidecar.map_or_else(Vec::new, |s| s.empty_dicts);
        empty_dicts.retain(|p| keys.has(&p.to_string()));
        if fit.dialect != Dialect::Dcp || canonical.is_mapped {
            empty_dicts.clear();
        }
        if fit.dialect == Dialect::Dcp && canonical.is_mapped && paths.is_none() {
            paths = Some(PlannerData::Paths(flat_paths(&items)));
        }
        Ok(Self {
            dialect: fit.dialect,
            items,
            common,
            empty_dicts,
            paths,
        })
    }

    /// Sets up the save of a rank's state.
    pub(crate) fn save<'s>(&self, state: &'s StateDict, url: &'s str) -> Save<'s> {
        let save = reshard::save(state, url).dialect(self.dialect);
        // This state has each item under its key, so it can't express where empty dicts were.
        let save = save.empty_dicts(self.empty_dicts.iter().cloned());
        match &self.common {
            Some(common) => save.stored_common(common.clone()),
            None => save,
        }
    }

    /// The paths of all items, if they are others than in the source.
    pub(crate) fn paths(&self) -> Option<&PlannerData> {
        self.paths.as_ref()
    }

    /// What the casts of tensors have lost.
    pub(crate) fn casts(&self) -> Vec<CastReport> {
        let carried = self.items.iter().filter_map(|item| match item {
            Item::Tensor(t) => t.lost(),
            _ => None,
        });
        carried.collect()
    }

    /// Into how many pieces tensors are cut, those that are not cut aside.
    pub(crate) fn cut_pieces(&self, ranks: u32) -> u64 {
        let cut = self.items.iter().filter_map(Item::cut);
        cut.map(|t| u64::from(pieces_of(t.shape(), ranks)))
            .filter(|n| *n > 1)
            .fold(0, u64::saturating_add)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn tensors(&self) -> u64 {
        self.items
            .iter()
            .filter(|i| !matches!(i, Item::Object(..)))
            .count() as u64
    }

    pub(crate) fn objects(&self) -> u64 {
        self.items.len() as u64 - self.tensors()
    }

    /// About how many bytes will be written.
    pub(crate) fn bytes(&self) -> u64 {
        self.items
            .iter()
            .map(Item::bytes)
            .fold(0, u64::saturating_add)
    }

    /// Gives each item that can't be cut to the least loaded rank, or the lowest of several. In a real job every rank would
    /// have it, but here memory would then grow with ranks times items.
    fn dealt(&self, ranks: u32) -> Vec<u32> {
        let mut loads = vec![0u64; ranks as usize];
        for t in self.items.iter().filter_map(Item::cut) {
            let row = t.nbytes() / t.shape().first().copied().unwrap_or(1).max(1);
            for (load, rank) in loads.iter_mut().zip(0..) {
                let rows = part(t.shape(), rank, ranks.into()).map_or(0, |r| r.lengths[0]);
                *load = load.saturating_add(row.saturating_mul(rows));
                if rows == 0 {
                    break;
                }
            }
        }
        let mut least: BinaryHeap<_> = loads.into_iter().zip(0..ranks).map(Reverse).collect();
        let deal = |item: &Item| match (item.cut(), least.pop()) {
            (None, Some(Reverse((load, rank)))) => {
                least.push(Reverse((load.saturating_add(item.bytes()), rank)));
                rank
            }
            (_, top) => {
                least.extend(top);
                0
            }
        };
        self.items.iter().map(deal).collect()
    }

    /// The state of each rank. An item that can't be cut is on one rank only, as [`dealt`](Self::dealt) says.
    pub(crate) fn states(&self, ranks: u32) -> Result<Vec<StateDict>, reshard::Error> {
        let mut states: Vec<StateDict> = (0..ranks).map(|_| StateDict::new()).collect();
        for (item, to) in self.items.iter().zip(self.dealt(ranks)) {
            match item {
                // Under its stored name: a cell of an array of objects stays as it is.
                Item::Object(key, payload) => {
                    if let Some(state) = states.get_mut(to as usize) {
                        nest(state, key, ShardedObject::item(key, payload.clone()).into());
                    }
                }
                Item::InMemory(t) => {
                    if let Some(state) = states.get_mut(to as usize) {
                        nest(state, &t.key, ShardedTensor::clone(t).into());
                    }
                }
                Item::Tensor(t) => {
                    let first = if item.cut().is_some() { 0 } else { to };
                    let owners = (first..ranks).take(pieces_of(t.shape(), ranks) as usize);
                    for (state, rank) in states.iter_mut().skip(first as usize).zip(owners) {
                        if let Some(region) = part(t.shape(), rank.into(), ranks.into()) {
                            let leaf = ShardedTensor::region_of(
                                t.key(),
                                t.dtype(),
                                t.shape(),
                                region.clone(),
                            );
                            nest(
                                state,
                                t.key(),
                                leaf.with_data(Data::Lazy(t.source(region)?)).into(),
                            );
                        }
                    }
                }
            }
        }
        Ok(states)
    }
}

/// An object as it is stored, if the target stores it alike. A cell of an array of objects may be a list in one of the two formats, with one
/// value for each leaf that a rank had of it.
async fn object(checkpoint: &Checkpoint, key: &str, fit: &Fit) -> Result<Payload, reshard::Error> {
    let is_list = fit.object_lists();
    if is_cell(checkpoint, key) && checkpoint.object_lists() != is_list {
        let value = value(checkpoint, key).await?;
        let as_list = |value| Value::List(vec![value]);
        return Ok(Payload::Value(if is_list { as_list(value) } else { value }));
    }
    Ok(match checkpoint.object_payload(key).await? {
        Payload::Encoded { codec, .. } if !fit.takes_encoded(codec) => {
            Payload::Value(checkpoint.object(key).await?)
        }
        payload => payload,
    })
}

/// Paths of one step: each item under its key.
fn flat_paths(items: &[Item]) -> PathOfKey {
    let flat = |item: &Item| (item.key().into(), Path(vec![item.key().into()]));
    items.iter().map(flat).collect()
}

/// Whether an object is a cell of an array of objects.
fn is_cell(checkpoint: &Checkpoint, key: &str) -> bool {
    checkpoint.dialect() == Dialect::Megatron && ShardedObject::empty_from_unique_key(key).is_ok()
}

/// The value of an object, without the list that a format may have put around that of a cell.
pub(crate) async fn value(checkpoint: &Checkpoint, key: &str) -> Result<Value, reshard::Error> {
    Ok(match checkpoint.object(key).await? {
        Value::List(mut all)
            if all.len() == 1 && checkpoint.object_lists() && is_cell(checkpoint, key) =>
        {
            all.remove(0)
        }
        value => value,
    })
}

/// Makes an item of each leaf of common state, named by its path. Returns the paths of all items.
fn add_common(items: &mut Vec<Item>, common: ValueTree) -> Result<PlannerData> {
    let fail = |what: String| ConvertError::Common { what };
    let state: StateDict = common.map(&mut Leaf::Value);
    let parts = split(state, Dialect::Dcp).map_err(|e| fail(e.to_string()))?;
    let mut paths = flat_paths(items);
    for leaf in parts.flat.into_values() {
        let item = match leaf {
            Sharded::Tensor(t) => Item::InMemory(t.into()),
            Sharded::Object(o) => Item::Object(o.unique_key().to_string(), o.data),
        };
        let of_leaf = item.key().to_owned();
        let path = parts.paths.get(&*of_leaf).cloned();
        let path = path.unwrap_or_else(|| Path(vec![of_leaf.as_str().into()]));
        if paths.insert(of_leaf.as_str().into(), path).is_some() {
            let what = format!("{of_leaf} is the key of another item, too");
            return Err(fail(what));
        }
        items.push(item);
    }
    Ok(PlannerData::Paths(paths))
}

/// Into how many pieces the chosen tensors are cut, those that are not cut aside.
pub(crate) fn cut_pieces(checkpoint: &Checkpoint, keys: &Keys<'_>, ranks: u32) -> u64 {
    let chosen = checkpoint
        .metadata()
        .entries()
        .filter(|e| keys.has(e.key()));
    let pieces = chosen.map(|entry| match entry {
        Entry::Tensor(t) => u64::from(pieces_of(&t.global_shape(), ranks)),
        Entry::Object(..) => 1,
    });
    pieces.filter(|n| *n > 1).fold(0, u64::saturating_add)
}

/// Into how many pieces a tensor is cut: one per rank, but none without a row.
fn pieces_of(shape: &[u64], ranks: u32) -> u32 {
    let rows = shape.first().copied().unwrap_or(1).max(1);
    u32::try_from(rows).unwrap_or(u32::MAX).min(ranks)
}

/// Trees are walked recursively, so a key with too many dots stays one name instead of a path.
const DEEPEST: usize = 64;

/// Inserts a leaf at the path that the dots of its key name, because policies ask for the owners of leaves. If this path
/// is taken, inserts it under the key itself.
fn nest(state: &mut StateDict, key: &str, leaf: Tree<Leaf>) {
    if key.matches('.').count() >= DEEPEST {
        state.insert_tree(key, leaf);
        return;
    }
    let path: Vec<Step> = key.split('.').map(Step::from).collect();
    if state.at(&path).is_none() {
        state.insert_at(&path, leaf.clone());
    }
    match state.at(&path) {
        Some(Tree::Leaf(_)) => {}
        _ => drop(state.insert_tree(key, leaf)),
    }
}

/// The rows of a tensor that one of `ranks` has. All rows if the tensor can't be cut; none if there are more ranks than
/// rows. Parts differ by at most one row, and the longer ones come first.
fn part(shape: &[u64], rank: u64, ranks: u64) -> Option<Region> {
    let mut region = Region::whole(shape);
    let Some(&rows) = shape.first().filter(|n| **n > 1) else {
        return Some(region);
    };
    let (each, more) = (rows / ranks, rows % ranks);
    region.offsets[0] = each * rank + more.min(rank);
    region.lengths[0] = each + u64::from(rank < more);
    (region.lengths[0] > 0).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_rows_and_differ_by_at_most_one() {
        for rows in 2..40 {
            for ranks in 1..9 {
                let parts: Vec<Region> = (0..ranks)
                    .filter_map(|r| part(&[rows, 3], r, ranks))
                    .collect();
                let mut at = 0;
                for p in &parts {
                    assert_eq!((p.offsets[0], p.lengths[1]), (at, 3));
                    assert!(p.lengths[0] == rows / ranks || p.lengths[0] == rows / ranks + 1);
                    at = p.end(0);
                }
                assert_eq!((at, parts.len() as u64), (rows, rows.min(ranks)));
                assert_eq!(parts.len() as u32, pieces_of(&[rows, 3], ranks as u32));
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_is_on_every_rank() {
        for shape in [&[][..], &[1, 8], &[0, 4]] {
            assert_eq!(part(shape, 2, 3), Some(Region::whole(shape)));
            assert_eq!(pieces_of(shape, 3), 1);
        }
    }
}
