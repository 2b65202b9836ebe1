//! `reshard-zarr.json`: the checksums of chunks, and what zarr has no place for.

use crate::{array::find::Texts, described::Described};
use bytes::Bytes;
use reshard_plan::{PlannerData, TensorProperties};
use reshard_strategy::{is_default, known_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of its form.
pub(crate) const SCHEMA: u32 = 1;

/// All of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(deserialize_with = "known_schema::<SCHEMA, _>")]
    pub(crate) schema: u32,
    /// By key.
    pub(crate) arrays: BTreeMap<String, ArrayRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) planner_data: Option<PlannerData>,
}

/// What it says of an array.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ArrayRecord {
    /// The CRC-32 of its `.zarray`.
    pub(crate) zarray: u32,
    /// The CRC-32 of each chunk's file, in row-major order of their positions. None for a chunk that was not written.
    pub(crate) chunks: Vec<Option<u32>>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) properties: TensorProperties,
    /// What its description says, so that opening need not read it. Records of older versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) described: Option<Described>,
}

impl ArrayRecord {
    /// The file of its description and the text, if that can be made again exactly as it was written.
    fn description(&self) -> Option<(&'static str, Bytes)> {
        let described = self.described.as_ref()?;
        let text = described.text()?.ok()?;
        (crc32fast::hash(&text) == self.zarray).then(|| (described.file(), text))
    }
}

impl Record {
    /// The descriptions that need not be read.
    pub(crate) fn texts(&self) -> Texts {
        let text = |(key, array): (&String, &ArrayRecord)| {
            let (file, text) = array.description()?;
            Some((format!("{key}/{file}"), text))
        };
        let of: BTreeMap<String, Bytes> = self.arrays.iter().filter_map(text).collect();
        let all = of.len() == self.arrays.len();
        Texts { of, all }
    }

    pub(crate) fn to_bytes(&self) -> serde_json::Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from)
    }
}
