//! The table of a checkpoint, as the reading rank sends it to the others.

use reshard_comm::Cause;
use reshard_model::{DType, Dims, ErrorKind, Region};
use reshard_plan::{ChunkId, Entry, Metadata, PlannerData, TensorId, TensorProperties};
use reshard_strategy::{Result, StorageReader, StrategyError, cause};
use serde::{Deserialize, Serialize};

/// A tensor or an object of the table.
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

/// Everything on which the plans of ranks depend. The numbers of its chunks are those of the open checkpoint.
#[derive(Serialize, Deserialize)]
pub(super) struct Description {
    rows: Vec<Row>,
    chunks: Vec<(TensorId, Region)>,
    planner_data: Option<PlannerData>,
    pub(super) not_understood: Vec<String>,
    pub(super) reads_columns_together: bool,
}

impl Description {
    /// The description of an open checkpoint. Fails if `keys` has one that is stored but can't be read.
    pub(super) fn of<'k>(
        from: &dyn StorageReader,
        keys: impl IntoIterator<Item = &'k String>,
    ) -> Result<Self, Cause> {
        let metadata = from.metadata();
        for key in keys {
            from.permits(key).map_err(|e| cause(&e))?;
            let why = match metadata.tensor(key) {
                Some(_) => None,
                None => from.why_not(key),
            };
            if let Some(what) = why {
                let what = format!("{what} is not supported by {}", from.key());
                return Err(Cause::new(ErrorKind::Unsupported, what));
            }
        }
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
        let ids = (0u32..).map(ChunkId).take(metadata.chunk_count());
        let chunks = ids.filter_map(|id| metadata.chunk(id));
        Ok(Self {
            rows: metadata.entries().map(row).collect(),
            chunks: chunks.map(|(t, region)| (t.id(), region)).collect(),
            planner_data: metadata.planner_data().cloned(),
            not_understood: from.not_understood(),
            reads_columns_together: from.reads_columns_together(),
        })
    }

    /// Makes the table again, with the same numbers.
    pub(super) fn metadata(&mut self) -> Result<Metadata> {
        let mut builder = Metadata::builder();
        for row in std::mem::take(&mut self.rows) {
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
        for (tensor, region) in std::mem::take(&mut self.chunks) {
            builder.add_chunk(tensor, &region)?;
        }
        builder
            .finish(self.planner_data.take())
            .map_err(StrategyError::from)
    }
}
