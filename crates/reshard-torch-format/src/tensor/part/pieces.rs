//! The part of a tensor that one rank holds, and how attributes of Python's objects are found.

use super::super::TensorRef;
use crate::{
    Error, Result,
    pickle::{Graph, Id, Node},
};
use reshard_model::{DType, Dims, Region};
use std::sync::Arc;

/// Most attributes of an object that is looked at. Many tensors may refer to one object.
const MAX_FIELDS: usize = 100;

/// The part of a global tensor that one rank holds: a DTensor, or a ShardedTensor of FSDP1.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartRef {
    /// Element type.
    pub dtype: DType,
    /// The shape of the global tensor.
    pub shape: Dims,
    /// Whether it requires gradients.
    pub requires_grad: bool,
    /// The boxes of the global tensor that the rank holds, and where the elements of each lie. No box is empty.
    pub pieces: Vec<(Region, TensorRef)>,
    /// The rank; `None` if the pickle does not say, because the rank holds nothing of the tensor.
    pub rank: Option<u32>,
    /// All ranks that hold the tensor.
    pub ranks: Arc<[u32]>,
    /// How the tensor is divided, in words. All ranks say the same.
    pub layout: Box<str>,
}

impl TensorRef {
    /// A box of it: the same storage, with another first element.
    pub(super) fn narrow(&self, region: &Region) -> Result<Self> {
        let mut offset = Some(self.offset);
        for (at, stride) in region.offsets.iter().zip(&self.strides) {
            offset = at.checked_mul(*stride).and_then(|n| n.checked_add(offset?));
        }
        let out = Self {
            offset: offset.ok_or_else(|| wrong("its elements can't be counted"))?,
            shape: region.lengths.clone(),
            ..self.clone()
        };
        out.layout()?;
        Ok(out)
    }
}

/// An attribute of an object that was not called, or an item of a dict. An object with slots has two dicts of attributes.
pub(super) fn field(graph: &Graph<'_>, id: Id, name: &str) -> Result<Option<Id>> {
    let state = match graph.node(id) {
        Node::Call(call) => match call.state {
            Some(state) => state,
            None => return Ok(None),
        },
        _ => id,
    };
    let single = [state];
    let dicts = match graph.node(state) {
        Node::Tuple(both) => both.as_slice(),
        _ => &single,
    };
    for dict in dicts.iter().take(2) {
        let Node::Dict(pairs) = graph.node(*dict) else {
            continue;
        };
        if pairs.len() > MAX_FIELDS {
            let what = format!(
                "an object with {} attributes (at most {MAX_FIELDS})",
                pairs.len()
            );
            return Err(graph.unsupported(*dict, what));
        }
        let mut found = pairs.iter().rev();
        if let Some((_, value)) = found.find(|(key, _)| graph.as_str(*key) == Some(name)) {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

pub(super) fn wrong(what: &str) -> Error {
    Error::tensor(
        "?",
        format!("a distributed tensor is described wrongly: {what}"),
    )
}
