//! What plans of ranks tell the coordinator and the writer, in the data of the format.

use crate::grid::Grid;
use bytes::Bytes;
use reshard_model::Dims;
use reshard_plan::{PlanError, Result, TensorWrite};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The grid on which a tensor is stored, as the plans count its elements: one axis more if it is stored flattened.
pub(crate) fn grid_of(t: &TensorWrite, chunk: &Dims) -> Option<Grid> {
    Grid::new(t.global_shape.clone(), chunk.clone())
}

/// What the plan of a rank says to the writer: the shape of a chunk of each array of which the rank writes something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunks(pub(crate) BTreeMap<Box<str>, Dims>);

impl Chunks {
    pub(super) fn pack(&self) -> Result<Bytes> {
        pack(self)
    }

    /// What [`ByChunks`](super::ByChunks) has put into a plan.
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        unpack(bytes)
    }
}

pub(super) fn pack(what: &impl Serialize) -> Result<Bytes> {
    serde_json::to_vec(what)
        .map(Bytes::from)
        .map_err(PlanError::planner)
}

pub(super) fn unpack<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(PlanError::planner)
}
