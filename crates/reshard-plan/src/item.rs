//! What ranks send to each other while they plan: what to write, and what to read.

use crate::{ChunkId, Exchange, ObjectId, PlanError, Result, SaveExchange};
use bytes::Bytes;
use reshard_model::{DType, Dims, FlatView, Path, PathOfKey, Region};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Identity of one stored chunk or object: DCP's `MetadataIndex` without its hint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceId {
    /// Key in the checkpoint. All chunks of a tensor share it.
    pub key: Arc<str>,
    /// First element of a chunk; `None` for an object. A scalar's is `[]`.
    pub offset: Option<Dims>,
}

/// `key`, or `key[4, 0]`.
impl fmt::Display for PieceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.offset {
            None => f.write_str(&self.key),
            Some(offset) => write!(f, "{}{offset}", self.key),
        }
    }
}

/// torch.memory_format, as DCP stores it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum MemoryFormat {
    /// Row-major.
    #[default]
    Contiguous,
    /// Channels last.
    ChannelsLast,
    /// The format of the source.
    Preserve,
}

/// What DCP stores about a tensor besides type and shape. The layout is always `torch.strided`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorProperties {
    /// Whether autograd recorded it.
    pub requires_grad: bool,
    /// Whether it lay in pinned memory.
    pub pin_memory: bool,
    /// Memory format.
    pub memory_format: MemoryFormat,
    /// Strides of the local tensor, in elements: stored since PyTorch 2.15 only.
    pub strides: Option<Box<[u64]>>,
}

/// A chunk to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorWrite {
    /// Element type as stored.
    pub dtype: DType,
    /// Shape of the whole tensor.
    pub global_shape: Dims,
    /// The chunk.
    pub region: Region,
    /// What else is stored about the tensor.
    pub properties: TensorProperties,
    /// The shape of the tensor if it is stored flattened ([`TensorRef::original_shape`](crate::TensorRef::original_shape)). Then
    /// `global_shape` and `region` are as stored.
    pub original_shape: Option<Dims>,
}

impl TensorWrite {
    /// Bytes of the chunk.
    pub fn bytes(&self) -> u64 {
        self.region
            .volume()
            .unwrap_or(u64::MAX)
            .saturating_mul(self.dtype.size())
    }
}

/// What a [`WriteItem`] writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteKind {
    /// A chunk of a tensor.
    Tensor(TensorWrite),
    /// An object.
    Object {
        /// About how many bytes it has, if that is known. It is used only to balance ranks.
        bytes_hint: u64,
    },
}

/// An item: a chunk or an object that a rank writes.
///
/// `source` is the leaf of the rank's flat state that has the data. `key` and `kind` say how they are stored. Because these are separate, a
/// planner can rename, cast or cut without touching data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WriteItem {
    /// Key in the checkpoint.
    pub key: Box<str>,
    /// Position of the leaf in the flat state; from [`TAKEN`](Self::TAKEN) on, an item that another rank gives.
    pub source: u32,
    /// What is written.
    pub kind: WriteKind,
}

impl WriteItem {
    /// Identity of the chunk or object.
    pub fn id(&self) -> PieceId {
        PieceId {
            key: (&*self.key).into(),
            offset: self.tensor().map(|t| t.region.offsets.clone()),
        }
    }

    /// The chunk, if it is one.
    pub fn tensor(&self) -> Option<&TensorWrite> {
        if let WriteKind::Tensor(t) = &self.kind {
            Some(t)
        } else {
            None
        }
    }

    /// What it costs its rank: the bytes of the chunk, or an estimate for an object; at least 1.
    pub fn cost(&self) -> u64 {
        match &self.kind {
            WriteKind::Tensor(t) => t.bytes().max(1),
            WriteKind::Object { bytes_hint } => (*bytes_hint).max(1),
        }
    }
}

/// The stored chunk or object of a [`ReadItem`]. The format has a table of locations by these ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stored {
    /// A chunk of a tensor.
    Chunk(ChunkId),
    /// An object.
    Object(ObjectId),
}

/// An item: a part of a stored chunk, or a stored object, and where it goes.
///
/// Both regions have the same lengths, and as many axes as the global tensor. The first axes of `dest_region` are those that the leaf
/// prepends. Their length is 1, and the leaf's data lacks them. Regions of a flattened leaf are boxes of its local chunk, in the leaf's range.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadItem {
    /// Position of the leaf in the flat template.
    pub dest: u32,
    /// The region of the leaf that is filled, relative to the start of the leaf. No axes for an object.
    pub dest_region: Region,
    /// The stored chunk or object that is read.
    pub piece: PieceId,
    /// The same, by the id that the format knows.
    pub stored: Stored,
    /// The wanted region of the chunk, relative to the start of the chunk. With `flat`, the region of the tensor of which the chunk is a
    /// range. No axes for an object.
    pub stored_region: Region,
    /// The tensor of which the chunk is a range, if `stored_region` does not have the axes of the chunk.
    pub flat: Option<Box<FlatView>>,
}

/// DCP's `planner_data`: what planners put into the format record in addition to items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlannerData {
    /// The path of each key's leaf in the nested state dict. DCP's own planner puts this there.
    Paths(PathOfKey),
    /// A str.
    Str(Box<str>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<PlannerData>),
}

impl PlannerData {
    /// The path of a key, if these are paths.
    pub fn path(&self, key: &str) -> Option<&Path> {
        if let Self::Paths(p) = self {
            p.get(key)
        } else {
            None
        }
    }

    /// What is left without the keys that start with `prefix`.
    #[must_use]
    pub fn without(&self, prefix: &str) -> Self {
        let mut left = self.clone();
        if let Self::Paths(paths) = &mut left {
            paths.retain(|key, _| !key.starts_with(prefix));
        }
        left
    }
}

/// What one rank writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
#[non_exhaustive]
pub struct SavePlan {
    /// What it writes.
    pub items: Vec<WriteItem>,
    /// Which of them other ranks give, and what this rank gives to others. The default planner makes no exchange.
    pub exchange: SaveExchange,
    /// Data of the format. Its `prepare_local_plan` or `prepare_global_plan` sets them, its layout reads them, and nobody else does.
    pub storage_data: Bytes,
    /// For the format record.
    #[setters(generate, strip_option)]
    pub planner_data: Option<PlannerData>,
    /// How many of the items, in order, go into each file of this rank. Empty if the format decides.
    pub files: Vec<u32>,
}

impl SavePlan {
    /// A plan of these items.
    pub fn new(items: Vec<WriteItem>) -> Self {
        Self {
            items,
            ..Self::default()
        }
    }

    /// The bytes of the elements that it writes. Objects count by their [`bytes_hint`](WriteKind::Object::bytes_hint).
    pub fn bytes(&self) -> u64 {
        let of = |item: &WriteItem| match &item.kind {
            WriteKind::Tensor(tensor) => tensor.bytes(),
            WriteKind::Object { bytes_hint } => *bytes_hint,
        };
        self.items.iter().map(of).fold(0, u64::saturating_add)
    }

    /// The items of each file. If nobody decided on files, all items are in one file. If there are no items, there is no file.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if the numbers in `files` don't add up to the number of items, because a planner changed the items afterwards.
    pub fn by_file(&self) -> Result<Vec<&[WriteItem]>> {
        if self.files.is_empty() {
            return Ok(if self.items.is_empty() {
                Vec::new()
            } else {
                vec![&self.items]
            });
        }
        let mut rest = self.items.as_slice();
        let file = |n: &u32| rest.split_off(..*n as usize);
        let files: Option<Vec<_>> = self.files.iter().map(file).collect();
        if let Some(files) = files.filter(|_| rest.is_empty()) {
            return Ok(files);
        }
        let counted: u64 = self.files.iter().map(|n| u64::from(*n)).sum();
        let what = format!(
            "a policy has placed {counted} items, but now there are {}; with a policy, a planner's finish_plan must not add or remove items",
            self.items.len()
        );
        Err(PlanError::invalid("", what))
    }
}

/// A part of a leaf that the checkpoint does not have, and that becomes zeros (`allow_shape_mismatch`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fill {
    /// Position of the leaf in the flat template.
    pub dest: u32,
    /// The region of the leaf, as in [`ReadItem::dest_region`].
    pub dest_region: Region,
}

/// A tensor whose elements are cast while they are loaded, as [`Cast`](crate::Cast) allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recast {
    /// Position of the leaf in the flat template.
    pub dest: u32,
    /// Stored type.
    pub from: DType,
    /// The leaf's type.
    pub to: DType,
}

/// What one rank reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadPlan {
    /// What it reads, in the order of leaves, then of chunks.
    pub items: Vec<ReadItem>,
    /// What this rank reads for others, and what others read for it. The default planners make no exchange.
    pub exchange: Exchange,
    /// Data of the format. Its `prepare_local_plan` or `prepare_global_plan` sets them, its reads get them, and nobody else does.
    pub storage_data: Bytes,
    /// Data of the planner. Its local or global plan sets them, and its `finish_plan` gets them.
    pub planner_data: Option<PlannerData>,
    /// The regions that become zeros.
    pub fills: Vec<Fill>,
    /// The tensors that are cast.
    pub recasts: Vec<Recast>,
    /// Leaves of this rank that the checkpoint does not have, if that is no error. They stay as they are.
    pub not_stored: Vec<u32>,
    /// Keys that this rank asks for though none of its items reads them, such as those of empty regions.
    pub requested: Vec<Box<str>>,
    /// After the global plan: what no rank asks for, by its position among the [`entries`](crate::Metadata::entries) of the checkpoint, and
    /// after these among what is [not understood](crate::LoadContext::not_understood). Empty unless the planner looks for it.
    pub not_requested: Vec<u32>,
}

impl LoadPlan {
    /// A plan of these items.
    pub fn new(items: Vec<ReadItem>) -> Self {
        Self {
            items,
            ..Self::default()
        }
    }
}
