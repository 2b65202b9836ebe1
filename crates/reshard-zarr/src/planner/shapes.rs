//! The shapes of chunks, which plans carry in the data of the format.

use crate::grid::Grid;
use bytes::Bytes;
use reshard_model::{Dims, FlatStateDict, Sharded};
use reshard_plan::{PlanError, Result, TensorWrite, WriteItem};
use std::collections::BTreeMap;

/// The grid on which a tensor is stored, as the plans count its elements: one axis more if it is stored flattened.
pub(crate) fn grid_of(t: &TensorWrite, chunk: &Dims) -> Option<Grid> {
    Grid::new(t.global_shape.clone(), chunk.clone())
}

/// The shape of a chunk of each array, by key. A local plan has the grids that leaves declare, and a global one those of all arrays of which
/// the rank writes something.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkShapes(pub(crate) BTreeMap<Box<str>, Dims>);

impl ChunkShapes {
    /// Those of arrays whose first leaf declares another grid than its own shape: Megatron Core takes the grid of the leaf at the origin,
    /// whatever the shape of that leaf is.
    pub(super) fn declared(items: &[WriteItem], state: &FlatStateDict) -> Self {
        let chunk = |item: &WriteItem| {
            let t = item.tensor()?;
            let Some((_, Sharded::Tensor(leaf))) = state.get_index(item.source as usize) else {
                return None;
            };
            let is_first = leaf.global_offset.iter().all(|n| *n == 0) && *leaf.key == *item.key;
            if !is_first || t.original_shape.is_some() || leaf.global_shape != t.global_shape {
                return None;
            }
            let chunk = leaf.max_allowed_chunks().ok()?;
            let other = chunk != t.region.lengths && !chunk.contains(&0);
            other.then(|| (item.key.clone(), chunk))
        };
        Self(items.iter().filter_map(chunk).collect())
    }

    pub(super) fn pack(&self) -> Result<Bytes> {
        if self.0.is_empty() {
            return Ok(Bytes::new());
        }
        let packed = serde_json::to_vec(&self.0);
        packed.map(Bytes::from).map_err(PlanError::planner)
    }

    /// What is in the data of a plan.
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Self> {
        match bytes {
            [] => Ok(Self::default()),
            _ => Ok(Self(
                serde_json::from_slice(bytes).map_err(PlanError::planner)?,
            )),
        }
    }
}
