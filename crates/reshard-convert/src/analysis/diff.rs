//! How two checkpoints differ.

use super::{
    blocks::{Unit, fold_blocks, read},
    numbers::{Pairs, number},
    view::{Side, View},
};
use crate::{ConvertError, ItemKind, Result, ledger::has_other_order, nested};
use reshard::{
    Checkpoint, DType, MappedCheckpoint, Region, TensorHandle, Value, ValueTree,
    model::{self, Dims},
    plan::{AnnotationKind, PlannerData},
    storage::{PlaceKind, Progress},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
};

/// When two numbers count as equal: if `|a - b| <= absolute + relative * |b|`, as in `numpy.allclose`. NaN is equal to NaN. The default is
/// that only equal numbers are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerance {
    /// In units of the numbers.
    pub absolute: f64,
    /// As a part of the number in the second checkpoint.
    pub relative: f64,
    /// Whether tensors of different element types can be equal.
    pub any_dtype: bool,
}

/// How two checkpoints differ in what is not a tensor that both have.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CheckpointDiff {
    /// Keys of tensors and objects that only the first has.
    pub only_first: Vec<String>,
    /// Keys of tensors and objects that only the second has.
    pub only_second: Vec<String>,
    /// Keys that are a tensor in one and an object in the other.
    pub kinds: Vec<String>,
    /// Keys of objects with different values.
    pub objects: Vec<String>,
    /// Paths of common state that only one has, or that have different values.
    pub common: Vec<String>,
    /// Annotations that only one has, or that have different values: attributes, texts, types of dicts and of their keys.
    pub annotations: Vec<String>,
    /// Ties that only one has, keys whose items are at other paths, such as in a list and in a dict, and properties of tensors: their order in
    /// memory, and whether they require gradients. They don't count as different.
    pub structure: Vec<String>,
    /// For each of the two: what it has, and what the form of the other one can't represent. It doesn't count as different.
    pub unrepresented: [Vec<String>; 2],
    /// The number of annotations that were compared.
    pub compared_annotations: u64,
    /// How many tensors both have.
    pub tensors: u64,
    /// How many of them differ.
    pub differ: u64,
    /// How many objects both have.
    pub compared_objects: u64,
    /// How many values of common state, of one or of both, were compared.
    pub compared_common: u64,
}

impl CheckpointDiff {
    /// Whether the two are equal, as far as both can represent what is in the other one.
    pub fn is_equal(&self) -> bool {
        self.differ == 0
            && [
                &self.only_first,
                &self.only_second,
                &self.kinds,
                &self.objects,
                &self.common,
                &self.annotations,
            ]
            .iter()
            .all(|keys| keys.is_empty())
    }

    /// Whether the two are equal, have the same ties and paths, and neither has anything that the other one can't represent.
    pub fn is_lossless(&self) -> bool {
        let beyond = self.unrepresented.iter().all(Vec::is_empty);
        self.is_equal() && self.structure.is_empty() && beyond
    }
}

/// A tensor that both checkpoints have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TensorDiff {
    /// Its key.
    pub key: String,
    /// Its element types.
    pub dtypes: [DType; 2],
    /// Its shapes.
    pub shapes: [Dims; 2],
    /// How its elements differ. `None` if the shapes differ, or if the elements can't be compared as numbers and differ.
    pub diff: Option<Diff>,
    /// Whether it counts as equal.
    pub equal: bool,
}

/// How the numbers of two tensors differ. A complex element counts as two numbers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Diff {
    /// How many numbers there are.
    pub numbers: u64,
    /// How many differ by more than the tolerance.
    pub differ: u64,
    /// In how many of those one of the two is infinite or no number. The sums below are of the others.
    pub not_finite: u64,
    /// The largest `|a - b|` of finite numbers.
    pub max_abs: f64,
    /// `‖a - b‖ / ‖a‖`. It is infinite if only `a` is zero.
    pub relative_norm: f64,
    /// The cosine of the angle between both, as vectors; 1 if both are zero, 0 if one is.
    pub cosine: f64,
    /// The index of the first element that differs by more than the tolerance.
    pub first: Option<Dims>,
}

/// Compares the chosen items of two checkpoints of any formats, on several threads, in memory that does not depend on the size of tensors.
/// `each` gets each tensor that both have, in the order of keys. `progress` is told how many bytes were read of both. Checksums are not
/// checked.
///
/// ```
/// use reshard::{ShardedTensor, StateDict, Tensor, blocking};
/// use reshard_convert::{Tolerance, diff};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = |name: &str| dir.path().join(name).display().to_string();
/// for (name, last) in [("a", 4f32), ("b", 4.5)] {
///     let mut state = StateDict::new();
///     let weight = Tensor::from_vec(&[2, 2], vec![1f32, 2.0, 3.0, last])?;
///     state.insert("w", ShardedTensor::full("w", weight));
///     blocking::save(&state, &url(name))?;
/// }
/// let [a, b] = [url("a"), url("b")].map(|url| blocking::Checkpoint::open(&url).unwrap());
/// let mut seen = Vec::new();
/// let exact = diff(&a, &b, |_| true, Tolerance::default(), Default::default(), |t| seen.push(t));
/// assert!(!blocking::run(exact)?.is_equal());
/// let w = seen[0].diff.as_ref().unwrap();
/// assert_eq!((w.differ, w.max_abs, w.first.as_deref()), (1, 0.5, Some(&[1, 1][..])));
///
/// let mut about = Tolerance::default();
/// about.absolute = 0.5;
/// let about = diff(&a, &b, |_| true, about, Default::default(), |_| {});
/// assert!(blocking::run(about)?.is_equal());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ConvertError::Read`]: the first item that can't be read.
pub async fn diff(
    first: &Checkpoint,
    second: &Checkpoint,
    chosen: impl Fn(&str) -> bool,
    tolerance: Tolerance,
    progress: Progress,
    each: impl FnMut(TensorDiff),
) -> Result<CheckpointDiff> {
    let first = View::Stored(first);
    compare(first, second, chosen, tolerance, progress, each).await
}

/// As [`diff`], with the first checkpoint as a map shows it. Common state is not mapped.
///
/// # Errors
/// As [`diff`].
pub async fn diff_mapped(
    first: &MappedCheckpoint,
    second: &Checkpoint,
    chosen: impl Fn(&str) -> bool,
    tolerance: Tolerance,
    progress: Progress,
    each: impl FnMut(TensorDiff),
) -> Result<CheckpointDiff> {
    let first = View::Mapped(first);
    compare(first, second, chosen, tolerance, progress, each).await
}

async fn compare(
    first: View<'_>,
    second: &Checkpoint,
    chosen: impl Fn(&str) -> bool,
    tolerance: Tolerance,
    progress: Progress,
    mut each: impl FnMut(TensorDiff),
) -> Result<CheckpointDiff> {
    let beside = beside_tensors(first, second, &chosen).await;
    let mut out = beside.map_err(ConvertError::Read)?;
    let mut pairs = Vec::new();
    for a in first.tensors().into_iter().filter(|t| chosen(t.key())) {
        if second.metadata().tensor(a.key()).is_some() {
            let b = second.tensor(a.key()).map_err(ConvertError::Read)?;
            pairs.push(Pair { a, b });
        }
    }
    out.tensors = pairs.len() as u64;
    // Of tensors with different shapes no element is read.
    let regions: Vec<(u64, Region)> = pairs
        .iter()
        .map(|p| {
            let bytes = p.a.dtype().size().max(p.b.dtype().size());
            (bytes, p.region())
        })
        .collect();
    let pairs = Arc::new(pairs);
    let look = {
        let pairs = Arc::clone(&pairs);
        move |unit: &Unit| match pairs.get(unit.tensor) {
            Some(pair) => pair.look(&unit.region, tolerance, &progress),
            None => Ok(Block::default()),
        }
    };
    let fold = |sum: &mut Sum, unit: &Unit, block: reshard::Result<Block>| {
        sum.add(unit, &block?);
        Ok(ControlFlow::Continue(()))
    };
    let end = |at: usize, sum: Sum| {
        if let Some(pair) = pairs.get(at) {
            let told = sum.done(pair, tolerance);
            out.differ += u64::from(!told.equal);
            each(told);
        }
        Ok(())
    };
    fold_blocks(&regions, look, fold, end).await?;
    Ok(out)
}

/// Compares keys, objects and common state.
async fn beside_tensors(
    first: View<'_>,
    second: &Checkpoint,
    chosen: &impl Fn(&str) -> bool,
) -> reshard::Result<CheckpointDiff> {
    let keys = |c: View<'_>| -> BTreeSet<String> {
        let mut keys = c.keys();
        keys.retain(|key| chosen(key));
        keys
    };
    let second = View::Stored(second);
    let (mut of_first, mut of_second) = (keys(first), keys(second));
    let mut out = CheckpointDiff::default();
    spread((first, &mut of_first), (second, &mut of_second), &mut out).await?;
    spread((second, &mut of_second), (first, &mut of_first), &mut out).await?;
    let states = [
        first.stored().common().await?,
        second.stored().common().await?,
    ];
    let none = states.each_ref().map(|state| *state == ValueTree::new());
    let items = match none {
        [false, true] => {
            let of_second = (second, &mut of_second);
            common_items((&states[0], &of_first), of_second, &mut out).await?
        }
        [true, false] => {
            let of_first = (first, &mut of_first);
            common_items((&states[1], &of_second), of_first, &mut out).await?
        }
        _ => BTreeMap::new(),
    };
    let only = |of: View<'_>, other: View<'_>, all: BTreeSet<String>| -> [Vec<String>; 2] {
        let (can, cannot) = all.into_iter().partition(|key| other.represents(of, key));
        [can, cannot]
    };
    let of_first_only = of_first.difference(&of_second).cloned().collect();
    let of_second_only = of_second.difference(&of_first).cloned().collect();
    let [only_first, beyond_second] = only(first, second, of_first_only);
    let [only_second, beyond_first] = only(second, first, of_second_only);
    (out.only_first, out.only_second) = (only_first, only_second);
    out.unrepresented = [beyond_second, beyond_first];
    for key in of_first.intersection(&of_second) {
        match (first.is_object(key), second.is_object(key)) {
            (true, true) => {
                out.compared_objects += 1;
                if first.object(key).await? != second.object(key).await? {
                    out.objects.push(key.clone());
                }
            }
            (false, false) => {}
            _ => out.kinds.push(key.clone()),
        }
    }
    out.common = common(&states[0], &states[1]);
    // A list may be one item, and what lies at a path may be several.
    let is_item = |path: &str| {
        let above = path.match_indices('.').map(|(at, _)| &path[..at]);
        let mut at = above.chain([path]).filter_map(|path| items.get(path));
        let below = format!("{path}.");
        let below = items
            .range(below.clone()..)
            .take_while(|(item, _)| item.starts_with(&below));
        let mut below = below.map(|(_, there)| there).peekable();
        at.any(|there| *there) || (below.peek().is_some() && below.all(|there| *there))
    };
    out.common.retain(|path| chosen(path) && !is_item(path));
    out.compared_common = values(&states, chosen);
    for (n, other) in [(0, second), (1, first)] {
        if !other.holds_objects() && none[1 - n] && !none[n] {
            let paths = std::mem::take(&mut out.common).into_iter();
            out.unrepresented[n].extend(paths.map(|path| format!("common state {path}")));
            out.compared_common = 0;
        }
    }
    // Annotations of a mapped checkpoint are about keys that it does not have any more, and it has no ties and paths.
    if let (View::Stored(first), View::Stored(second)) = (first, second) {
        annotations(first, second, chosen, &mut out);
        structure(first, second, chosen, &mut out);
    }
    Ok(out)
}

/// Compares objects that are a dict or a list in one, and the items of it in the other, as in a file of `torch.save`. An empty dict may be an
/// object in one, and only in the record of the other. Takes the keys of both from those that are left to compare.
async fn spread(
    (one, keys): (View<'_>, &mut BTreeSet<String>),
    (other, other_keys): (View<'_>, &mut BTreeSet<String>),
    out: &mut CheckpointDiff,
) -> reshard::Result<()> {
    let objects = keys.difference(other_keys).filter(|key| one.is_object(key));
    let objects: Vec<String> = objects.cloned().collect();
    if objects.is_empty() {
        return Ok(());
    }
    let record = other.stored().sidecar().await.0;
    let empty = record.map_or_else(Vec::new, |record| record.empty_dicts);
    let empty: BTreeSet<String> = empty.iter().map(ToString::to_string).collect();
    for key in objects {
        let below = format!("{key}.");
        let items = other_keys.range(below.clone()..);
        let items = items.take_while(|item| item.starts_with(&below));
        let items: BTreeSet<String> = items.cloned().collect();
        let is_empty = items.is_empty() && empty.contains(&key);
        if items.is_empty() && !is_empty {
            continue;
        }
        let value = one.object(&key).await?;
        if is_empty {
            if value == Value::Dict(Vec::new()) {
                keys.remove(&key);
                out.compared_objects += 1;
            }
            continue;
        }
        let values = nested::items(&value).into_iter();
        let values = values.map(|(path, value)| (format!("{below}{path}"), value));
        let values: BTreeMap<String, &Value> = values.collect();
        if !items.iter().eq(values.keys()) {
            continue;
        }
        keys.remove(&key);
        out.compared_objects += 1;
        let mut same = true;
        for (item, value) in &values {
            other_keys.remove(item);
            same &= other.has_value(item, value).await?;
        }
        match same {
            true => out.structure.push(key),
            false => out.objects.push(key),
        }
    }
    Ok(())
}

/// Compares values of common state with items of a checkpoint that has none. Returns the paths of all values, and whether there is such an
/// item. Takes the keys of these items from those that are left to compare.
async fn common_items(
    (state, keys): (&ValueTree, &BTreeSet<String>),
    (other, other_keys): (View<'_>, &mut BTreeSet<String>),
    out: &mut CheckpointDiff,
) -> reshard::Result<BTreeMap<String, bool>> {
    let value = Value::from(state.clone());
    let mut all = BTreeMap::new();
    for (path, value) in nested::items_beside(&value, other_keys) {
        let path = path.to_string();
        // Common state has this in the place of an item that is stored beside it.
        if *value == Value::None && keys.contains(&path) {
            all.insert(path, true);
            continue;
        }
        let there = other_keys.remove(&path);
        if there && !other.has_value(&path, value).await? {
            out.objects.push(path.clone());
        }
        all.insert(path, there);
    }
    Ok(all)
}

/// Compares ties, properties of tensors, and the paths of items.
fn structure(
    first: &Checkpoint,
    second: &Checkpoint,
    chosen: &impl Fn(&str) -> bool,
    out: &mut CheckpointDiff,
) {
    let [ties, other_ties] = [first, second].map(|c| -> BTreeSet<Vec<String>> {
        let ties = c.ties().into_iter().map(|tie| tie.keys);
        ties.filter(|keys| keys.iter().any(|key| chosen(key)))
            .collect()
    });
    let differing = ties.symmetric_difference(&other_ties);
    let differing = differing.map(|keys| format!("tie {}", keys.join(" = ")));
    out.structure.extend(differing);
    for t in first.metadata().tensors().filter(|t| chosen(t.key())) {
        let Some(other) = second.metadata().tensor(t.key()) else {
            continue;
        };
        if has_other_order(&t) != has_other_order(&other) {
            out.structure
                .push(format!("order of elements of {}", t.key()));
        }
        if t.properties().requires_grad != other.properties().requires_grad {
            out.structure.push(format!("requires_grad of {}", t.key()));
        }
    }
    let paths = [first, second].map(|c| c.metadata().planner_data());
    let [
        Some(PlannerData::Paths(paths)),
        Some(PlannerData::Paths(other_paths)),
    ] = paths
    else {
        return;
    };
    let elsewhere = paths.iter().filter(|(key, path)| {
        chosen(key) && other_paths.get(*key).is_some_and(|other| other != *path)
    });
    let keys = elsewhere.map(|(key, _)| key.to_string());
    out.structure.extend(keys);
}

/// Compares annotations.
fn annotations(
    first: &Checkpoint,
    second: &Checkpoint,
    chosen: &impl Fn(&str) -> bool,
    out: &mut CheckpointDiff,
) {
    let stated = [first, second].map(|c| c.metadata().annotations());
    let mut compared = BTreeSet::new();
    for (n, of, other) in [(0, stated[0], second), (1, stated[1], first)] {
        let state = of
            .iter()
            .filter(|(id, _)| ItemKind::of(id.kind) != ItemKind::Save);
        for (id, value) in state.filter(|(id, _)| chosen(&id.path.to_string())) {
            let can = other.capabilities();
            // A format keeps such a tensor, and no other object.
            let has_place = id.kind != AnnotationKind::SameObject
                && id.file.is_none()
                && can.annotates(id.kind, PlaceKind::Folder, false);
            let name = || format!("{} {id}", ItemKind::of(id.kind).name().replace('_', " "));
            let same = other.metadata().annotations().get(id);
            match same {
                None if !has_place => out.unrepresented[n].push(name()),
                Some(same) if same == value => drop(compared.insert(id)),
                _ => {
                    if compared.insert(id) {
                        out.annotations.push(name());
                    }
                }
            }
        }
    }
    out.compared_annotations = compared.len() as u64;
}

/// The paths of common state at which two checkpoints differ.
fn common(first: &ValueTree, second: &ValueTree) -> Vec<String> {
    let found = model::diff(first, second);
    let mismatch = found.mismatch.iter().map(|(path, ..)| path);
    let all = found.only_left.iter().chain(&found.only_right);
    let paths: BTreeSet<String> = all.chain(mismatch).map(|p| p.to_string()).collect();
    paths.into_iter().collect()
}

/// How many chosen paths these have, together.
fn values(states: &[ValueTree], chosen: &impl Fn(&str) -> bool) -> u64 {
    let mut paths = BTreeSet::new();
    for state in states {
        state.visit(&mut |path, _| {
            paths.insert(model::Path::from(path).to_string());
        });
    }
    paths.iter().filter(|path| chosen(path)).count() as u64
}

/// A tensor that both have.
#[derive(Debug)]
struct Pair {
    a: Side,
    b: TensorHandle,
}

impl Pair {
    /// What of it is compared.
    fn region(&self) -> Region {
        if self.a.shape() == self.b.shape() {
            Region::whole(self.a.shape())
        } else {
            Region::whole(&[0])
        }
    }

    /// The types as which its elements are compared, if they are numbers of the same kind.
    fn numbers(&self) -> Option<[DType; 2]> {
        let (a, b) = (self.a.dtype(), self.b.dtype());
        (a.is_complex() == b.is_complex()).then_some([number(a)?, number(b)?])
    }

    fn look(
        &self,
        region: &Region,
        tolerance: Tolerance,
        progress: &Progress,
    ) -> reshard::Result<Block> {
        let a = self.a.read(region)?.to_bytes();
        let b = read(&self.b, region)?.to_bytes();
        progress.add((a.len() + b.len()) as u64);
        Ok(match self.numbers() {
            Some([of_a, of_b]) => {
                let (pairs, first) = Pairs::of((of_a, &a), (of_b, &b), tolerance);
                let parts = (self.a.dtype().size() / of_a.size()).max(1);
                Block {
                    numbers: a.len() as u64 / of_a.size(),
                    pairs,
                    first: first.map(|i| i as u64 / parts),
                    differs: false,
                }
            }
            None => Block {
                differs: self.a.dtype() != self.b.dtype() || a != b,
                ..Block::default()
            },
        })
    }
}

/// What was found in a block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    numbers: u64,
    pairs: Pairs,
    /// The first element that differs, counted in the block.
    first: Option<u64>,
    /// Whether elements that are no numbers differ.
    differs: bool,
}

/// What the blocks of one tensor have so far.
#[derive(Debug, Default)]
struct Sum {
    all: Block,
    first: Option<Dims>,
}

impl Sum {
    fn add(&mut self, unit: &Unit, block: &Block) {
        self.all.numbers += block.numbers;
        self.all.pairs.merge(&block.pairs);
        self.all.differs |= block.differs;
        if let (None, Some(i)) = (&self.first, block.first) {
            self.first = Some(place(&unit.region, i));
        }
    }

    fn done(self, pair: &Pair, tolerance: Tolerance) -> TensorDiff {
        let (a, b) = (&pair.a, &pair.b);
        let comparable = a.shape() == b.shape() && pair.numbers().is_some();
        let pairs = self.all.pairs;
        let diff = comparable.then(|| Diff {
            numbers: self.all.numbers,
            differ: pairs.differ,
            not_finite: pairs.not_finite,
            max_abs: pairs.most,
            relative_norm: ratio(pairs.of_differences.sqrt(), pairs.of_first.sqrt()),
            cosine: cosine(&pairs),
            first: self.first,
        });
        let equal = a.shape() == b.shape()
            && (a.dtype() == b.dtype() || tolerance.any_dtype)
            && !self.all.differs
            && pairs.differ == 0;
        TensorDiff {
            key: a.key().into(),
            dtypes: [a.dtype(), b.dtype()],
            shapes: [a.shape().clone(), b.shape().clone()],
            diff,
            equal,
        }
    }
}

/// The index in the tensor of the `i`th element of a box.
fn place(region: &Region, mut i: u64) -> Dims {
    let mut index = region.offsets.clone();
    for axis in (0..region.ndim()).rev() {
        let len = region.lengths[axis].max(1);
        index[axis] += i % len;
        i /= len;
    }
    index
}

fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 { 0.0 } else { a / b }
}

fn cosine(p: &Pairs) -> f64 {
    match (p.of_first == 0.0, p.of_second == 0.0) {
        (true, true) => 1.0,
        (false, false) => {
            (p.of_products / (p.of_first.sqrt() * p.of_second.sqrt())).clamp(-1.0, 1.0)
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_by_its_index_in_the_tensor() {
        let region = Region::new([2, 10], [3, 4]);
        let places: Vec<Dims> = [0, 3, 4, 11]
            .into_iter()
            .map(|i| place(&region, i))
            .collect();
        assert_eq!(places, [[2, 10], [2, 13], [3, 10], [4, 13]].map(Dims::from));
        assert_eq!(place(&Region::whole(&[]), 0), Dims::default());
    }

    #[test]
    fn angles_of_nothing_are_told_too() {
        let of = |of_first, of_second, of_products| {
            cosine(&Pairs {
                of_first,
                of_second,
                of_products,
                ..Pairs::default()
            })
        };
        assert_eq!(of(0.0, 0.0, 0.0), 1.0);
        assert_eq!(of(1.0, 0.0, 0.0), 0.0);
        assert_eq!(of(4.0, 9.0, -6.0), -1.0);
        assert_eq!(ratio(0.0, 0.0), 0.0);
        assert!(ratio(1.0, 0.0).is_infinite());
    }
}
