//! Whether the leaves of all ranks make up whole tensors and arrays of objects, each part with one main replica.

use super::{Declaration, Declared};
use crate::{At, PlanError, Problem, Problems, Result};
use reshard_model::{BoxFault, Dims, Region, first_fault};
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
        let mut found = Found::new(key);
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
        let mut lengths = Dims::splat(1, prepended);
        local_shape.iter().for_each(|&n| lengths.push(n));
        Region {
            offsets: global_offset.clone(),
            lengths,
        }
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

impl<'k> Found<'k> {
    fn new(key: &'k str) -> Self {
        Self {
            key,
            problems: Vec::new(),
            more: 0,
        }
    }

    fn key(&self) -> String {
        self.key.to_owned()
    }

    fn add(&mut self, problem: Problem) {
        match self.problems.len() < PER_KEY {
            true => self.problems.push(problem),
            false => self.more += 1,
        }
    }

    fn done(mut self) -> Vec<Problem> {
        if self.more > 0 {
            self.problems.push(Problem::More {
                key: self.key.to_owned(),
                count: self.more,
            });
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
            let key = self.key();
            return self.add(Problem::Kind { key, is, other });
        }
        match is_tensor {
            true => self.tensor(first, leaves),
            false => self.objects(first, leaves),
        }
    }

    fn tensor(&mut self, first: &Leaf<'_>, leaves: &[Leaf<'_>]) {
        let key = self.key();
        if let Some(other) = leaves.iter().find(|l| l.of.dtype != first.of.dtype)
            && let (Some(is), Some(dtype)) = (first.of.dtype, other.of.dtype)
        {
            return self.add(Problem::DType {
                key,
                is,
                other: dtype,
                ranks: Some((first.rank, other.rank)),
            });
        }
        let shape = &first.of.global_shape;
        if let Some(other) = leaves.iter().find(|l| l.of.global_shape != *shape) {
            let told = |l: &Leaf<'_>| format!("{} on rank {}", l.of.global_shape, l.rank);
            let (is, other) = (told(first), told(other));
            return self.add(Problem::Shape { key, is, other });
        }
        if let Some(outside) = leaves.iter().find(|l| !l.region().fits(shape)) {
            let at = At {
                region: outside.region(),
                rank: Some(outside.rank),
            };
            let shape = shape.clone();
            return self.add(Problem::OutOfBounds { key, at, shape });
        }
        if shape.contains(&0) {
            return;
        }
        let held: Vec<Leaf<'_>> = leaves.iter().filter(|l| !l.is_empty()).copied().collect();
        let Some(first) = held.first() else {
            let (region, shape) = (Region::whole(shape), shape.clone());
            return self.add(Problem::Hole { key, region, shape });
        };
        match grid(&held) {
            Err((a, b)) => self.add(Problem::Declared {
                key,
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
        let whole = Region::whole(&first.of.global_shape);
        let main: Vec<(u32, Region)> = (held.iter().filter(|l| l.is_main()))
            .map(|l| (l.rank, l.region()))
            .collect();
        if main.is_empty() {
            let ranks = ranks(held);
            let key = self.key();
            return self.add(Problem::Unclaimed {
                key,
                region: whole,
                ranks,
            });
        }
        let at = |i: usize| At {
            region: main[i].1.clone(),
            rank: Some(main[i].0),
        };
        let range = |i: usize, a: usize| main[i].1.offsets[a]..main[i].1.end(a);
        match first_fault(&whole, main.len(), range) {
            None => {}
            Some(BoxFault::Overlap(i, j)) => {
                let (key, a, b) = (self.key(), at(i), at(j));
                self.add(Problem::Overlap { key, a, b });
            }
            Some(BoxFault::Hole(region)) => {
                let (key, shape) = (self.key(), first.of.global_shape.clone());
                self.add(Problem::Hole { key, region, shape });
            }
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
        self.absent(&chunks, fragments, &extents, &first.of.global_shape);
    }

    fn chunk(&mut self, leaves: &[Leaf<'_>]) {
        let Some(first) = leaves.first() else { return };
        let (key, region) = (self.key(), first.region());
        let main: Vec<Leaf<'_>> = leaves.iter().filter(|l| l.is_main()).copied().collect();
        if main.is_empty() {
            let ranks = ranks(leaves);
            return self.add(Problem::Unclaimed { key, region, ranks });
        }
        if first.of.flattened_range.is_some() {
            return self.ranges(region, main);
        }
        if main.len() > 1 {
            let ranks = main.iter().map(|l| l.rank).collect();
            self.add(Problem::Claimed { key, region, ranks });
        }
    }

    /// Ranges of one chunk make it up.
    fn ranges(&mut self, region: Region, main: Vec<Leaf<'_>>) {
        let mut ranges: Vec<_> = (main.iter())
            .filter_map(|l| Some((l.of.flattened_range.clone()?, l.rank)))
            .collect();
        ranges.sort_by_key(|(range, rank)| (range.start, range.end, *rank));
        let elements = region.volume().unwrap_or(u64::MAX);
        let mut covered: (u64, u32) = (0, 0);
        for (range, rank) in &ranges {
            let problem = match range.start {
                start if start > covered.0 => Some(Problem::RangeHole {
                    key: self.key(),
                    region: region.clone(),
                    range: covered.0..start,
                }),
                start if start < covered.0 => Some(Problem::RangeOverlap {
                    key: self.key(),
                    region: region.clone(),
                    range: start..covered.0.min(range.end),
                    ranks: (covered.1, *rank),
                }),
                _ => None,
            };
            if let Some(problem) = problem {
                self.add(problem);
            }
            if range.end > covered.0 {
                covered = (range.end, *rank);
            }
        }
        let key = self.key();
        if covered.0 < elements {
            let range = covered.0..elements;
            self.add(Problem::RangeHole { key, region, range });
        } else if covered.0 > elements {
            let at = At {
                region: region.clone(),
                rank: Some(covered.1),
            };
            let shape = region.lengths;
            self.add(Problem::OutOfBounds { key, at, shape });
        }
    }

    /// Chunks that no rank has: walks the grid in row-major order, but no further than there are problems to list.
    fn absent(
        &mut self,
        chunks: &BTreeMap<Dims, Vec<Leaf<'_>>>,
        fragments: &Dims,
        extents: &Dims,
        shape: &Dims,
    ) {
        let all = (fragments.iter()).try_fold(1u128, |n, f| n.checked_mul(u128::from(*f)));
        let mut left = all
            .unwrap_or(u128::MAX)
            .saturating_sub(chunks.len() as u128);
        let mut there = chunks.keys().peekable();
        let mut at = Dims::zeros(fragments.len());
        while left > 0 && self.problems.len() < PER_KEY {
            if there.next_if(|next| **next == at).is_none() {
                let offsets = at.iter().zip(extents).map(|(c, n)| c * n).collect();
                let region = Region {
                    offsets,
                    lengths: extents.clone(),
                };
                let (key, shape) = (self.key(), shape.clone());
                self.add(Problem::Hole { key, region, shape });
                left -= 1;
            }
            if !advance(&mut at, fragments) {
                break;
            }
        }
        self.more = self.more.saturating_add(left);
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
            let key = match shape.is_empty() {
                true => self.key(),
                false => cell_key(self.key, offset, shape),
            };
            let ranks = ranks.iter().copied().collect();
            self.add(Problem::Duplicate { key, ranks });
        }
        let shape = &first.of.global_shape;
        let all = (shape.iter()).try_fold(1u128, |n, s| n.checked_mul(u128::from(*s)));
        let all = all.unwrap_or(u128::MAX);
        let there = cells.len() as u128;
        // Megatron Core counts all cells, whatever shape they are of.
        if there >= all {
            return;
        }
        let listed: Vec<Dims> = first_absent(shape, |offset| {
            cells.contains_key(&(offset.clone(), shape.clone()))
        });
        let left = (all - there).saturating_sub(listed.len() as u128);
        for offset in listed {
            let holders = replicas.remove(&(offset.clone(), shape.clone()));
            self.add(Problem::NoCell {
                key: cell_key(self.key, &offset, shape),
                ranks: holders.into_iter().flatten().collect(),
            });
        }
        self.more = self.more.saturating_add(left);
    }
}

/// The first cells of an array that are not there, in row-major order: at most as many as are listed. It looks at no more cells than are
/// there and listed.
fn first_absent(shape: &Dims, there: impl Fn(&Dims) -> bool) -> Vec<Dims> {
    let (mut out, mut at) = (Vec::new(), Dims::zeros(shape.len()));
    while out.len() < PER_KEY {
        if !there(&at) {
            out.push(at.clone());
        }
        if !advance(&mut at, shape) {
            break;
        }
    }
    out
}

/// The next position of a grid in row-major order.
fn advance(at: &mut Dims, extents: &Dims) -> bool {
    for axis in (0..extents.len()).rev() {
        if at[axis].saturating_add(1) < extents[axis] {
            at[axis] += 1;
            return true;
        }
        at[axis] = 0;
    }
    false
}

/// Megatron Core's unique key of a cell.
fn cell_key(key: &str, offset: &Dims, shape: &Dims) -> String {
    let joined = |d: &Dims| {
        let all: Vec<String> = d.iter().map(u64::to_string).collect();
        all.join(".")
    };
    match shape.is_empty() {
        true => key.to_owned(),
        false => format!("{key}/shard_{}_{}", joined(offset), joined(shape)),
    }
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
