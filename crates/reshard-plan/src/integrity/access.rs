//! Whether the leaves of all ranks make up whole tensors and arrays of objects, each part with one main replica.

use super::{Declaration, Declared};
use crate::{At, Fault, PlanError, Problem, Problems, Result};
use reshard_model::{Dims, Region, ShardedObject, first_fault};
use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
};

/// So many problems of one key are listed.
const PER_KEY: usize = 20;

/// Checks what all ranks declare, by rank, as Megatron Core's function of the same name does. For each key it checks that
///
/// - ranks agree whether it is a tensor or an object, on the element type, the global shape, and how the tensor is cut,
/// - each chunk of a regular grid, and each element of an irregular one, has exactly one main replica,
/// - the flattened ranges of a chunk cover it without a hole or an overlap,
/// - each cell of an array of objects is there, and written by one rank. Leaves of one rank for one cell count once.
///
/// It takes O(n log n) for n leaves, however large the tensors are. Leaves without elements are not written, so they are not counted.
/// Every save in Megatron Core's dialect calls it on the coordinator, and the verdict reaches all ranks.
///
/// ```
/// use reshard_model::{DType, FlatStateDict, Path, Sharded, ShardedTensor};
/// use reshard_plan::{Declared, validate_sharding_integrity};
/// let rank = |rank: u64, replica: u32| {
///     let half = ShardedTensor::declare("w", DType::Float32, &[2, 8], &[(0, rank, 2)], 0).unwrap();
///     let state: FlatStateDict = [(Path(vec!["w".into()]), Sharded::Tensor(half.with_replica_id(replica)))].into();
///     Declared::of(&state)
/// };
/// assert!(validate_sharding_integrity(&[rank(0, 0), rank(1, 0)]).is_ok());
/// let e = validate_sharding_integrity(&[rank(0, 0), rank(1, 1)]).unwrap_err();
/// assert!(e.to_string().contains("w: nobody is the main replica of [2:4, 0:8], which rank 1 has"));
/// ```
///
/// # Errors
/// [`PlanError::Save`] with the problems of all keys, by key; of one key the first twenty.
pub fn validate_sharding_integrity<D: Borrow<Declared>>(ranks: &[D]) -> Result<()> {
    let mut by_key: BTreeMap<&str, Vec<Leaf<'_>>> = BTreeMap::new();
    for (rank, declared) in (0..).zip(ranks) {
        for of in &declared.borrow().leaves {
            by_key.entry(&of.key).or_default().push(Leaf { rank, of });
        }
    }
    let mut problems = Vec::new();
    for (key, leaves) in by_key {
        let mut found = Found {
            key,
            problems: Vec::new(),
            more: 0,
        };
        found.look(&leaves);
        problems.extend(found.done());
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(PlanError::Save(Problems(problems))),
    }
}

/// What a rank declares.
#[derive(Clone, Copy)]
struct Leaf<'d> {
    rank: u32,
    of: &'d Declaration,
}

impl Leaf<'_> {
    /// The box of the global tensor, with prepended axes.
    fn region(&self) -> Region {
        let Declaration {
            global_shape,
            global_offset,
            local_shape,
            ..
        } = self.of;
        let prepended = global_shape.len().saturating_sub(local_shape.len());
        let ones = std::iter::repeat_n(1, prepended);
        let lengths: Dims = ones.chain(local_shape.iter().copied()).collect();
        Region::new(global_offset.clone(), lengths)
    }

    fn at(&self) -> At {
        At::new(&self.region(), self.rank)
    }

    fn is_main(&self) -> bool {
        self.of.replica_id.is_main()
    }

    fn is_empty(&self) -> bool {
        let range = self.of.flattened_range.as_ref();
        self.of.local_shape.contains(&0) || range.is_some_and(|r| r.is_empty())
    }

    /// How the tensor is cut, in words.
    fn grid(&self) -> String {
        let (flat, rank) = (self.of.flattened_range.is_some(), self.rank);
        let how = match &self.of.axis_fragmentations {
            Some(f) => format!("cut into {f} chunks of {}", self.of.local_shape),
            None => "cut irregularly".into(),
        };
        let flat = if flat { " and flattened" } else { "" };
        format!("{how}{flat} on rank {rank}")
    }

    /// Whether it is the whole tensor: any way of cutting has such a box.
    fn is_whole(&self) -> bool {
        self.of.flattened_range.is_none() && self.region() == Region::whole(&self.of.global_shape)
    }
}

/// The problems of one key.
struct Found<'k> {
    key: &'k str,
    problems: Vec<Problem>,
    more: u128,
}

impl Found<'_> {
    fn add(&mut self, fault: Fault) {
        self.add_to(self.key.into(), fault);
    }

    /// Adds a problem of a cell.
    fn add_to(&mut self, key: String, fault: Fault) {
        match self.problems.len() < PER_KEY {
            true => self.problems.push(fault.of(key)),
            false => self.more += 1,
        }
    }

    fn done(mut self) -> Vec<Problem> {
        if self.more > 0 {
            let count = self.more;
            self.problems.push(Fault::More { count }.of(self.key));
        }
        self.problems
    }

    fn look(&mut self, leaves: &[Leaf<'_>]) {
        let Some(first) = leaves.first() else { return };
        let kind = |l: &Leaf<'_>| match l.of.dtype {
            Some(_) => format!("a tensor on rank {}", l.rank),
            None => format!("an object on rank {}", l.rank),
        };
        let is_tensor = first.of.dtype.is_some();
        if let Some(other) = leaves.iter().find(|l| l.of.dtype.is_some() != is_tensor) {
            let (is, other) = (kind(first), kind(other));
            return self.add(Fault::Kind { is, other });
        }
        match is_tensor {
            true => self.tensor(first, leaves),
            false => self.objects(first, leaves),
        }
    }

    fn tensor(&mut self, first: &Leaf<'_>, leaves: &[Leaf<'_>]) {
        if let Some(other) = leaves.iter().find(|l| l.of.dtype != first.of.dtype)
            && let (Some(is), Some(dtype)) = (first.of.dtype, other.of.dtype)
        {
            return self.add(Fault::DType {
                is,
                other: dtype,
                ranks: Some((first.rank, other.rank)),
            });
        }
        let shape = &first.of.global_shape;
        if let Some(other) = leaves.iter().find(|l| l.of.global_shape != *shape) {
            let told = |l: &Leaf<'_>| format!("{} on rank {}", l.of.global_shape, l.rank);
            let (is, other) = (told(first), told(other));
            return self.add(Fault::Shape { is, other });
        }
        if let Some(outside) = leaves.iter().find(|l| !l.region().fits(shape)) {
            let (at, shape) = (outside.at(), shape.clone());
            return self.add(Fault::OutOfBounds { at, shape });
        }
        if shape.contains(&0) {
            return;
        }
        let held: Vec<Leaf<'_>> = leaves.iter().filter(|l| !l.is_empty()).copied().collect();
        let Some(first) = held.first() else {
            let (region, shape) = (Region::whole(shape), shape.clone());
            return self.add(Fault::Hole { region, shape });
        };
        match grid(&held) {
            Err((a, b)) => self.add(Fault::Declared {
                is: a.grid(),
                other: b.grid(),
            }),
            Ok(None) => self.irregular(first, &held),
            Ok(Some(fragments)) => self.regular(first, fragments, &held),
        }
    }

    /// Boxes that lie as they like: those of main replicas make up the tensor.
    fn irregular(&mut self, first: &Leaf<'_>, held: &[Leaf<'_>]) {
        if first.of.flattened_range.is_some() {
            // Nobody can store such leaves; a save says so of each.
            return;
        }
        let shape = &first.of.global_shape;
        let region = Region::whole(shape);
        let main = held.iter().filter(|l| l.is_main()).map(Leaf::at);
        let main: Vec<At> = main.collect();
        if main.is_empty() {
            let ranks = ranks(held);
            return self.add(Fault::Unclaimed { region, ranks });
        }
        let range = |i: usize, a: usize| main[i].region.offsets[a]..main[i].region.end(a);
        if let Some(fault) = first_fault(&region, main.len(), range) {
            self.add(Fault::of_chunks(fault, shape.clone(), |i| main[i].clone()));
        }
    }

    /// Chunks of a regular grid: each has one main replica, or ranges of main replicas that cover it.
    fn regular(&mut self, first: &Leaf<'_>, fragments: &Dims, held: &[Leaf<'_>]) {
        let extents = first.region().lengths;
        let mut chunks: BTreeMap<Dims, Vec<Leaf<'_>>> = BTreeMap::new();
        for leaf in held {
            let at = leaf.of.global_offset.iter().zip(&extents);
            chunks
                .entry(at.map(|(o, n)| o / n.max(&1)).collect())
                .or_default()
                .push(*leaf);
        }
        for leaves in chunks.values() {
            self.chunk(leaves);
        }
        // Chunks that no rank has. Those that are not listed are counted.
        let mut left = count(fragments).saturating_sub(chunks.len() as u128);
        if left == 0 {
            return;
        }
        let absent = positions(fragments).filter(|at| !chunks.contains_key(at));
        for at in absent.take(PER_KEY.saturating_sub(self.problems.len())) {
            let offsets = at.iter().zip(&extents).map(|(c, n)| c * n).collect();
            let (lengths, shape) = (extents.clone(), first.of.global_shape.clone());
            let region = Region { offsets, lengths };
            self.add(Fault::Hole { region, shape });
            left = left.saturating_sub(1);
        }
        self.more = self.more.saturating_add(left);
    }

    fn chunk(&mut self, leaves: &[Leaf<'_>]) {
        let Some(first) = leaves.first() else { return };
        let region = first.region();
        let main: Vec<Leaf<'_>> = leaves.iter().filter(|l| l.is_main()).copied().collect();
        if main.is_empty() {
            let ranks = ranks(leaves);
            return self.add(Fault::Unclaimed { region, ranks });
        }
        if first.of.flattened_range.is_some() {
            return self.ranges(region, &main);
        }
        if main.len() > 1 {
            let ranks = main.iter().map(|l| l.rank).collect();
            self.add(Fault::Claimed { region, ranks });
        }
    }

    /// Ranges of one chunk make it up.
    fn ranges(&mut self, region: Region, main: &[Leaf<'_>]) {
        let mut ranges: Vec<_> = (main.iter())
            .filter_map(|l| Some((l.of.flattened_range.clone()?, l.rank)))
            .collect();
        ranges.sort_by_key(|(range, rank)| (range.start, range.end, *rank));
        let elements = region.volume().unwrap_or(u64::MAX);
        let mut covered: (u64, u32) = (0, 0);
        for (range, rank) in &ranges {
            let (start, region) = (range.start, region.clone());
            if start > covered.0 {
                let range = covered.0..start;
                self.add(Fault::RangeHole { region, range });
            } else if start < covered.0 {
                self.add(Fault::RangeOverlap {
                    region,
                    range: start..covered.0.min(range.end),
                    ranks: (covered.1, *rank),
                });
            }
            if range.end > covered.0 {
                covered = (range.end, *rank);
            }
        }
        if covered.0 < elements {
            let range = covered.0..elements;
            self.add(Fault::RangeHole { region, range });
        } else if covered.0 > elements {
            let at = At::new(&region, covered.1);
            let shape = region.lengths;
            self.add(Fault::OutOfBounds { at, shape });
        }
    }

    fn objects(&mut self, first: &Leaf<'_>, leaves: &[Leaf<'_>]) {
        let name = |l: &Leaf<'_>| (l.of.global_offset.clone(), l.of.global_shape.clone());
        let mut cells: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        let mut replicas: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        for leaf in leaves {
            let into = match leaf.is_main() {
                true => &mut cells,
                false => &mut replicas,
            };
            into.entry(name(leaf)).or_default().insert(leaf.rank);
        }
        for ((offset, shape), ranks) in cells.iter().filter(|(_, ranks)| ranks.len() > 1) {
            let key = cell_key(self.key, offset, shape);
            let ranks = ranks.iter().copied().collect();
            self.add_to(key, Fault::Duplicate { ranks });
        }
        let shape = &first.of.global_shape;
        let (all, there) = (count(shape), cells.len() as u128);
        // Megatron Core counts all cells, whatever shape they are of.
        if there >= all {
            return;
        }
        let mut left = all - there;
        let absent = positions(shape).map(|offset| (offset, shape.clone()));
        let absent = absent.filter(|cell| !cells.contains_key(cell));
        for cell in absent.take(PER_KEY) {
            let holders = replicas.remove(&cell);
            let ranks = holders.into_iter().flatten().collect();
            let key = cell_key(self.key, &cell.0, shape);
            self.add_to(key, Fault::NoCell { ranks });
            left = left.saturating_sub(1);
        }
        self.more = self.more.saturating_add(left);
    }
}

/// The number of positions of a grid.
fn count(extents: &Dims) -> u128 {
    let all = (extents.iter()).try_fold(1u128, |n, &extent| n.checked_mul(extent.into()));
    all.unwrap_or(u128::MAX)
}

/// The positions of a grid in row-major order.
fn positions(extents: &Dims) -> impl Iterator<Item = Dims> + use<> {
    Region::whole(extents).blocks(1).map(|at| at.offsets)
}

/// Megatron Core's unique key of a cell.
fn cell_key(key: &str, offset: &Dims, shape: &Dims) -> String {
    ShardedObject::cell(key, shape.clone(), offset.clone()).unique_key()
}

/// The fragments per axis if all leaves are of one regular grid, `None` if the boxes lie as they like, or two leaves that are cut
/// differently. A leaf that is the whole tensor fits boxes that lie as they like.
fn grid<'d>(held: &[Leaf<'d>]) -> Result<Option<&'d Dims>, (Leaf<'d>, Leaf<'d>)> {
    let Some(first) = held.first() else {
        return Ok(None);
    };
    let flat = |l: &Leaf<'_>| l.of.flattened_range.is_some();
    if let Some(other) = held.iter().find(|l| flat(l) != flat(first)) {
        return Err((*first, *other));
    }
    let irregular = held.iter().find(|l| l.of.axis_fragmentations.is_none());
    if let Some(irregular) = irregular {
        let regular = |l: &&Leaf<'_>| l.of.axis_fragmentations.is_some() && !l.is_whole();
        return match held.iter().find(regular) {
            Some(regular) => Err((*regular, *irregular)),
            None => Ok(None),
        };
    }
    let same = |l: &&Leaf<'_>| {
        l.of.axis_fragmentations == first.of.axis_fragmentations
            && l.of.local_shape == first.of.local_shape
    };
    if let Some(other) = held.iter().find(|l| !same(l)) {
        return Err((*first, *other));
    }
    // A grid that does not make up the shape is no grid, so its boxes are looked at one by one.
    let fits = |f: &&Dims| {
        let (lengths, shape) = (first.region().lengths, &first.of.global_shape);
        let axis = |a: usize| f[a].checked_mul(lengths[a]) == Some(shape[a]);
        f.len() == shape.len() && (0..f.len()).all(axis)
    };
    let on_grid = |l: &Leaf<'_>| {
        let r = l.region();
        let on = |(o, n): (&u64, &u64)| o.checked_rem(*n) == Some(0);
        r.offsets.iter().zip(&r.lengths).all(on)
    };
    let fragments = first.of.axis_fragmentations.as_ref().filter(fits);
    Ok(fragments.filter(|_| held.iter().all(on_grid)))
}

fn ranks(leaves: &[Leaf<'_>]) -> Vec<u32> {
    let all: BTreeSet<u32> = leaves.iter().map(|l| l.rank).collect();
    all.into_iter().collect()
}
