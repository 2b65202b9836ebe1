//! `example.index.json`: what is stored, and where it lies.

use reshard_model::{DType, Dims, Region};
use reshard_plan::{PlannerData, TensorProperties};
use reshard_storage::Name;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The format record.
pub(crate) const INDEX: &str = "example.index.json";

/// Bytes of the checksum behind each item.
pub(crate) const CRC: u64 = 4;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) objects: Vec<ObjectEntry>,
    /// What the planner wants kept.
    pub(crate) planner_data: Option<PlannerData>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TensorEntry {
    pub(crate) key: Box<str>,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    /// What a load does not need, and a training job does.
    pub(crate) properties: TensorProperties,
    pub(crate) chunks: Vec<ChunkEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChunkEntry {
    pub(crate) region: Region,
    pub(crate) place: Place,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ObjectEntry {
    pub(crate) key: Box<str>,
    pub(crate) place: Place,
}

/// Where an item lies, checksum included. A [`Name`] is checked when it is parsed: it can't leave the checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) file: Name,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Place {
    /// The item without its checksum, and the checksum, as bytes of the file; `None` when the numbers make no sense.
    pub(crate) fn ranges(&self) -> Option<(Range<u64>, Range<u64>)> {
        let end = self.offset.checked_add(self.length)?;
        let middle = end.checked_sub(CRC).filter(|m| *m >= self.offset)?;
        Some((self.offset..middle, middle..end))
    }
}
