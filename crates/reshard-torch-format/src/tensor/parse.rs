use super::{TensorRef, storage_of};
use crate::{
    Error, Result,
    pickle::{Graph, How, Id, Node},
};
use reshard_model::{DType, Dims};

/// Reads a node as a dense tensor. `None` if it is something else: an unknown class, a quantized or sparse tensor.
pub(crate) fn tensor_of(graph: &Graph<'_>, id: Id) -> Result<Option<TensorRef>> {
    // A subclass wraps a parameter wraps a tensor; more wrapping has no meaning.
    let mut id = id;
    for _ in 0..4 {
        let Node::Call(call) = graph.node(id) else { return Ok(None) };
        let Some(function) = graph.as_global(call.callable) else { return Ok(None) };
        let args = graph.as_seq(call.args).unwrap_or(&[]);
        if call.how != How::Call {
            return Ok(None);
        }
        match function {
            ("torch._utils", "_rebuild_tensor_v2") => return rebuild(graph, args, false),
            ("torch._utils", "_rebuild_tensor_v3") => return rebuild(graph, args, true),
            ("torch._utils", "_rebuild_parameter") if !args.is_empty() => id = args[0],
            ("torch._tensor", "_rebuild_from_type_v2") if args.len() == 4 => {
                return subclass(graph, args[0], args[2]);
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// `(function, class, its arguments, state)`: the tensor inside, if the function is one that makes plain tensors.
fn subclass(graph: &Graph<'_>, function: Id, args: Id) -> Result<Option<TensorRef>> {
    let args = graph.as_seq(args).unwrap_or(&[]);
    match graph.as_global(function) {
        Some(("torch._utils", "_rebuild_tensor_v2")) => rebuild(graph, args, false),
        Some(("torch._utils", "_rebuild_tensor_v3")) => rebuild(graph, args, true),
        _ => Ok(None),
    }
}

fn rebuild(graph: &Graph<'_>, args: &[Id], v3: bool) -> Result<Option<TensorRef>> {
    let fixed = if v3 { 7 } else { 6 };
    let bad = |key: &str, what: &str| Error::tensor(key, format!("it is described wrongly: {what}"));
    if args.len() != fixed && args.len() != fixed + 1 {
        return Err(bad("?", "the number of arguments is wrong"));
    }
    let Some(stored) = storage_of(graph, args[0])? else { return Err(bad("?", "it has no storage")) };
    let storage = stored.storage;
    let key = storage.key.clone();
    let dtype = if v3 {
        let Some(("torch", name)) = graph.as_global(args[6]) else {
            return Err(bad(&key, "its dtype has no name"));
        };
        // Types that only PyTorch knows, such as bits8, stay what the pickle says.
        let Ok(dtype) = name.parse::<DType>() else { return Ok(None) };
        dtype
    } else {
        match storage.dtype {
            Some(dtype) => dtype,
            None => return Err(bad(&key, "its storage has no element type")),
        }
    };
    let offset = graph.as_int(args[1]).and_then(|v| u64::try_from(v).ok()?.checked_add(stored.view));
    let (Some(offset), Some(shape), Some(strides)) = (offset, dims(graph, args[2]), dims(graph, args[3]))
    else {
        return Err(bad(&key, "offset, shape or strides are no whole numbers from 0 on"));
    };
    if shape.len() != strides.len() {
        return Err(bad(&key, "shape and strides differ in length"));
    }
    let Node::Bool(requires_grad) = *graph.node(args[4]) else {
        return Err(bad(&key, "requires_grad is no bool"));
    };
    let (mut conj, mut neg) = (false, false);
    match args.get(fixed).map(|&id| graph.node(id)) {
        None | Some(Node::None) => {}
        Some(Node::Dict(pairs)) => {
            for &(k, v) in pairs {
                match (graph.as_str(k), graph.node(v)) {
                    (Some("conj"), Node::Bool(v)) => conj = *v,
                    (Some("neg"), Node::Bool(v)) => neg = *v,
                    // A backend's own metadata says nothing about the elements.
                    (Some(k), _) if k != "conj" && k != "neg" => {}
                    _ => return Err(bad(&key, "its metadata is no dict of names")),
                }
            }
        }
        Some(_) => return Err(bad(&key, "its metadata is no dict")),
    }
    let tensor = TensorRef { dtype, storage, offset, shape, strides, requires_grad, conj, neg };
    tensor.layout()?;
    Ok(Some(tensor))
}

/// A tuple of whole numbers, or a `torch.Size` of one.
fn dims(graph: &Graph<'_>, id: Id) -> Option<Dims> {
    let items = match graph.node(id) {
        Node::Call(call) if graph.as_global(call.callable) == Some(("torch", "Size")) => {
            graph.as_seq(*graph.as_seq(call.args)?.first()?)?
        }
        _ => graph.as_seq(id)?,
    };
    let mut out = Dims::default();
    for &item in items {
        out.push(u64::try_from(graph.as_int(item)?).ok()?);
    }
    Some(out)
}
