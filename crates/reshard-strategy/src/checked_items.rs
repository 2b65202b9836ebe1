use reshard_plan::{ChunkId, ObjectId};
use std::collections::BTreeSet;

/// Which stored items a check reads, to look at their checksums. Structure, coverage and sizes are checked of all items in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckedItems {
    /// None.
    #[default]
    None,
    /// These.
    Some {
        /// Chunks of tensors.
        chunks: BTreeSet<ChunkId>,
        /// Objects.
        objects: BTreeSet<ObjectId>,
    },
    /// All.
    All,
}

impl CheckedItems {
    /// Whether this chunk is read.
    pub fn has_chunk(&self, chunk: ChunkId) -> bool {
        match self {
            Self::None => false,
            Self::Some { chunks, .. } => chunks.contains(&chunk),
            Self::All => true,
        }
    }

    /// Whether this object is read.
    pub fn has_object(&self, object: ObjectId) -> bool {
        match self {
            Self::None => false,
            Self::Some { objects, .. } => objects.contains(&object),
            Self::All => true,
        }
    }

    /// Whether all items are read. Then what belongs to no item is read, too.
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// All items for a full check, and none for a quick one.
impl From<bool> for CheckedItems {
    fn from(full: bool) -> Self {
        if full { Self::All } else { Self::None }
    }
}
