//! What ranks tell each other: what to write, what to read.

use crate::{ChunkId, Exchange, FlatView, ObjectId, PlanError, Result};
use bytes::Bytes;
use reshard_model::{DType, Dims, Path, PathOfKey, Region};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Identity of one stored piece: DCP's `MetadataIndex` without its hint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceId {
    /// Key in the checkpoint.
    pub key: Box<str>,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MemoryFormat {
    /// Row-major.
    #[default]
    Contiguous,
    /// Channels last.
    ChannelsLast,
    /// As the source has it.
    Preserve,
}

/// What DCP keeps of a tensor beside type and shape. The layout is always `torch.strided`.
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
    /// What else is kept of the tensor.
    pub properties: TensorProperties,
}

impl TensorWrite {
    /// Bytes of the chunk.
    pub fn bytes(&self) -> u64 {
        self.region.volume().unwrap_or(u64::MAX).saturating_mul(self.dtype.size())
    }
}

/// What a [`WriteItem`] writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteKind {
    /// A chunk of a tensor.
    Tensor(TensorWrite),
    /// An object.
    Object {
        /// About how many bytes it has, where that is known; for balance only.
        bytes_hint: u64,
    },
}

/// A piece that a rank writes.
///
/// `source` says which leaf of the rank's flat state gives the elements, `key` and `kind` what they are called on disk. That
/// these are apart lets a planner rename, recast or cut without touching data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WriteItem {
    /// Key in the checkpoint.
    pub key: Box<str>,
    /// Position of the leaf in the flat state.
    pub source: u32,
    /// What is written.
    pub kind: WriteKind,
}

impl WriteItem {
    /// Identity of the piece.
    pub fn id(&self) -> PieceId {
        PieceId { key: self.key.clone(), offset: self.tensor().map(|t| t.region.offsets.clone()) }
    }

    /// The chunk, if it is one.
    pub fn tensor(&self) -> Option<&TensorWrite> {
        if let WriteKind::Tensor(t) = &self.kind { Some(t) } else { None }
    }

    /// What it costs its rank: bytes of the chunk, or about as many as the object has; at least 1.
    pub fn cost(&self) -> u64 {
        match &self.kind {
            WriteKind::Tensor(t) => t.bytes().max(1),
            WriteKind::Object { bytes_hint } => (*bytes_hint).max(1),
        }
    }
}

/// Where in the checkpoint a [`ReadItem`] finds its piece; the format has a table by these ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stored {
    /// A chunk of a tensor.
    Chunk(ChunkId),
    /// An object.
    Object(ObjectId),
}

/// A part of a stored piece, and where it goes.
///
/// Both regions have the same lengths, and as many axes as the global tensor. The first ones of `dest_region` are those that
/// the leaf prepends, of length 1; the leaf's data lacks them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadItem {
    /// Position of the leaf in the flat template.
    pub dest: u32,
    /// Where in the leaf's part of the tensor, whose first element is at 0. No axes for an object.
    pub dest_region: Region,
    /// What is read.
    pub piece: PieceId,
    /// The same, as the format knows it.
    pub stored: Stored,
    /// Which part of the chunk, whose first element is at 0; with `flat`, which part of the tensor of which the chunk is a range. No
    /// axes for an object.
    pub stored_region: Region,
    /// What the chunk is a range of, where `stored_region` does not have its axes.
    pub flat: Option<Box<FlatView>>,
}

/// DCP's `planner_data`: what planners put into the commit record beside items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlannerData {
    /// Where the leaf of each key lay in the nested state dict: what DCP's own planner puts there.
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
        if let Self::Paths(p) = self { p.get(key) } else { None }
    }
}

/// What one rank writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SavePlan {
    /// Pieces.
    pub items: Vec<WriteItem>,
    /// What the format tells itself on the way from its `prepare_local_plan` by the coordinator to its layout. Nobody else reads it.
    pub storage_data: Bytes,
    /// For the commit record.
    pub planner_data: Option<PlannerData>,
    /// How many of the items, in order, lie in each file of this rank, where somebody decided that; else the format's affair.
    pub files: Vec<u32>,
}

impl SavePlan {
    /// Of these pieces.
    pub fn new(items: Vec<WriteItem>) -> Self {
        Self { items, ..Self::default() }
    }

    /// With data for the commit record.
    #[must_use]
    pub fn with_planner_data(self, data: PlannerData) -> Self {
        Self { planner_data: Some(data), ..self }
    }

    /// The items of each file; all in one where nobody decided otherwise, and no file when there are none.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] when `files` counts other items than there are: a planner changed their number afterwards.
    pub fn by_file(&self) -> Result<Vec<&[WriteItem]>> {
        if self.files.is_empty() {
            return Ok(if self.items.is_empty() { Vec::new() } else { vec![&self.items] });
        }
        let mut rest = self.items.as_slice();
        let mut out = Vec::with_capacity(self.files.len());
        for &n in &self.files {
            let Some((file, more)) = rest.split_at_checked(n as usize) else { break };
            out.push(file);
            rest = more;
        }
        if out.len() == self.files.len() && rest.is_empty() {
            return Ok(out);
        }
        let counted: u64 = self.files.iter().map(|n| u64::from(*n)).sum();
        let what = format!(
            "a policy laid out {counted} items, now there are {}; a planner's finish_plan may not add or drop items then",
            self.items.len()
        );
        Err(PlanError::invalid("", what))
    }
}

/// A part of a leaf that the checkpoint has nothing for, and that becomes zeros (`allow_shape_mismatch`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fill {
    /// Position of the leaf in the flat template.
    pub dest: u32,
    /// Where in the leaf's part of the tensor, as in [`ReadItem::dest_region`].
    pub dest_region: Region,
}

/// A tensor whose elements change their type on the way in, as [`Cast`](crate::Cast) allowed.
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
    /// Parts of pieces, in the order of leaves, then of chunks.
    pub items: Vec<ReadItem>,
    /// What this rank reads for others, and gets from others instead of reading it. The default planners make none.
    pub exchange: Exchange,
    /// What the format tells itself on the way from its `prepare_local_plan` by the coordinator to its reads. Nobody else reads it.
    pub storage_data: Bytes,
    /// What a planner tells itself on the way from its local plan by the coordinator to its `finish_plan`.
    pub planner_data: Option<PlannerData>,
    /// What becomes zeros.
    pub fills: Vec<Fill>,
    /// What changes its type.
    pub recasts: Vec<Recast>,
    /// Leaves that the checkpoint has nothing for, which `allow_partial_load` leaves as they are.
    pub missing: Vec<u32>,
    /// Keys of the checkpoint that this rank, and after the global plan that no rank, asked for; only when a planner is
    /// asked to list them.
    pub unexpected: Vec<Box<str>>,
}

impl LoadPlan {
    /// Of these parts.
    pub fn new(items: Vec<ReadItem>) -> Self {
        Self { items, ..Self::default() }
    }
}
