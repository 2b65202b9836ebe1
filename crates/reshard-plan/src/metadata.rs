//! The logical table of a checkpoint, as columns.

use crate::{Annotations, MemoryFormat, PlannerData, Result, TensorProperties};
use reshard_model::{DType, Dims, Region};
use std::{fmt, ops::Range};

mod builder;
mod column;
mod wire;

pub use builder::MetadataBuilder;
use column::Column;

/// The number of a chunk, in the order in which chunks were added. A format uses it as the index of its own table.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct ChunkId(pub u32);

/// The number of an object, in the order in which objects were added.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct ObjectId(pub u32);

/// The number of a tensor, in the order in which tensors were added.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct TensorId(pub u32);

/// A part of the arena of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    at: u32,
    len: u32,
}

impl Name {
    /// The name in the arena.
    fn of(self, names: &str) -> &str {
        let at = self.at as usize;
        names.get(at..at + self.len as usize).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    name: Name,
    /// Index into the column of shapes; strides follow the shape when there are any.
    shape: u32,
    /// Position of the first chunk, in the column of coordinates. Chunks of one tensor are neighbours there.
    first: u32,
    chunks: u32,
    /// Index of its first coordinate.
    coords: u64,
    ndim: u8,
    dtype: DType,
    flags: u8,
}

const REQUIRES_GRAD: u8 = 1;
const PIN_MEMORY: u8 = 2;
const HAS_STRIDES: u8 = 4;
const FORMAT: u8 = 3;

/// What is stored: tensors, cut into chunks, and objects. The format knows where their bytes lie, by [`ChunkId`] and [`ObjectId`].
///
/// A million chunks with two axes take under 100 bytes each, plus the text of their keys, whether they belong to one tensor or to a million
/// tensors. Only what [`MetadataBuilder`] checks is guaranteed. Chunks may overlap, leave holes, or lie outside their tensor; that is an
/// error only for reads that want them. [`problems`](Self::problems) looks for such faults everywhere.
///
/// ```
/// use reshard_model::{DType, Region};
/// use reshard_plan::Metadata;
///
/// # fn main() -> Result<(), reshard_plan::PlanError> {
/// let mut builder = Metadata::builder();
/// let weight = builder.add_tensor("weight", DType::Float32, &[4, 2], Default::default())?;
/// let top = builder.add_chunk(weight, &Region::new([0, 0], [2, 2]))?;
/// let bottom = builder.add_chunk(weight, &Region::new([2, 0], [2, 2]))?;
/// let step = builder.add_object("step")?;
/// let metadata = builder.finish(None)?;
///
/// let weight = metadata.tensor("weight").unwrap();
/// assert_eq!((weight.dtype(), weight.bytes()), (DType::Float32, 32));
/// assert_eq!(weight.chunk_at(&[2, 0], None), Some(bottom));
/// assert_eq!(weight.chunks().next(), Some((top, Region::new([0, 0], [2, 2]))));
/// assert_eq!(metadata.object("step"), Some(step));
/// # Ok(())
/// # }
/// ```
///
/// Two tables are equal if they have the same, under the same numbers, in the same order.
#[derive(Clone, Default, PartialEq, Eq, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
pub struct Metadata {
    names: Box<str>,
    /// In order of [`TensorId`].
    tensors: Vec<Row>,
    /// In order of [`ObjectId`].
    objects: Vec<Name>,
    /// Tensors by key.
    tensors_by_key: Vec<u32>,
    /// Objects by key.
    objects_by_key: Vec<u32>,
    /// All keys in order of appearance: tensors by number, objects by number of tensors plus number.
    order: Vec<u32>,
    shapes: Column,
    /// Offsets, then lengths, of each chunk.
    coords: Column,
    /// From position to id and back; empty while they are equal.
    ids: Vec<u32>,
    positions: Vec<u32>,
    /// Positions of each tensor's chunks in order of their offsets; empty while they lie so.
    by_offset: Vec<u32>,
    /// The same table with other planner data.
    #[setters(generate)]
    planner_data: Option<PlannerData>,
    /// The same table with other annotations.
    #[setters(generate)]
    annotations: Annotations,
    /// Original shapes of tensors that are stored flattened, by number.
    originals: Vec<(u32, Dims)>,
}

/// A key with what is stored under it.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'m> {
    /// A tensor.
    Tensor(TensorRef<'m>),
    /// An object, with its key.
    Object(ObjectId, &'m str),
}

impl<'m> Entry<'m> {
    /// The key.
    pub fn key(&self) -> &'m str {
        match self {
            Self::Tensor(t) => t.key(),
            Self::Object(_, key) => key,
        }
    }
}

impl Metadata {
    /// A builder of an empty table.
    pub fn builder() -> MetadataBuilder {
        MetadataBuilder::default()
    }

    fn name(&self, name: Name) -> &str {
        name.of(&self.names)
    }

    fn tensor_at(&self, id: u32) -> TensorRef<'_> {
        TensorRef { metadata: self, id }
    }

    /// All tensors, by key.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorRef<'_>> + Clone {
        self.tensors_by_key.iter().map(|&id| self.tensor_at(id))
    }

    /// All objects, by key.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = (ObjectId, &str)> + Clone {
        self.objects_by_key
            .iter()
            .map(|&id| (ObjectId(id), self.name(self.objects[id as usize])))
    }

    /// Tensors and objects in the order in which they were added, which PyTorch keeps.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_>> + Clone {
        let tensors = self.tensors.len();
        self.order
            .iter()
            .map(move |&n| match (n as usize).checked_sub(tensors) {
                None => Entry::Tensor(self.tensor_at(n)),
                Some(o) => Entry::Object(ObjectId(o as u32), self.name(self.objects[o])),
            })
    }

    /// The tensor of a key.
    pub fn tensor(&self, key: &str) -> Option<TensorRef<'_>> {
        let name = |id: u32| self.tensors[id as usize].name;
        let id = self.find(&self.tensors_by_key, name, key)?;
        Some(self.tensor_at(id))
    }

    /// The number of a key, in a list that is in the order of keys.
    fn find(&self, by_key: &[u32], name: impl Fn(u32) -> Name, key: &str) -> Option<u32> {
        let found = by_key.binary_search_by(|id| self.name(name(*id)).cmp(key));
        Some(by_key[found.ok()?])
    }

    /// Up to three stored keys that are similar to a missing one, for messages. They have some more or fewer dotted parts in front, are
    /// cells of the array of objects with this key, or differ by a few letters.
    ///
    /// ```
    /// use reshard_plan::Metadata;
    /// # use reshard_model::DType;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut stored = Metadata::builder();
    /// stored.add_tensor("layer.weight", DType::Float32, &[1], Default::default())?;
    /// assert_eq!(stored.finish(None)?.near("layer.wieght"), ["layer.weight"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn near(&self, key: &str) -> Vec<String> {
        crate::near::Near::new(self).of(key)
    }

    /// The tensor of this number.
    pub fn tensor_by_id(&self, id: TensorId) -> Option<TensorRef<'_>> {
        ((id.0 as usize) < self.tensors.len()).then(|| self.tensor_at(id.0))
    }

    /// The object of a key.
    pub fn object(&self, key: &str) -> Option<ObjectId> {
        let name = |id: u32| self.objects[id as usize];
        self.find(&self.objects_by_key, name, key).map(ObjectId)
    }

    /// The key of an object.
    pub fn object_key(&self, id: ObjectId) -> Option<&str> {
        self.objects.get(id.0 as usize).map(|n| self.name(*n))
    }

    /// The chunk of this number, with its tensor.
    pub fn chunk(&self, id: ChunkId) -> Option<(TensorRef<'_>, Region)> {
        let position = self.position(id)?;
        let row = self
            .tensors
            .partition_point(|r| r.first + r.chunks <= position);
        let tensor = self.tensor_at(row as u32);
        Some((tensor, tensor.region(position)))
    }

    fn position(&self, id: ChunkId) -> Option<u32> {
        if (id.0 as usize) >= self.chunk_count() {
            return None;
        }
        Some(self.positions.get(id.0 as usize).copied().unwrap_or(id.0))
    }

    fn id(&self, position: u32) -> ChunkId {
        ChunkId(self.ids.get(position as usize).copied().unwrap_or(position))
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Number of chunks of all tensors. Their ids are all smaller.
    pub fn chunk_count(&self) -> usize {
        self.tensors
            .last()
            .map_or(0, |r| (r.first + r.chunks) as usize)
    }

    /// Number of objects. Their ids are all smaller.
    pub fn object_count(&self) -> usize {
        self.objects.len()
    }

    /// Bytes of all elements of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors()
            .map(|t| t.bytes())
            .fold(0, u64::saturating_add)
    }

    /// The data of planners in the format record.
    pub fn planner_data(&self) -> Option<&PlannerData> {
        self.planner_data.as_ref()
    }

    /// What the checkpoint states beside its tensors and objects.
    pub fn annotations(&self) -> &Annotations {
        &self.annotations
    }

    /// The same table with some chunks replaced by parts of them. It does not check that the parts make up the chunk.
    ///
    /// # Errors
    /// [`PlanError::Corrupt`](crate::PlanError::Corrupt) if there are more than 2³² chunks then, or a part has a wrong number of axes.
    pub fn with_cuts<'c>(&self, cuts: impl Fn(ChunkId) -> Option<&'c [Region]>) -> Result<Self> {
        let mut builder = self.without_chunks()?;
        for t in (0..self.tensors.len() as u32).map(|id| self.tensor_at(id)) {
            for (chunk, region) in t.chunks() {
                for part in cuts(chunk).unwrap_or(std::slice::from_ref(&region)) {
                    builder.add_chunk(t.id(), part)?;
                }
            }
        }
        let cut = builder.finish(self.planner_data.clone())?;
        Ok(cut.with_annotations(self.annotations.clone()))
    }

    /// The same table with more objects, after the existing ones. Existing numbers do not change.
    ///
    /// # Errors
    /// [`PlanError::Corrupt`](crate::PlanError::Corrupt) for a key that is there already.
    pub fn with_objects<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Result<Self> {
        let mut builder = self.without_chunks()?;
        // Chunks of several tensors may have been added by turns.
        for (tensor, region) in
            (0..self.chunk_count() as u32).filter_map(|id| self.chunk(ChunkId(id)))
        {
            builder.add_chunk(tensor.id(), &region)?;
        }
        for key in keys {
            builder.add_object(key)?;
        }
        let more = builder.finish(self.planner_data.clone())?;
        Ok(more.with_annotations(self.annotations.clone()))
    }

    /// A table of the same keys under the same numbers.
    fn without_chunks(&self) -> Result<MetadataBuilder> {
        let mut builder = Self::builder();
        for entry in self.entries() {
            wire::Row::of(entry).add_to(&mut builder)?;
        }
        Ok(builder)
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.entries().map(|e| match e {
                Entry::Tensor(t) => (t.key(), t.describe()),
                Entry::Object(_, key) => (key, "object".into()),
            }))
            .finish()
    }
}

/// A tensor of a [`Metadata`].
#[derive(Clone, Copy)]
pub struct TensorRef<'m> {
    metadata: &'m Metadata,
    id: u32,
}

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key(), self.describe())
    }
}

impl<'m> TensorRef<'m> {
    fn row(&self) -> &'m Row {
        &self.metadata.tensors[self.id as usize]
    }

    fn describe(&self) -> String {
        let (dtype, shape, chunks) = (self.dtype(), self.shape(), self.chunk_count());
        format!("{dtype} {shape} in {chunks} chunks")
    }

    /// Its number.
    pub fn id(&self) -> TensorId {
        TensorId(self.id)
    }

    /// Its key.
    pub fn key(&self) -> &'m str {
        self.metadata.name(self.row().name)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.row().dtype
    }

    /// Number of axes.
    pub fn ndim(&self) -> usize {
        self.row().ndim.into()
    }

    /// Elements per axis, as they are stored. Chunks are regions of this shape. Of a tensor that is stored
    /// [flattened](Self::original_shape) it is the number of cells per axis, then the elements of a cell.
    pub fn shape(&self) -> Dims {
        let at = self.row().shape as usize;
        self.metadata.shapes.range(at, self.ndim())
    }

    /// The shape of a tensor that is stored flattened: Megatron Core's `nd_reformulated_orig_global_shape`. The tensor is cut into the cells
    /// of a regular grid, and chunks are ranges of the elements of a cell.
    pub fn original_shape(&self) -> Option<Dims> {
        let all = &self.metadata.originals;
        let at = all.binary_search_by_key(&self.id, |(id, _)| *id).ok()?;
        Some(all[at].1.clone())
    }

    /// Elements per axis of the tensor, however it is stored.
    pub fn global_shape(&self) -> Dims {
        self.original_shape().unwrap_or_else(|| self.shape())
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.shape()
            .volume()
            .unwrap_or(u64::MAX)
            .saturating_mul(self.dtype().size())
    }

    /// What else is stored about it.
    pub fn properties(&self) -> TensorProperties {
        let (row, n) = (self.row(), self.ndim());
        let strides = row.shape as usize + n;
        TensorProperties {
            requires_grad: row.flags & REQUIRES_GRAD != 0,
            pin_memory: row.flags & PIN_MEMORY != 0,
            memory_format: match row.flags >> FORMAT {
                0 => MemoryFormat::Contiguous,
                1 => MemoryFormat::ChannelsLast,
                _ => MemoryFormat::Preserve,
            },
            strides: (row.flags & HAS_STRIDES != 0).then(|| self.metadata.shapes.range(strides, n)),
        }
    }

    /// Number of chunks.
    pub fn chunk_count(&self) -> usize {
        self.row().chunks as usize
    }

    /// Its chunks in the order in which they were added, which is DCP's order.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = (ChunkId, Region)> + Clone + use<'m> {
        let this = *self;
        self.positions()
            .map(move |p| (this.metadata.id(p), this.region(p)))
    }

    /// The chunk that starts at `offset`; the one at `hint` of the list if it does, else the first. O(log n).
    pub fn chunk_at(&self, offset: &[u64], hint: Option<usize>) -> Option<ChunkId> {
        if offset.len() != self.ndim() {
            return None;
        }
        let starts = |p: u32| (0..self.ndim()).map(move |a| self.range(p, a).start);

        // A hint comes from a file, so it counts only if a chunk with that offset really lies there.
        let hinted = hint
            .and_then(|h| u32::try_from(h).ok())
            .filter(|h| *h < self.row().chunks);
        if let Some(p) = hinted.map(|h| self.row().first + h)
            && starts(p).eq(offset.iter().copied())
        {
            return Some(self.metadata.id(p));
        }

        // The binary search needs the chunks by offset. `by_offset` is empty when the list already has that order.
        let sorted = |i: u32| {
            self.metadata
                .by_offset
                .get(i as usize)
                .copied()
                .unwrap_or(i)
        };
        let Range {
            start: mut lo,
            mut end,
        } = self.positions();
        let last = end;
        while lo < end {
            let mid = lo + (end - lo) / 2;
            if starts(sorted(mid)).lt(offset.iter().copied()) {
                lo = mid + 1
            } else {
                end = mid
            }
        }

        // The search ends at the first chunk that is not before `offset`, so of several chunks with one offset the
        // first is found.
        let found = (lo < last)
            .then(|| sorted(lo))
            .filter(|&p| starts(p).eq(offset.iter().copied()))?;
        Some(self.metadata.id(found))
    }

    /// Position of the chunk that starts at `offset` in the list of chunks: the index that DCP stores as a hint.
    pub fn chunk_index(&self, offset: &[u64]) -> Option<usize> {
        let position = self.metadata.position(self.chunk_at(offset, None)?)?;
        Some((position - self.row().first) as usize)
    }

    /// Positions in the columns.
    pub(crate) fn positions(&self) -> Range<u32> {
        self.row().first..self.row().first + self.row().chunks
    }

    pub(crate) fn id_of(&self, position: u32) -> ChunkId {
        self.metadata.id(position)
    }

    /// Index of the first coordinate of a chunk.
    fn coords(&self, position: u32) -> usize {
        self.row().coords as usize + (position - self.row().first) as usize * 2 * self.ndim()
    }

    /// What the chunk at a position has of one axis.
    pub(crate) fn range(&self, position: u32, axis: usize) -> Range<u64> {
        let at = self.coords(position) + axis;
        let start = self.metadata.coords.get(at);
        start..start.saturating_add(self.metadata.coords.get(at + self.ndim()))
    }

    pub(crate) fn region(&self, position: u32) -> Region {
        let (at, n) = (self.coords(position), self.ndim());
        Region {
            offsets: self.metadata.coords.range(at, n),
            lengths: self.metadata.coords.range(at + n, n),
        }
    }
}
