use super::{
    ChunkId, Column, FORMAT, HAS_STRIDES, Metadata, Name, ObjectId, PIN_MEMORY, REQUIRES_GRAD, Row,
    TensorId,
};
use crate::{Annotations, PlanError, PlannerData, Result, TensorProperties};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use reshard_model::{DType, Dims, Region};
use std::{collections::BTreeMap, hash::BuildHasher};

/// Builds a [`Metadata`]. You may add tensors, chunks and objects in any order, and mix the chunks of several tensors.
///
/// It refuses a key that is added twice, a chunk with a wrong number of axes, and more than 2³² of anything. It does not check geometry.
#[derive(Clone, Default)]
pub struct MetadataBuilder {
    names: String,
    tensors: Vec<Row>,
    objects: Vec<Name>,
    order: Vec<u32>,
    shapes: Column,
    coords: Column,
    /// Tensor of each chunk, kept from the first chunk on that comes after a later tensor's.
    owners: Vec<u32>,
    chunks: u32,
    last: u32,
    /// Numbers as in `order`, by key.
    keys: HashTable<u32>,
    hasher: RandomState,
    originals: BTreeMap<u32, Dims>,
}

impl std::fmt::Debug for MetadataBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataBuilder")
            .field("tensors", &self.tensors.len())
            .field("chunks", &self.chunks)
            .field("objects", &self.objects.len())
            .finish_non_exhaustive()
    }
}

/// Objects are told from tensors by the top bit while their number is not known.
const OBJECT: u32 = 1 << 31;

impl MetadataBuilder {
    fn name(&self, number: u32) -> &str {
        let name = match number & OBJECT {
            0 => self.tensors[number as usize].name,
            _ => self.objects[(number ^ OBJECT) as usize],
        };
        name.of(&self.names)
    }

    fn find(&self, key: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.keys.find(hash, |n| self.name(*n) == key).copied()
    }

    /// Puts a key that is not there yet into the arena.
    fn new_name(&mut self, key: &str) -> Result<Name> {
        if let Some(n) = self.find(key) {
            let what = match n & OBJECT {
                0 => "it is stored twice, once as a tensor",
                _ => "it is stored twice, once as an object",
            };
            return Err(PlanError::corrupt(key, what));
        }
        let full = || PlanError::corrupt(key, "too many keys: their text has more than 4 GiB");
        let at = u32::try_from(self.names.len()).map_err(|_| full())?;
        let len = u32::try_from(key.len()).map_err(|_| full())?;
        at.checked_add(len).ok_or_else(full)?;
        self.names.push_str(key);
        Ok(Name { at, len })
    }

    fn enter(&mut self, number: u32, key: &str) {
        self.order.push(number);
        let Self {
            names,
            tensors,
            objects,
            keys,
            hasher,
            ..
        } = self;
        let name = |n: u32| match n & OBJECT {
            0 => tensors[n as usize].name,
            _ => objects[(n ^ OBJECT) as usize],
        };
        keys.insert_unique(hasher.hash_one(key), number, |n| {
            hasher.hash_one(name(*n).of(names))
        });
    }

    /// A tensor without chunks.
    ///
    /// # Errors
    /// [`PlanError::Corrupt`] for a key that was already added, more than 255 axes, or strides with a wrong number of axes.
    pub fn add_tensor(
        &mut self,
        key: &str,
        dtype: DType,
        shape: &[u64],
        properties: TensorProperties,
    ) -> Result<TensorId> {
        // Rows hold small numbers, so every number is checked before anything is stored. A failed call changes nothing.
        let ndim = u8::try_from(shape.len()).map_err(|_| {
            PlanError::corrupt(
                key,
                format!("it has {} axes, and at most 255 are possible", shape.len()),
            )
        })?;
        let full = || PlanError::corrupt(key, "too many tensors");
        let number = u32::try_from(self.tensors.len())
            .ok()
            .filter(|n| *n < OBJECT)
            .ok_or_else(full)?;
        let at = u32::try_from(self.shapes.len()).map_err(|_| full())?;
        if let Some(s) = properties
            .strides
            .as_ref()
            .filter(|s| s.len() != shape.len())
        {
            let what = format!("it has {} strides, but {} axes", s.len(), shape.len());
            return Err(PlanError::corrupt(key, what));
        }

        // Strides follow the shape in the same column, so the row needs only one position and a flag.
        let name = self.new_name(key)?;
        self.shapes.extend(shape);
        if let Some(strides) = &properties.strides {
            self.shapes.extend(strides);
        }
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        self.tensors.push(Row {
            name,
            shape: at,
            first: self.chunks,
            chunks: 0,
            coords: 0,
            ndim,
            dtype,
            flags: flag(properties.requires_grad, REQUIRES_GRAD)
                | flag(properties.pin_memory, PIN_MEMORY)
                | flag(properties.strides.is_some(), HAS_STRIDES)
                | (properties.memory_format as u8) << FORMAT,
        });
        self.enter(number, key);
        Ok(TensorId(number))
    }

    /// Says that a tensor is stored flattened, and which shape it has ([`TensorRef::original_shape`](crate::TensorRef::original_shape)).
    /// Whether the two shapes fit each other is looked at when somebody asks for the tensor.
    pub fn set_original_shape(&mut self, tensor: TensorId, original: impl Into<Option<Dims>>) {
        let original = original.into().map(|shape| (tensor.0, shape));
        self.originals.extend(original);
    }

    /// The tensor of a key that was added.
    pub fn tensor(&self, key: &str) -> Option<TensorId> {
        self.find(key).filter(|n| n & OBJECT == 0).map(TensorId)
    }

    /// A chunk of a tensor.
    ///
    /// # Errors
    /// [`PlanError::Corrupt`] if its number of axes is not the tensor's, or there are 2³² chunks.
    pub fn add_chunk(&mut self, tensor: TensorId, region: &Region) -> Result<ChunkId> {
        let Some(row) = self.tensors.get_mut(tensor.0 as usize) else {
            return Err(PlanError::invalid(
                "",
                format!("no tensor has number {}", tensor.0),
            ));
        };
        if region.offsets.len() != row.ndim.into() || region.lengths.len() != row.ndim.into() {
            let what = format!(
                "its chunk at {} with lengths {} does not fit a tensor of {} axes",
                region.offsets, region.lengths, row.ndim
            );
            return Err(PlanError::corrupt(row.name.of(&self.names), what));
        }
        let id = self.chunks;
        let full = || PlanError::corrupt(row.name.of(&self.names), "too many chunks");
        let chunks = id.checked_add(1).ok_or_else(full)?;
        row.chunks += 1;
        if tensor.0 < self.last && self.owners.is_empty() {
            // Up to here chunks came tensor by tensor; now one comes late.
            let counts = self.tensors.iter().enumerate();
            self.owners = Vec::with_capacity(chunks as usize);
            for (t, row) in counts {
                let n = row.chunks - u32::from(t == tensor.0 as usize);
                self.owners
                    .extend(std::iter::repeat_n(t as u32, n as usize));
            }
        }
        self.last = self.last.max(tensor.0);
        if !self.owners.is_empty() {
            self.owners.push(tensor.0);
        }
        self.chunks = chunks;
        self.coords.extend(&region.offsets);
        self.coords.extend(&region.lengths);
        Ok(ChunkId(id))
    }

    /// An object.
    ///
    /// # Errors
    /// [`PlanError::Corrupt`] for a key that is there already.
    pub fn add_object(&mut self, key: &str) -> Result<ObjectId> {
        let number = u32::try_from(self.objects.len())
            .ok()
            .filter(|n| *n < OBJECT);
        let number = number.ok_or_else(|| PlanError::corrupt(key, "too many objects"))?;
        let name = self.new_name(key)?;
        self.objects.push(name);
        self.enter(number | OBJECT, key);
        Ok(ObjectId(number))
    }

    /// Makes the table. The ids that were returned stay valid.
    ///
    /// # Errors
    /// [`PlanError::Corrupt`] when tensors and objects together are more than 2³².
    pub fn finish(self, planner_data: Option<PlannerData>) -> Result<Metadata> {
        let Self {
            names,
            mut tensors,
            mut objects,
            mut order,
            mut shapes,
            coords,
            owners,
            keys,
            originals,
            ..
        } = self;

        // The index of keys is not needed any more. It goes first, so that it does not add to the memory of the sorted
        // lists.
        drop(keys);
        let count = tensors.len() as u32;
        if tensors.len() + objects.len() > u32::MAX as usize {
            return Err(PlanError::corrupt("", "too many keys"));
        }

        // Until now objects were numbered apart from tensors. From here on their numbers follow those of the tensors.
        order
            .iter_mut()
            .filter(|n| **n & OBJECT != 0)
            .for_each(|n| *n = (*n ^ OBJECT) + count);

        // Each tensor's chunks get one run of positions, in which `group` then puts them.
        let (mut first, mut at) = (0, 0);
        for row in &mut tensors {
            (row.first, row.coords) = (first, at);
            first += row.chunks;
            at += u64::from(row.chunks) * 2 * u64::from(row.ndim);
        }
        let (mut coords, ids, positions) = group(&tensors, coords, &owners);
        drop(owners);

        // The table lives as long as the checkpoint is open, so it keeps no spare room.
        tensors.shrink_to_fit();
        objects.shrink_to_fit();
        order.shrink_to_fit();
        shapes.shrink();
        coords.shrink();
        let sorted = |names: &str, rows: &dyn Fn(u32) -> Name, n: u32| {
            let mut v: Vec<u32> = (0..n).collect();
            v.sort_unstable_by(|a, b| rows(*a).of(names).cmp(rows(*b).of(names)));
            v
        };
        let mut out = Metadata {
            tensors_by_key: sorted(&names, &|i| tensors[i as usize].name, count),
            objects_by_key: sorted(&names, &|i| objects[i as usize], objects.len() as u32),
            names: names.into(),
            tensors,
            objects,
            order,
            shapes,
            coords,
            ids,
            positions,
            by_offset: Vec::new(),
            planner_data,
            annotations: Annotations::default(),
            originals: originals.into_iter().collect(),
        };
        out.by_offset = by_offset(&out);
        Ok(out)
    }
}

/// Makes the chunks of each tensor neighbours. Gives the coordinates, the ids by position and the positions by id; both empty
/// when nothing moved.
fn group(tensors: &[Row], coords: Column, owners: &[u32]) -> (Column, Vec<u32>, Vec<u32>) {
    if owners.is_empty() {
        return (coords, Vec::new(), Vec::new());
    }
    let mut next: Vec<u32> = tensors.iter().map(|r| r.first).collect();
    let mut ids = vec![0; owners.len()];
    let mut positions = Vec::with_capacity(owners.len());
    for (id, &owner) in owners.iter().enumerate() {
        let p = next[owner as usize];
        ids[p as usize] = id as u32;
        positions.push(p);
        next[owner as usize] += 1;
    }
    // Where the coordinates of each id begin, as they came.
    let mut starts = Vec::with_capacity(owners.len());
    let mut at = 0u64;
    for &owner in owners {
        starts.push(at);
        at += 2 * u64::from(tensors[owner as usize].ndim);
    }
    let mut grouped = coords.like();
    for &id in &ids {
        let ndim = tensors[owners[id as usize] as usize].ndim;
        grouped.extend_from(&coords, starts[id as usize] as usize, 2 * usize::from(ndim));
    }
    (grouped, ids, positions)
}

/// Positions of each tensor's chunks by their offsets, or nothing when they lie so.
fn by_offset(m: &Metadata) -> Vec<u32> {
    let starts = |id: u32, p: u32| -> Dims {
        let t = m.tensor_at(id);
        (0..t.ndim()).map(|a| t.range(p, a).start).collect()
    };
    let mut out: Vec<u32> = Vec::new();
    for id in 0..m.tensors.len() as u32 {
        let range = m.tensor_at(id).positions();
        let lie_so = range
            .clone()
            .skip(1)
            .all(|p| starts(id, p - 1) <= starts(id, p));
        if lie_so && out.is_empty() {
            continue;
        }
        if out.is_empty() {
            out = (0..m.chunk_count() as u32).collect();
        }
        if !lie_so {
            out[range.start as usize..range.end as usize].sort_by_cached_key(|&p| starts(id, p));
        }
    }
    out
}
