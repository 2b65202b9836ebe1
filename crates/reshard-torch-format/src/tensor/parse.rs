use super::{TensorRef, storage_of};
use crate::{
    Error, Result,
    pickle::{Graph, How, Id, Node},
};
use reshard_model::{DType, Dims};

/// Which wrappings of a tensor are taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapped {
    /// All: only the elements are wanted.
    Any,
    /// Those of parameters, and of tensors without attributes; what else Python knows of an object is to be kept.
    Plain,
}

/// Reads a node as a dense tensor. `None` if it is something else: an unknown class, a quantized or sparse tensor.
pub(crate) fn tensor_of(graph: &Graph<'_>, id: Id, wrapped: Wrapped) -> Result<Option<TensorRef>> {
    // A parameter wraps a tensor; more wrapping has no meaning.
    let (mut id, mut grad) = (id, None);
    let (mut is_parameter, mut python_state) = (false, None);
    // The type and the device of a tensor that goes to its device by way of the CPU.
    let mut moved: Option<(Id, Id)> = None;
    for _ in 0..4 {
        let Node::Call(call) = graph.node(id) else {
            return Ok(None);
        };
        let Some(("torch._utils" | "torch._tensor", function)) = graph.as_allowed(call.callable)
        else {
            return Ok(None);
        };
        if call.how != How::Call {
            return Ok(None);
        }
        let args = graph.as_seq(call.args).unwrap_or(&[]);
        let (function, args) = match (function, args) {
            ("_rebuild_parameter", [inner, rest @ ..]) => {
                (id, grad) = (*inner, grad.or(rest.first().copied()));
                is_parameter = true;
                continue;
            }
            ("_rebuild_parameter_with_state", [inner, rest @ ..]) if wrapped == Wrapped::Any => {
                (id, grad) = (*inner, grad.or(rest.first().copied()));
                (is_parameter, python_state) = (true, Some("attributes"));
                continue;
            }
            ("_rebuild_device_tensor_from_cpu_tensor", &[inner, dtype, device, requires_grad]) => {
                (id, grad) = (inner, grad.or(Some(requires_grad)));
                moved = moved.or(Some((dtype, device)));
                continue;
            }
            ("_rebuild_from_type" | "_rebuild_from_type_v2", &[function, class, args, state]) => {
                let of_type = python_state_of(graph, class, state);
                if of_type.is_some() && wrapped == Wrapped::Plain {
                    return Ok(None);
                }
                python_state = python_state.or(of_type);
                let Some(("torch._utils", function)) = graph.as_allowed(function) else {
                    return Ok(None);
                };
                (function, graph.as_seq(args).unwrap_or(&[]))
            }
            built => built,
        };
        let tensor = rebuild(graph, function, args)?;
        let tensor = match (tensor, moved) {
            (Some(tensor), Some(to)) => Some(moved_to(graph, tensor, to)?),
            (tensor, _) => tensor,
        };
        return Ok(tensor.map(|tensor| TensorRef {
            requires_grad: match grad.map(|grad| graph.node(grad)) {
                Some(Node::Bool(grad)) => *grad,
                _ => tensor.requires_grad,
            },
            is_parameter,
            python_state,
            ..tensor
        }));
    }
    Ok(None)
}

/// A tensor whose device and type are those that it is moved to.
fn moved_to(
    graph: &Graph<'_>,
    mut tensor: TensorRef,
    (dtype, device): (Id, Id),
) -> Result<TensorRef> {
    let dtype = graph.as_allowed(dtype).map_or("?", |(_, name)| name);
    if dtype.parse() != Ok(tensor.dtype) {
        let what = format!("it is stored as {} and made as {dtype}", tensor.dtype);
        return Err(bad(&tensor.storage.key, &what));
    }
    if let Some(device) = graph.as_str(device) {
        tensor.storage.location = device.into();
    }
    Ok(tensor)
}

/// What Python knows of a tensor that is built from its type.
fn python_state_of(graph: &Graph<'_>, class: Id, state: Id) -> Option<&'static str> {
    let is_tensor = graph.as_global(class) == Some(("torch", "Tensor"));
    match (is_tensor, is_empty(graph, state)) {
        (true, true) => None,
        (true, false) => Some("attributes"),
        (false, true) => Some("another class"),
        (false, false) => Some("another class with attributes"),
    }
}

fn is_empty(graph: &Graph<'_>, state: Id) -> bool {
    match graph.node(state) {
        Node::None => true,
        Node::Dict(pairs) => pairs.is_empty(),
        _ => false,
    }
}

fn rebuild(graph: &Graph<'_>, function: &str, args: &[Id]) -> Result<Option<TensorRef>> {
    // The second version added `requires_grad` and hooks, the third the element type. Both may end with metadata.
    let (requires_grad, dtype, metadata) = match (function, args.get(4..).unwrap_or_default()) {
        ("_rebuild_tensor", []) if args.len() == 4 => (None, None, None),
        ("_rebuild_tensor_v2", &[grad, _hooks]) => (Some(grad), None, None),
        ("_rebuild_tensor_v2", &[grad, _hooks, metadata]) => (Some(grad), None, Some(metadata)),
        ("_rebuild_tensor_v3", &[grad, _hooks, dtype]) => (Some(grad), Some(dtype), None),
        ("_rebuild_tensor_v3", &[grad, _hooks, dtype, metadata]) => {
            (Some(grad), Some(dtype), Some(metadata))
        }
        ("_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3", _) => {
            let what = format!("{function} does not take {} arguments", args.len());
            return Err(bad("?", &what));
        }
        _ => return Ok(None),
    };
    let &[storage, offset, shape, strides, ..] = args else {
        return Ok(None);
    };
    let Some(stored) = storage_of(graph, storage)? else {
        return Err(bad("?", "it has no storage"));
    };
    let storage = stored.storage;
    let key = storage.key.clone();
    let dtype = match (dtype.map(|dtype| graph.as_global(dtype)), storage.dtype) {
        (Some(Some(("torch", name))), _) => match name.parse::<DType>() {
            Ok(dtype) => dtype,
            // Types that only PyTorch knows, such as bits8, stay what the pickle says.
            Err(_) => return Ok(None),
        },
        (Some(_), _) => return Err(bad(&key, "its dtype has no name")),
        (None, Some(dtype)) => dtype,
        (None, None) => return Err(bad(&key, "its storage has no element type")),
    };
    for id in [shape, strides] {
        if let Some(axes) = axes(graph, id).map(<[Id]>::len).filter(|n| *n > MAX_AXES) {
            let what = format!("a tensor of {axes} axes (at most {MAX_AXES})");
            return Err(graph.unsupported(id, what));
        }
    }
    let offset = graph
        .as_int(offset)
        .and_then(|v| u64::try_from(v).ok()?.checked_add(stored.view));
    let (Some(offset), Some(shape), Some(strides)) =
        (offset, dims(graph, shape), dims(graph, strides))
    else {
        return Err(bad(
            &key,
            "offset, shape and strides must be ints that are not negative",
        ));
    };
    if shape.len() != strides.len() {
        return Err(bad(&key, "shape and strides differ in length"));
    }
    let requires_grad = match requires_grad.map(|id| graph.node(id)) {
        None => false,
        Some(&Node::Bool(requires_grad)) => requires_grad,
        Some(_) => return Err(bad(&key, "requires_grad is not a bool")),
    };
    let (conj, neg) = lazy_bits(graph, &key, metadata)?;
    let tensor = TensorRef {
        dtype,
        storage,
        offset,
        shape,
        strides,
        requires_grad,
        conj,
        neg,
        is_parameter: false,
        python_state: None,
    };
    tensor.layout()?;
    Ok(Some(tensor))
}

fn bad(key: &str, what: &str) -> Error {
    Error::tensor(key, format!("it is described wrongly: {what}"))
}

/// The lazy bits `conj` and `neg` in the metadata of a tensor.
fn lazy_bits(graph: &Graph<'_>, key: &str, metadata: Option<Id>) -> Result<(bool, bool)> {
    let (mut conj, mut neg) = (false, false);
    match metadata.map(|id| (id, graph.node(id))) {
        None | Some((_, Node::None)) => {}
        Some((id, Node::Dict(pairs))) => {
            if pairs.len() > MAX_METADATA {
                let what = format!(
                    "a tensor with {} notes in its metadata (at most {MAX_METADATA})",
                    pairs.len()
                );
                return Err(graph.unsupported(id, what));
            }
            for &(k, v) in pairs {
                match (graph.as_str(k), graph.node(v)) {
                    (Some("conj"), Node::Bool(v)) => conj = *v,
                    (Some("neg"), Node::Bool(v)) => neg = *v,
                    // A backend's own metadata says nothing about the elements.
                    (Some(k), _) if k != "conj" && k != "neg" => {}
                    _ => return Err(bad(key, "its metadata is not a dict of names")),
                }
            }
        }
        Some(_) => return Err(bad(key, "its metadata is not a dict")),
    }
    Ok((conj, neg))
}

/// Most axes of a tensor: PyTorch can make no more elements than an iterator over 64 axes goes through.
const MAX_AXES: usize = 64;
/// Most entries of a tensor's metadata, of which PyTorch itself has two. Tensors may share them.
const MAX_METADATA: usize = 100;

/// A tuple, or a `torch.Size` of one.
fn axes<'g>(graph: &'g Graph<'_>, id: Id) -> Option<&'g [Id]> {
    match graph.node(id) {
        Node::Call(call) if graph.as_allowed(call.callable) == Some(("torch", "Size")) => {
            graph.as_seq(*graph.as_seq(call.args)?.first()?)
        }
        _ => graph.as_seq(id),
    }
}

/// Whole numbers, of at most so many axes as a tensor may have.
pub(super) fn dims(graph: &Graph<'_>, id: Id) -> Option<Dims> {
    let mut out = Dims::default();
    for &item in axes(graph, id).filter(|all| all.len() <= MAX_AXES)? {
        out.push(u64::try_from(graph.as_int(item)?).ok()?);
    }
    Some(out)
}
