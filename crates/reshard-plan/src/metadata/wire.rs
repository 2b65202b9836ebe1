//! Metadata as ranks send it to each other.

use super::{ChunkId, Entry, Metadata, TensorId, TensorProperties};
use crate::PlannerData;
use reshard_model::{DType, Dims, Region};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A tensor or an object.
#[derive(Serialize, Deserialize)]
enum Row {
    Tensor {
        key: String,
        dtype: DType,
        shape: Dims,
        properties: TensorProperties,
        original: Option<Dims>,
    },
    Object(String),
}

/// Everything but annotations, in the order of the numbers.
#[derive(Serialize, Deserialize)]
struct Table {
    rows: Vec<Row>,
    chunks: Vec<(TensorId, Region)>,
    planner_data: Option<PlannerData>,
}

/// Without annotations.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = |entry: Entry<'_>| match entry {
            Entry::Object(_, key) => Row::Object(key.into()),
            Entry::Tensor(t) => Row::Tensor {
                key: t.key().into(),
                dtype: t.dtype(),
                shape: t.shape(),
                properties: t.properties(),
                original: t.original_shape(),
            },
        };
        let ids = (0u32..).map(ChunkId).take(self.chunk_count());
        let chunks = ids.filter_map(|id| self.chunk(id));
        let table = Table {
            rows: self.entries().map(row).collect(),
            chunks: chunks.map(|(t, region)| (t.id(), region)).collect(),
            planner_data: self.planner_data().cloned(),
        };
        table.serialize(serializer)
    }
}

/// With the same numbers, and without annotations.
impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = Table::deserialize(deserializer)?;
        table.build().map_err(D::Error::custom)
    }
}

impl Table {
    fn build(self) -> crate::Result<Metadata> {
        let mut builder = Metadata::builder();
        for row in self.rows {
            match row {
                Row::Object(key) => {
                    builder.add_object(&key)?;
                }
                Row::Tensor {
                    key,
                    dtype,
                    shape,
                    properties,
                    original,
                } => {
                    let id = builder.add_tensor(&key, dtype, &shape, properties)?;
                    if let Some(original) = original {
                        builder.set_original_shape(id, original);
                    }
                }
            }
        }
        for (tensor, region) in self.chunks {
            builder.add_chunk(tensor, &region)?;
        }
        builder.finish(self.planner_data)
    }
}
