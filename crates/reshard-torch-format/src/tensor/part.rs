//! Parts of global tensors: DTensors and ShardedTensors, as one rank pickles them.

mod mesh;
mod pieces;
mod sharded;
mod table;

pub use mesh::{Mesh, Spread};
pub use pieces::PartRef;
pub use table::{SpreadFile, SpreadGroup, SpreadPath, SpreadTable};

pub(crate) use mesh::Meshes;
use pieces::{field, wrong};

use super::{
    TensorRef,
    parse::{Wrapped, dims, tensor_of},
};
use crate::{
    Budget, Result,
    pickle::{Graph, How, Id, Node},
};
use reshard_model::{DType, Dims, Layout, Region};
use std::sync::Arc;

/// The two classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    DTensor,
    ShardedTensor,
}

/// How a pickle makes a tensor of one of the two classes.
struct Made<'g> {
    class: Class,
    /// The arguments of `_rebuild_wrapper_subclass`: class, element type, shape, strides, offset, layout, device, `requires_grad`.
    args: &'g [Id],
    state: Id,
    /// What a parameter around it says of gradients.
    grad: Option<Id>,
}

/// Whether a node is a DTensor or a ShardedTensor.
pub(crate) fn is_part(graph: &Graph<'_>, id: Id) -> bool {
    made(graph, id).is_some()
}

fn made<'g>(graph: &'g Graph<'_>, id: Id) -> Option<Made<'g>> {
    let (mut id, mut grad) = (id, None);
    for _ in 0..4 {
        let Node::Call(call) = graph.node(id) else {
            return None;
        };
        let (module, function) = graph.as_global(call.callable)?;
        if call.how != How::Call || !matches!(module, "torch._utils" | "torch._tensor") {
            return None;
        }
        match (function, graph.as_seq(call.args)?) {
            (
                "_rebuild_parameter" | "_rebuild_parameter_with_state",
                [inner, requires_grad, ..],
            ) => {
                (id, grad) = (*inner, grad.or(Some(*requires_grad)));
            }
            ("_rebuild_from_type_v2", &[function, class, args, state]) => {
                let is_wrapper = graph.as_global(function)
                    == Some(("torch._utils", "_rebuild_wrapper_subclass"));
                let (module, class) = graph.as_global(class)?;
                let class = match class {
                    "DTensor" => Class::DTensor,
                    "ShardedTensor" => Class::ShardedTensor,
                    _ => return None,
                };
                let is_known = is_wrapper && module.starts_with("torch.distributed.");
                return is_known.then_some(Made {
                    class,
                    args: graph.as_seq(args).unwrap_or_default(),
                    state,
                    grad,
                });
            }
            _ => return None,
        }
    }
    None
}

/// Reads a node as a part of a global tensor. `None` if it is something else.
///
/// # Errors
/// A description that contradicts itself; a placement or a local tensor that can't be read.
pub(crate) fn part_of(
    graph: &Graph<'_>,
    id: Id,
    meshes: &mut Meshes,
    budget: &mut Budget,
) -> Result<Option<PartRef>> {
    let Some(made) = made(graph, id) else {
        return Ok(None);
    };
    let &[_, dtype, shape, _, _, _, _, requires_grad, ..] = made.args else {
        return Err(wrong("it is made with too few arguments"));
    };
    let Some(shape) = dims(graph, shape) else {
        return Err(wrong("its shape is not a tuple of ints"));
    };
    let named = match graph.as_global(dtype) {
        Some(("torch", name)) => name.parse::<DType>().ok(),
        _ => None,
    };
    let dtype =
        named.ok_or_else(|| graph.unsupported(id, "a DTensor of an unknown element type"))?;
    if Layout::contiguous(dtype.size(), &shape).is_none() {
        let what = format!("its shape {shape} of {dtype} is too large");
        return Err(wrong(&what));
    }
    let mut part = match made.class {
        Class::DTensor => dtensor(graph, made.state, (dtype, shape), meshes, budget)?,
        Class::ShardedTensor => sharded::part(graph, made.state, (dtype, shape), budget)?,
    };
    let grad = made.grad.unwrap_or(requires_grad);
    part.requires_grad = matches!(graph.node(grad), Node::Bool(true));
    Ok(Some(part))
}

fn dtensor(
    graph: &Graph<'_>,
    state: Id,
    (dtype, shape): (DType, Dims),
    meshes: &mut Meshes,
    budget: &mut Budget,
) -> Result<PartRef> {
    let of = |name: &str| {
        field(graph, state, name)?.ok_or_else(|| wrong(&format!("it has no attribute {name}")))
    };
    let (local, spec) = (of("_local_tensor")?, of("_spec")?);
    let (spread, place) = meshes.spread(graph, spec, shape.clone(), budget)?;
    let Some((rank, at)) = place else {
        // PyTorch gives a rank outside of the mesh an empty tensor.
        return Ok(PartRef {
            dtype,
            shape,
            requires_grad: false,
            pieces: Vec::new(),
            rank: None,
            ranks: Arc::clone(&spread.mesh.ranks),
            layout: spread.to_string().into(),
        });
    };
    let Some(local) = tensor_of(graph, local, Wrapped::Any)? else {
        let what = "a DTensor whose local tensor is not a dense one";
        return Err(graph.unsupported(local, what));
    };
    if local.dtype != dtype {
        let what = format!("it is of {dtype}, and its local tensor of {}", local.dtype);
        return Err(wrong(&what));
    }
    let part = spread.part(&local, rank, &at)?;
    let takes = part.pieces.len() * size_of::<(Region, TensorRef)>() * 2;
    graph.draw(spec, takes as u64, budget)?;
    Ok(part)
}
