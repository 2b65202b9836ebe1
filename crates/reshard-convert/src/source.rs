//! A checkpoint as the state of N ranks, without loading its tensors.

use crate::{ConvertError, Result};
use reshard::{
    Checkpoint, Data, Dialect, Region, Save, ShardedObject, ShardedTensor, StateDict, StoredCommon,
    TensorHandle, Value,
    model::{Leaf, Path, Payload, Step, Tree},
    plan::Entry,
};
use std::{cmp::Reverse, collections::BinaryHeap, fmt};

type Chosen<'a> = dyn Fn(&str) -> bool + Send + Sync + 'a;

/// Which keys are carried over. The default is all.
#[derive(Default)]
pub(crate) struct Keys<'a>(pub(crate) Option<Box<Chosen<'a>>>);

impl Keys<'_> {
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.as_ref().is_none_or(|chosen| chosen(key))
    }
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "some keys"
        } else {
            "all keys"
        })
    }
}

#[derive(Debug)]
pub(crate) struct Source {
    dialect: Dialect,
    items: Vec<Item>,
    /// Not decoded, so content that this program can't represent is kept.
    common: Option<StoredCommon>,
    empty_dicts: Vec<Path>,
}

#[derive(Debug)]
enum Item {
    Tensor(TensorHandle),
    Object(String, Payload),
}

impl Item {
    fn bytes(&self) -> u64 {
        match self {
            Self::Tensor(t) => t.nbytes(),
            Self::Object(_, Payload::Encoded { bytes, .. }) => bytes.len() as u64,
            Self::Object(..) => 0,
        }
    }

    /// The tensor, if it can be cut.
    fn cut(&self) -> Option<&TensorHandle> {
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
            let Item::Tensor(tensor) = item else { continue };
            let lost = tensor
                .chunks()
                .into_iter()
                .find(|c| c.parts.is_empty() && !c.region.is_empty());
            if let Some(chunk) = lost {
                return Err(ConvertError::NoPlace {
                    key: tensor.key().into(),
                    region: chunk.region,
                });
            }
        }
        Ok(())
    }

    /// Reads objects in their stored form, and no tensors.
    pub(crate) async fn read(
        checkpoint: &Checkpoint,
        keys: &Keys<'_>,
    ) -> Result<Self, reshard::Error> {
        let dialect = checkpoint.dialect();
        let common = checkpoint.stored_common().await?;
        let of_common = common.as_ref().and_then(StoredCommon::object_key);
        let is_common = |key: &str| of_common == Some(key);
        let mut items = Vec::new();
        for entry in checkpoint
            .metadata()
            .entries()
            .filter(|e| keys.has(e.key()) && !is_common(e.key()))
        {
            let key = entry.key();
            items.push(match entry {
                Entry::Tensor(_) => Item::Tensor(checkpoint.tensor(key)?),
                Entry::Object(..) => Item::Object(key.into(), object(checkpoint, key).await?),
            });
        }
        let (sidecar, _) = checkpoint.sidecar().await;
        let mut empty_dicts = sidecar.map_or_else(Vec::new, |s| s.empty_dicts);
        empty_dicts.retain(|p| keys.has(&p.to_string()));
        Ok(Self {
            dialect,
            items,
            common,
            empty_dicts,
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

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn tensors(&self) -> u64 {
        self.items
            .iter()
            .filter(|i| matches!(i, Item::Tensor(_)))
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

/// An object as it is stored. A cell of an array of objects is a list in the new checkpoint; if it is none in the old one, it is decoded
/// and becomes one.
async fn object(checkpoint: &Checkpoint, key: &str) -> Result<Payload, reshard::Error> {
    let is_list = checkpoint.dialect() != Dialect::Megatron || checkpoint.object_lists();
    if is_list || ShardedObject::empty_from_unique_key(key).is_err() {
        return checkpoint.object_payload(key).await;
    }
    Ok(Payload::Value(Value::List(vec![
        checkpoint.object(key).await?,
    ])))
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
