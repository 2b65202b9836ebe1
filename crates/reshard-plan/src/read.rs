//! From a template to read items.

use crate::{
    At, DefaultLoadPlanner, Fault, Fill, LoadContext, LoadPlan, Metadata, PieceId, PlanError,
    Problem, Problems, ReadItem, Recast, Result, Stored, StrictHandling, TensorRef,
    flat::{FlatGrid, InCell, Taken},
    index::Index,
    near::Near,
    scale_of,
    shapes::shapes_differ,
};
use reshard_model::{
    FlatStateDict, FlatView, Region, Sharded, ShardedObject, ShardedTensor, first_fault,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Plans what one rank reads. It finds all problems before it fails.
pub(crate) fn plan(
    options: &DefaultLoadPlanner,
    template: &FlatStateDict,
    metadata: &Metadata,
) -> Result<LoadPlan> {
    let mut reader = Reader {
        options,
        metadata,
        indices: BTreeMap::new(),
        taken: Taken::default(),
        plan: LoadPlan::default(),
        problems: Vec::new(),
    };
    for (dest, leaf) in template.values().enumerate() {
        let dest = u32::try_from(dest)
            .map_err(|_| PlanError::invalid(leaf.key(), "the template has more than 2³² leaves"))?;
        match leaf {
            Sharded::Tensor(t) => reader.tensor(dest, t)?,
            Sharded::Object(o) => reader.object(dest, o),
        }
    }
    let Reader {
        mut plan,
        mut problems,
        ..
    } = reader;
    if !problems.is_empty() {
        problems.sort_by(|a, b| a.key.cmp(&b.key));
        problems.dedup();
        suggest(&mut problems, metadata);
        return Err(PlanError::Load(Problems(problems)));
    }
    if options.strict.finds_not_requested() {
        plan.requested = read_by_no_item(template, &plan);
    }
    Ok(plan)
}

/// Adds similar keys to the problems that will be shown.
fn suggest(problems: &mut [Problem], metadata: &Metadata) {
    let mut search: Option<Near<'_>> = None;
    for problem in problems.iter_mut().take(Problems::SHOWN) {
        if let Fault::NotStored { near } = &mut problem.fault {
            let search = search.get_or_insert_with(|| Near::new(metadata));
            *near = search.of(&problem.key);
        }
    }
}

/// Keys that the template asks for and of which nothing is read.
fn read_by_no_item(template: &FlatStateDict, plan: &LoadPlan) -> Vec<Box<str>> {
    let read: BTreeSet<u32> = plan.items.iter().map(|item| item.dest).collect();
    let idle = (0u32..)
        .zip(template.values())
        .filter(|(dest, _)| !read.contains(dest));
    idle.map(|(_, leaf)| leaf.unique_key().into()).collect()
}

/// Tells all ranks what is stored and none of them asks for, or fails if that is an error.
pub(crate) fn find_not_requested(
    strict: StrictHandling,
    plans: &mut [LoadPlan],
    cx: &LoadContext<'_>,
) -> Result<()> {
    if !strict.finds_not_requested() {
        return Ok(());
    }
    let requested: BTreeSet<&str> = plans
        .iter()
        .flat_map(|plan| {
            let read = plan.all_items().map(|item| &*item.piece.key);
            read.chain(plan.requested.iter().map(|key| &**key))
        })
        .collect();
    let stored = (cx.metadata.entries()).map(|entry| (entry.key(), cx.elsewhere.has(&entry)));
    // Nobody knows what such an item is, so the load of the tensors asks for it.
    let others = (cx.not_understood.iter()).map(|key| {
        let elsewhere = cx.elsewhere.tensors || cx.elsewhere.has_key(key);
        (key.as_str(), elsewhere)
    });
    let (not_requested, keys): (Vec<u32>, Vec<&str>) = (0u32..)
        .zip(stored.chain(others))
        .filter(|(_, (key, elsewhere))| !requested.contains(key) && !elsewhere)
        .map(|(at, (key, _))| (at, key))
        .unzip();
    if strict == StrictHandling::RaiseAll && !keys.is_empty() {
        let problems = keys.into_iter().map(|key| Fault::NotRequested.of(key));
        return Err(PlanError::NotRequested(Problems(problems.collect())));
    }
    for plan in plans {
        plan.not_requested.clone_from(&not_requested);
        // It has served.
        plan.requested.clear();
    }
    Ok(())
}

struct Reader<'m> {
    options: &'m DefaultLoadPlanner,
    metadata: &'m Metadata,
    indices: BTreeMap<u32, Index<'m>>,
    taken: Taken,
    plan: LoadPlan,
    problems: Vec<Problem>,
}

impl<'m> Reader<'m> {
    fn not_stored(&mut self, dest: u32, key: &str, optional: bool) {
        if optional || !self.options.strict.needs_stored() {
            self.plan.not_stored.push(dest);
        } else {
            self.fault(key, Fault::NotStored { near: Vec::new() });
        }
    }

    fn wrong_kind(&mut self, key: &str, stored: &str, asked: &str) {
        let is = format!("stored as {stored}");
        let other = format!("asked for as {asked}");
        self.fault(key, Fault::Kind { is, other });
    }

    fn fault(&mut self, key: &str, fault: Fault) {
        self.problems.push(fault.of(key));
    }

    fn object(&mut self, dest: u32, o: &ShardedObject) {
        let key = o.unique_key();
        match self.metadata.object(&key) {
            Some(id) => self.plan.items.push(ReadItem {
                dest,
                dest_region: Region::default(),
                piece: PieceId {
                    key: key.into(),
                    offset: None,
                },
                stored: Stored::Object(id),
                stored_region: Region::default(),
                flat: None,
            }),
            None if self.metadata.tensor(&key).is_some() => {
                self.wrong_kind(&key, "a tensor", "an object")
            }
            None => self.not_stored(dest, &key, o.optional),
        }
    }

    fn tensor(&mut self, dest: u32, t: &ShardedTensor) -> Result<()> {
        // First the checks that concern the whole leaf: key, kind, region, shape, element type.
        let Some(stored) = self.metadata.tensor(&t.key) else {
            match self.metadata.object(&t.key) {
                Some(_) => self.wrong_kind(&t.key, "an object", "a tensor"),
                None => self.not_stored(dest, &t.key, t.optional),
            }
            return Ok(());
        };
        let wanted = t.region();
        if !wanted.fits(&t.global_shape) {
            let what = format!(
                "region {wanted} does not lie in the global shape {}",
                t.global_shape
            );
            return Err(PlanError::invalid(&t.key, what));
        }
        let shape = stored.global_shape();
        if shape.len() != t.global_shape.len()
            || (shape != t.global_shape && !t.allow_shape_mismatch)
        {
            self.fault(&t.key, shapes_differ(stored, t));
            return Ok(());
        }
        if !self.options.cast.allows(stored.dtype(), t.dtype) {
            let fault = Fault::DType {
                is: stored.dtype(),
                other: t.dtype,
                ranks: None,
            };
            self.fault(&t.key, fault);
            return Ok(());
        }
        if stored.dtype() != t.dtype {
            if let Some(scale) = scale_of(self.metadata, &stored) {
                let what = format!(
                    "it is quantised, with its scale in {scale}, which a cast from {} to {} would ignore; load it as {}, or open the checkpoint \
                     with `dequantize`",
                    stored.dtype(),
                    t.dtype,
                    stored.dtype()
                );
                return Err(PlanError::unsupported(&t.key, what));
            }
            self.plan.recasts.push(Recast {
                dest,
                from: stored.dtype(),
                to: t.dtype,
            });
        }
        let grid = match FlatGrid::of(stored) {
            Ok(grid) => grid,
            Err(fault) => {
                self.fault(&t.key, fault);
                return Ok(());
            }
        };
        // A flattened leaf wants some boxes of its local chunk.
        let boxes = match &t.flattened_range {
            None => vec![wanted.clone()],
            Some(range) => wanted.boxes(range.clone()).collect(),
        };
        for region in boxes {
            self.region(dest, t, &wanted, region, stored, grid.as_ref())?;
        }
        Ok(())
    }

    /// Plans the reads of a box of the global tensor for a leaf whose local chunk is `leaf`.
    fn region(
        &mut self,
        dest: u32,
        t: &ShardedTensor,
        leaf: &Region,
        wanted: Region,
        stored: TensorRef<'m>,
        grid: Option<&FlatGrid>,
    ) -> Result<()> {
        // With `allow_shape_mismatch` a part of the wanted region may lie outside the stored tensor. It becomes zeros.
        let (there, absent) = split(&wanted, &Region::whole(&stored.global_shape()));
        self.plan.fills.extend(absent.iter().map(|r| Fill {
            dest,
            dest_region: r.within(leaf),
        }));
        let Some(there) = there else { return Ok(()) };

        // One item for each chunk that meets the wanted region. The index of a tensor is built once for all its leaves.
        let index = self
            .indices
            .entry(stored.id().0)
            .or_insert_with(|| Index::new(stored));
        let as_stored = match grid {
            None => there.clone(),
            Some(grid) => grid.stored(&there),
        };
        let mut parts = Vec::new();
        self.taken.begin_read();
        for position in index.meet(&as_stored) {
            let chunk = stored.region(position);
            if !chunk.fits(&stored.shape()) {
                let (at, shape) = (At::new(&chunk, None), stored.shape());
                self.fault(&t.key, Fault::OutOfBounds { at, shape });
                return Ok(());
            }
            match grid {
                None => parts.extend(Part::of_box(position, chunk, &there)),
                Some(grid) => {
                    let cells = grid.cells(&t.key, &chunk, &there, &mut self.taken)?;
                    parts.extend(Part::of_cells(position, &chunk, &there, &cells));
                }
            }
        }
        let range = |i: usize, a: usize| parts[i].global.offsets[a]..parts[i].global.end(a);
        if let Some(fault) = first_fault(&there, parts.len(), range) {
            let at = |i: usize| At::new(&parts[i].chunk, None);
            let fault = Fault::of_chunks(fault, stored.global_shape(), at);
            self.fault(&t.key, fault);
            return Ok(());
        }
        // There may be many chunks, and the key may be long.
        let key: Arc<str> = (&*t.key).into();
        for part in parts {
            self.plan.items.push(ReadItem {
                dest,
                dest_region: part.global.within(leaf),
                piece: PieceId {
                    key: Arc::clone(&key),
                    offset: Some(part.chunk.offsets),
                },
                stored: Stored::Chunk(stored.id_of(part.position)),
                stored_region: part.stored,
                flat: part.flat.map(Box::new),
            });
        }
        Ok(())
    }
}

/// A box of the global tensor that one stored chunk has.
struct Part {
    position: u32,
    chunk: Region,
    global: Region,
    /// Where it lies in the chunk, or in the tensor of which the chunk is a range.
    stored: Region,
    flat: Option<FlatView>,
}

impl Part {
    /// What a chunk that is a box of the tensor has of a region.
    fn of_box(position: u32, chunk: Region, wanted: &Region) -> Option<Self> {
        let global = chunk.intersect(wanted)?;
        Some(Self {
            position,
            stored: global.within(&chunk),
            chunk,
            global,
            flat: None,
        })
    }

    /// What a chunk that is a range of flattened cells has of a region.
    fn of_cells(
        position: u32,
        chunk: &Region,
        wanted: &Region,
        cells: &[InCell],
    ) -> impl Iterator<Item = Self> {
        let boxes = cells
            .iter()
            .flat_map(|at| at.cell.boxes(at.range.clone()).map(move |b| (at, b)));
        boxes.filter_map(move |(at, range)| {
            let global = range.intersect(wanted)?;
            let mut stored = global.within(&at.cell);
            if let Some(first) = stored.offsets.first_mut() {
                *first += at.rows;
            }
            Some(Self {
                position,
                chunk: chunk.clone(),
                global,
                stored,
                flat: Some(at.view.clone()),
            })
        })
    }
}

/// The part of a box that lies in another box, and disjoint boxes that make up the rest.
fn split(wanted: &Region, whole: &Region) -> (Option<Region>, Vec<Region>) {
    if wanted.is_empty() {
        return (None, Vec::new());
    }
    let Some(there) = wanted.intersect(whole) else {
        return (None, vec![wanted.clone()]);
    };
    let mut rest = wanted.clone();
    let mut absent = Vec::new();
    // Both begin at or after 0, so what is absent lies behind the end of each axis.
    for axis in 0..wanted.ndim() {
        let (from, to) = (there.end(axis), rest.end(axis));
        if from < to {
            let mut r = rest.clone();
            (r.offsets[axis], r.lengths[axis]) = (from, to - from);
            absent.push(r);
        }
        rest.lengths[axis] = there.lengths[axis];
    }
    (Some(there), absent)
}
