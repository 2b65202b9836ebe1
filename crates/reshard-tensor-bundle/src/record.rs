//! What reshard notes beside a bundle, because a bundle has no place for it.

use bytes::Bytes;
use reshard_model::Dims;
use reshard_plan::{PlannerData, TensorProperties};
use reshard_strategy::{is_default, known_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of its form.
const SCHEMA: u32 = 1;

/// All of it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(deserialize_with = "known_schema::<SCHEMA, _>")]
    schema: u32,
    /// The CRC-32C of the index that it belongs to.
    pub(crate) index: u32,
    /// Tensors of which something is to be noted, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tensors: BTreeMap<String, OfTensor>,
    /// Objects that are not what their entries say, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) objects: BTreeMap<String, Form>,
    /// The keys of tensors that are stored under other names, by these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) names: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) planner_data: Option<PlannerData>,
}

/// What is noted of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OfTensor {
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) properties: TensorProperties,
    /// The shape of a tensor that is stored flattened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) original_shape: Option<Dims>,
}

/// How an object became an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// It is what the entry says: a string, strings, or elements of a type that has no counterpart.
    #[default]
    Stored,
    /// A string that is bytes, although it would be text.
    Bytes,
    /// A string that is what `torch.save` writes.
    TorchSave,
    /// A number that is no tensor.
    Number,
}

impl Form {
    /// In the order of their numbers.
    pub(crate) const ALL: [Self; 4] = [Self::Stored, Self::Bytes, Self::TorchSave, Self::Number];
}

impl Record {
    /// Whether there is anything to note.
    pub(crate) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
            && self.objects.is_empty()
            && self.names.is_empty()
            && self.planner_data.is_none()
    }

    pub(crate) fn to_bytes(&self) -> serde_json::Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from)
    }

    /// What is noted of an index with this checksum. What is noted of another one is nothing.
    pub(crate) fn parse(bytes: &[u8], index: u32) -> serde_json::Result<Option<Self>> {
        let record: Self = serde_json::from_slice(bytes)?;
        Ok((record.index == index).then_some(record))
    }

    pub(crate) fn new(planner_data: Option<PlannerData>) -> Self {
        Self {
            schema: SCHEMA,
            planner_data,
            ..Self::default()
        }
    }
}
