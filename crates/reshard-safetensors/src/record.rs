//! `reshard-safetensors.json`: checksums, and what safetensors has no place for.

use crate::header;
use bytes::Bytes;
use reshard_model::DType;
use reshard_plan::{PlannerData, TensorProperties};
use reshard_storage::Name;
use reshard_strategy::{is_default, known_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of its form.
pub(crate) const SCHEMA: u32 = 1;

/// What is wrong with a header that is not the one that reshard noted.
pub(crate) const CHANGED: &str = "its header is not the one that was written, judging by reshard-safetensors.json; if it was changed on purpose, remove reshard-safetensors.json";

/// A header with more bytes is not in it: it is read where it lies, within the limits of a reader.
pub(crate) const LONGEST_HEADER: u64 = 1 << 20;

/// All of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(deserialize_with = "known_schema::<SCHEMA, _>")]
    pub(crate) schema: u32,
    /// The CRC-32 of all bytes before the first tensor, of each file.
    pub(crate) files: BTreeMap<Name, u32>,
    /// The header of each file, so that opening need not read it. Long ones are left out, and records of older versions have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<Name, String>,
    /// By key.
    pub(crate) tensors: BTreeMap<Box<str>, TensorRecord>,
    /// Leaves that are no tensors, by key. They lie in a file of their own, in the order of their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) objects: BTreeMap<Box<str>, ObjectRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) planner_data: Option<PlannerData>,
}

/// What it says of a tensor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TensorRecord {
    /// The CRC-32 of its bytes in each file that has some.
    pub(crate) parts: BTreeMap<Name, u32>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) properties: TensorProperties,
    /// The element type, if safetensors has none of this name. The file has bytes then, with one axis more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dtype: Option<DType>,
}

/// What it says of an object.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ObjectRecord {
    /// Its first byte, and the byte behind its last one.
    pub(crate) bytes: (u64, u64),
    /// Their CRC-32.
    pub(crate) crc: u32,
}

impl Record {
    /// All bytes before the first tensor of a file, if they can be made again exactly as they were written.
    pub(crate) fn header(&self, file: &Name) -> Option<(Vec<u8>, u32)> {
        let (text, crc) = (self.headers.get(file)?, *self.files.get(file)?);
        if text.len() as u64 > LONGEST_HEADER {
            return None;
        }
        let all = header::framed(text);
        (crc32fast::hash(&all) == crc).then_some((all, crc))
    }

    pub(crate) fn to_bytes(&self) -> serde_json::Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from)
    }
}
