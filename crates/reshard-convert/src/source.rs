//! A checkpoint as the state of N ranks, without loading its tensors.

use crate::{
    CastReport, ConvertError, ItemKind, Outcome, Result,
    checked::Watched,
    checks::Checks,
    fit::{CommonAs, Fit},
    keys::Keys,
    leaves::{Leaves, is_name_of_cell},
    mapped::Additions,
    optimizer::Canonical,
    tensor::Carried,
};
use reshard::{
    Checkpoint, Data, Dialect, ReadLimits, Region, Save, ShardedObject, ShardedTensor, StateDict,
    StoredCommon, Value, ValueTree,
    map::AddedCommon,
    megatron::incomplete_arrays,
    model::{Leaf, Path, PathOfKey, Payload, Sharded, Step, Tree, split},
    plan::{Entry, PlannerData},
    storage::{Name, Traffic},
    strategy::torch::TorchObjects,
};
use reshard_torch_format::TorchSave;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

#[derive(Debug)]
pub(crate) struct Source {
    /// In which dialect it is written.
    pub(crate) dialect: Dialect,
    items: Vec<Item>,
    /// Common state, if the copy has it as such. It is not decoded, so content that this program can't represent is kept.
    pub(crate) common: Option<StoredCommon>,
    /// Common state of the source, as it is stored there.
    pub(crate) stored_common: Option<StoredCommon>,
    empty_dicts: Vec<Path>,
    /// The paths of all items, if they are others than in the source.
    pub(crate) paths: Option<PlannerData>,
    /// How many objects have become leaves of common state.
    in_common: u64,
    /// What a map adds, for the ledger.
    pub(crate) added: Vec<(ItemKind, Box<str>, Outcome)>,
    /// What was read: objects and common state, as they are stored.
    pub(crate) read: Traffic,
    /// What the values of decoded objects don't say, in words, by the keys of the source.
    pub(crate) unsaid: BTreeMap<String, String>,
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
        self.carried().try_for_each(Carried::has_places)
    }

    /// The tensors that are not in memory.
    fn carried(&self) -> impl Iterator<Item = &Carried> {
        self.items.iter().filter_map(|item| match item {
            Item::Tensor(t) => Some(t),
            _ => None,
        })
    }

    /// Reads objects in their stored form, and no tensors.
    pub(crate) async fn read(
        checkpoint: &Checkpoint,
        keys: &Keys<'_>,
        canonical: &Canonical,
        (fit, checks): (&Fit, &Checks),
        additions: &Additions,
    ) -> Result<Self> {
        let common = checkpoint
            .stored_common()
            .await
            .map_err(ConvertError::Read)?;
        let of_common = common.as_ref().and_then(StoredCommon::object_key);
        let is_common = |key: &str| of_common == Some(key);
        let mut read = Counted::default();
        common.iter().for_each(|common| read.common(common));
        let (mut items, mut leaves) = (Vec::new(), Leaves::default());
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
                    let carried = Carried::stored(to, tensor, checks.get(key).cloned());
                    Item::Tensor(carried.with_dtype(fit.written(t.dtype())))
                }),
                Entry::Object(..) if fit.is_common(to) => {
                    let value = decoded(checkpoint, key, &mut read).await;
                    let value = value.map_err(ConvertError::Read)?;
                    leaves.add(checkpoint, canonical, (key, to), value);
                    continue;
                }
                Entry::Object(..) => object(checkpoint, key, fit, &mut read)
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
        let stored_common = common.clone();
        let (common, mut paths) =
            carried_common(checkpoint, common, canonical, fit, (&mut items, &mut read)).await?;
        let mut empty_dicts = empty_dicts(checkpoint, keys, canonical).await;
        let in_common = leaves.len();
        let mut added = add_cells(&mut items, &additions.objects, fit);
        let keeps = fit
            .new_common()
            .is_none()
            .then_some("the source has common state of its own");
        added.extend(add_values(&mut leaves, &additions.common, keeps));
        let common = match fit.new_common() {
            None => common,
            Some(form) => {
                empty_dicts
                    .drain(..)
                    .for_each(|path| leaves.add_empty(path));
                leaves.into_common(form, checkpoint.url())?
            }
        };
        if fit.dialect != Dialect::Dcp {
            empty_dicts.clear();
        }
        if fit.dialect == Dialect::Dcp && canonical.is_mapped && paths.is_none() {
            paths = Some(PlannerData::Paths(flat_paths(&items)));
        }
        has_all_cells(checkpoint, fit.dialect, &items)?;
        Ok(Self {
            dialect: fit.dialect,
            items,
            common,
            stored_common,
            empty_dicts,
            paths,
            in_common,
            added,
            read: read.traffic(),
            unsaid: read.unsaid,
        })
    }

    /// The objects, by their keys.
    pub(crate) fn objects_and_payloads(&self) -> impl Iterator<Item = (&str, &Payload)> {
        self.items.iter().filter_map(|item| match item {
            Item::Object(key, payload) => Some((&**key, payload)),
            _ => None,
        })
    }

    /// The keys of all items.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(Item::key)
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

    /// What the casts of tensors have lost.
    pub(crate) fn casts(&self) -> Vec<CastReport> {
        self.carried().flat_map(Carried::lost).collect()
    }

    /// The stored tensors that are checked while they are read. Several items may be made of one.
    pub(crate) fn watched(&self) -> Vec<Arc<Watched>> {
        let mut out: Vec<_> = self.carried().flat_map(Carried::watched).collect();
        out.sort_by(|a, b| a.chunks.key().cmp(b.chunks.key()));
        out.dedup_by(|a, b| Arc::ptr_eq(a, b));
        out
    }

    /// Into how many pieces tensors are cut, those that are not cut aside.
    pub(crate) fn cut_pieces(&self, ranks: u32) -> u64 {
        let cut = self.items.iter().filter_map(Item::cut);
        cut.map(|t| u64::from(pieces_of(t.shape(), ranks)))
            .filter(|n| *n > 1)
            .fold(0, u64::saturating_add)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.in_common == 0
    }

    pub(crate) fn tensors(&self) -> u64 {
        self.items
            .iter()
            .filter(|i| !matches!(i, Item::Object(..)))
            .count() as u64
    }

    pub(crate) fn objects(&self) -> u64 {
        self.items.len() as u64 - self.tensors() + self.in_common
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
            let whole = match item {
                // Under its stored name: a cell of an array of objects stays as it is.
                Item::Object(key, payload) => ShardedObject::item(key, payload.clone()).into(),
                Item::InMemory(t) => ShardedTensor::clone(t).into(),
                Item::Tensor(t) => {
                    let (key, dtype, shape) = (t.key(), t.dtype(), t.shape());
                    let first = if item.cut().is_some() { 0 } else { to };
                    let owners = (first..ranks).take(pieces_of(shape, ranks) as usize);
                    for (state, rank) in states.iter_mut().skip(first as usize).zip(owners) {
                        if let Some(region) = part(shape, rank.into(), ranks.into()) {
                            let data = Data::Lazy(t.source(region.clone())?);
                            let leaf = ShardedTensor::region_of(key, dtype, shape, region);
                            nest(state, key, leaf.with_data(data).into());
                        }
                    }
                    continue;
                }
            };
            if let Some(state) = states.get_mut(to as usize) {
                nest(state, item.key(), whole);
            }
        }
        Ok(states)
    }
}

/// Counts what is read of a checkpoint while its tensors are not.
#[derive(Default)]
struct Counted {
    items: u64,
    bytes: u64,
    files: BTreeSet<Name>,
    /// Whether a file of its own has common state.
    common: bool,
    unsaid: BTreeMap<String, String>,
}

impl Counted {
    /// Notes what the value of an object doesn't say, or why that can't be found out.
    fn decoded(&mut self, key: &str, stored: &Payload) {
        if let Payload::Encoded {
            codec: TorchSave::NAME,
            bytes,
        } = stored
        {
            let unsaid = TorchObjects::new(&ReadLimits::default()).unsaid(bytes);
            let unsaid =
                unsaid.unwrap_or_else(|e| Some(format!("parts that can't be compared: {e}")));
            self.unsaid
                .extend(unsaid.map(|what| (key.to_owned(), what)));
        }
    }

    fn common(&mut self, common: &StoredCommon) {
        self.bytes = self.bytes.saturating_add(common.stored_bytes());
        self.items += 1;
        self.common = common.object_key().is_none();
    }

    /// What a format has in memory already is an item without bytes.
    fn object(&mut self, checkpoint: &Checkpoint, key: &str, stored: &Payload) {
        self.items += 1;
        if let Payload::Encoded { bytes, .. } = stored {
            self.bytes = self.bytes.saturating_add(bytes.len() as u64);
            let parts = checkpoint.object_parts(key).into_iter();
            self.files.extend(parts.map(|part| part.file));
        }
    }

    fn traffic(&self) -> Traffic {
        let files = self.files.len() as u64 + u64::from(self.common);
        Traffic::written(self.items, self.bytes, files)
    }
}

/// Fails if Megatron Core could not load an array of objects, because it would lack cells.
fn has_all_cells(checkpoint: &Checkpoint, dialect: Dialect, items: &[Item]) -> Result<()> {
    if dialect != Dialect::Megatron {
        return Ok(());
    }
    let keys = items.iter().filter_map(|item| match item {
        Item::Object(key, _) => Some(&**key),
        _ => None,
    });
    match incomplete_arrays(keys).into_iter().next() {
        None => Ok(()),
        Some(found) => Err(ConvertError::Cells {
            src: checkpoint.url().into(),
            what: found.what,
        }),
    }
}

/// Adds cells of arrays of objects whose value is `None`, unless the source has them.
fn add_cells(
    items: &mut Vec<Item>,
    keys: &[String],
    fit: &Fit,
) -> Vec<(ItemKind, Box<str>, Outcome)> {
    let stored: BTreeSet<String> = items.iter().map(|item| item.key().to_owned()).collect();
    let new: Vec<&String> = keys.iter().filter(|key| !stored.contains(*key)).collect();
    items.extend(new.iter().map(|key| {
        let value = match fit.object_lists {
            true => Value::List(vec![Value::None]),
            false => Value::None,
        };
        Item::Object((*key).clone(), Payload::Value(value))
    }));
    let entry = |key: &String| (ItemKind::Object, key.as_str().into(), Outcome::Added);
    new.into_iter().map(entry).collect()
}

/// Adds values to common state, unless the source has values of these names, or `keeps` its common state for this reason.
fn add_values(
    leaves: &mut Leaves,
    common: &AddedCommon,
    keeps: Option<&str>,
) -> Vec<(ItemKind, Box<str>, Outcome)> {
    let mut old = BTreeSet::new();
    if keeps.is_none() {
        let values = common.values.iter().cloned();
        old.extend(
            values.filter_map(|(name, value)| (!leaves.add_new(&name, value)).then_some(name)),
        );
    }
    let entries = common.entries.iter().map(|(path, unknown)| {
        let name = path.split('.').next().unwrap_or_default();
        let why = match (keeps, unknown) {
            (Some(why), _) => Some(why),
            (None, _) if old.contains(name) => Some("the source has a value of this name"),
            (None, unknown) => unknown.as_deref(),
        };
        let outcome = why.map_or(Outcome::Added, |why| Outcome::NotAdded(why.into()));
        (ItemKind::Common, path.clone(), outcome)
    });
    entries.collect()
}

/// The common state of the source as the copy has it as such, or the paths of all items if its leaves have become items.
async fn carried_common(
    checkpoint: &Checkpoint,
    stored: Option<StoredCommon>,
    canonical: &Canonical,
    fit: &Fit,
    (items, read): (&mut Vec<Item>, &mut Counted),
) -> Result<(Option<StoredCommon>, Option<PlannerData>)> {
    let (old, as_what) = match (stored, fit.common) {
        (None, _) | (_, CommonAs::Nothing) => return Ok((None, None)),
        // What it holds is not decoded.
        (Some(old), CommonAs::Common(form)) if form == old.form() && canonical.common.is_none() => {
            return Ok((Some(old), None));
        }
        (Some(old), as_what) => (old, as_what),
    };
    read.decoded(old.object_key().unwrap_or("common state"), old.payload());
    let common = match &canonical.common {
        Some(new) => ValueTree::from(new.clone()),
        None => checkpoint.common().await.map_err(ConvertError::Read)?,
    };
    if let CommonAs::Common(form) = as_what {
        return Ok((Some(StoredCommon::new(form, common.into())), None));
    }
    Ok((None, Some(add_common(items, common)?)))
}

/// The value of an object.
async fn decoded(
    checkpoint: &Checkpoint,
    key: &str,
    read: &mut Counted,
) -> Result<Value, reshard::Error> {
    let stored = checkpoint.object_payload(key).await?;
    read.object(checkpoint, key, &stored);
    read.decoded(key, &stored);
    match stored {
        Payload::Value(value) => Ok(value),
        _ => checkpoint.object(key).await,
    }
}

/// The dicts of the source in which nothing is. A map has no nesting.
async fn empty_dicts(checkpoint: &Checkpoint, keys: &Keys<'_>, canonical: &Canonical) -> Vec<Path> {
    let (sidecar, _) = checkpoint.sidecar().await;
    let mut all = sidecar.map_or_else(Vec::new, |s| s.empty_dicts);
    all.retain(|p| !canonical.is_mapped && keys.has(&p.to_string()));
    all
}

/// An object as it is stored, if the target stores it alike. A cell of an array of objects may be a list in one of the two formats, with one
/// value for each leaf that a rank had of it.
async fn object(
    checkpoint: &Checkpoint,
    key: &str,
    fit: &Fit,
    read: &mut Counted,
) -> Result<Payload, reshard::Error> {
    let stored = checkpoint.object_payload(key).await?;
    read.object(checkpoint, key, &stored);
    let (was_list, is_list) = (has_lists(checkpoint), fit.object_lists);
    let is_cell = was_list != is_list && is_name_of_cell(key);
    let is_taken = matches!(&stored, Payload::Encoded { codec, .. } if fit.takes_encoded(codec));
    // A format that splits objects writes their values, however they come.
    if is_cell || !is_taken || fit.splits_objects() {
        read.decoded(key, &stored);
    }
    if is_cell {
        let value = value(checkpoint, key).await?;
        let as_list = |value| Value::List(vec![value]);
        return Ok(Payload::Value(if is_list { as_list(value) } else { value }));
    }
    Ok(match stored {
        Payload::Encoded { .. } if !is_taken => Payload::Value(checkpoint.object(key).await?),
        payload => payload,
    })
}

/// Paths of one step: each item under its key.
fn flat_paths(items: &[Item]) -> PathOfKey {
    let flat = |item: &Item| (item.key().into(), Path(vec![item.key().into()]));
    items.iter().map(flat).collect()
}

/// Whether a cell of an array of objects is stored as a list.
fn has_lists(checkpoint: &Checkpoint) -> bool {
    checkpoint.dialect() == Dialect::Megatron && checkpoint.object_lists()
}

/// The value of an object, without the list that a format may have put around that of a cell.
pub(crate) async fn value(checkpoint: &Checkpoint, key: &str) -> Result<Value, reshard::Error> {
    Ok(match checkpoint.object(key).await? {
        Value::List(mut all) if all.len() == 1 && has_lists(checkpoint) && is_name_of_cell(key) => {
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

/// Inserts a leaf at the path that the dots of its key name, because policies ask for the owners of leaves.
///
/// If there is a leaf on the way, the path is the key itself. If the path leads to the dict of longer keys, the leaf goes into this
/// dict under a dot, which is no part of any key.
fn nest(state: &mut StateDict, key: &str, leaf: Tree<Leaf>) {
    if key.matches('.').count() >= DEEPEST {
        state.insert_tree(key, leaf);
        return;
    }
    let mut path: Vec<Step> = key.split('.').map(Step::from).collect();
    if matches!(state.at(&path), Some(Tree::Dict(_))) {
        path.push(".".into());
    }
    state.insert_at(&path, leaf.clone());
    if !matches!(state.at(&path), Some(Tree::Leaf(_))) {
        state.insert_tree(key, leaf);
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
    fn keys_that_begin_other_keys_all_have_their_leaf_in_any_order() {
        let keys = ["a", "a.b", "a.b.c", "a.0", "a."];
        for first in 0..keys.len() {
            for step in 1..keys.len() {
                let mut state = StateDict::new();
                for n in 0..keys.len() {
                    let key = keys[(first + n * step) % keys.len()];
                    let object = ShardedObject::item(key, Payload::Value(Value::None));
                    nest(&mut state, key, object.into());
                }
                let stored = split(state, Dialect::Dcp).unwrap().flat;
                let stored = stored.values().map(|leaf| match leaf {
                    Sharded::Object(o) => o.unique_key().to_string(),
                    Sharded::Tensor(t) => t.key.to_string(),
                });
                let stored: BTreeSet<String> = stored.collect();
                assert_eq!(stored, keys.map(String::from).into(), "{first} {step}");
            }
        }
    }

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
