//! Metadata as ranks send it to each other.

use super::{ChunkId, Entry, Metadata, MetadataBuilder, TensorId, TensorProperties};
use crate::PlannerData;
use reshard_model::{DType, Dims, Region};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::borrow::Cow;

/// A tensor or an object.
#[derive(Serialize, Deserialize)]
pub(super) enum Row<'m> {
    Tensor {
        key: Cow<'m, str>,
        dtype: DType,
        shape: Dims,
        properties: TensorProperties,
        original: Option<Dims>,
    },
    Object(Cow<'m, str>),
}

impl<'m> Row<'m> {
    pub(super) fn of(entry: Entry<'m>) -> Self {
        match entry {
            Entry::Object(_, key) => Self::Object(key.into()),
            Entry::Tensor(t) => Self::Tensor {
                key: t.key().into(),
                dtype: t.dtype(),
                shape: t.shape(),
                properties: t.properties(),
                original: t.original_shape(),
            },
        }
    }

    pub(super) fn add_to(self, builder: &mut MetadataBuilder) -> crate::Result<()> {
        match self {
            Self::Object(key) => drop(builder.add_object(&key)?),
            Self::Tensor {
                key,
                dtype,
                shape,
                properties,
                original,
            } => {
                let id = builder.add_tensor(&key, dtype, &shape, properties)?;
                builder.set_original_shape(id, original);
            }
        }
        Ok(())
    }
}

/// Everything but annotations, in the order of the numbers.
#[derive(Serialize, Deserialize)]
struct Table<'m> {
    rows: Vec<Row<'m>>,
    chunks: Vec<(TensorId, Region)>,
    planner_data: Option<PlannerData>,
}

/// Without annotations.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ids = (0u32..).map(ChunkId).take(self.chunk_count());
        let chunks = ids.filter_map(|id| self.chunk(id));
        let table = Table {
            rows: self.entries().map(Row::of).collect(),
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

impl Table<'_> {
    fn build(self) -> crate::Result<Metadata> {
        let mut builder = Metadata::builder();
        for row in self.rows {
            row.add_to(&mut builder)?;
        }
        for (tensor, region) in self.chunks {
            builder.add_chunk(tensor, &region)?;
        }
        builder.finish(self.planner_data)
    }
}
