//! torchao's quantised tensors: subclasses of `torch.Tensor` that keep their elements in inner tensors.
//!
//! `torch.save` pickles such a tensor as `_rebuild_from_type_v2(_rebuild_wrapper_subclass, class, args, state)`. The arguments describe the
//! tensor that it stands for, and the state is a dict of inner tensors and attributes. The inner tensors become leaves; the rest becomes a
//! value that can be written again.

use super::ObjectAt;
use crate::{
    Result,
    pickle::{Graph, How, Id, Node},
    tensor::{Wrapped, tensor_of},
    value::{Part, PartDict, PartTree, made},
};
use reshard_model::{Construct, Opaque, Path, Step, Value};
use std::collections::BTreeMap;

/// A tensor of one of torchao's classes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FoundSubclass {
    /// Its path.
    pub path: Path,
    /// The full name of its class.
    pub class: Box<str>,
    /// The tensor without its inner tensors. `None` if it is not decoded, because it is too large.
    pub value: Option<Subclass>,
    /// The paths of its inner tensors.
    pub inner: Vec<Path>,
}

/// A tensor of one of torchao's classes without the elements of its inner tensors, as a value.
///
/// The value is an object of the class, made by `_rebuild_wrapper_subclass` with the arguments that Python gives it. Its state has a
/// placeholder for each inner tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Subclass(Opaque);

/// The module of torch and the function that makes the tensors, and the one that sets their state.
const UTILS: &str = "torch._utils";
const WRAPPER: &str = "_rebuild_wrapper_subclass";
const FROM_TYPE: (&str, &str) = ("torch._tensor", "_rebuild_from_type_v2");

/// The placeholder of an inner tensor.
const HOLE: (&str, &str) = ("reshard", "tensor");

/// Levels of tensors of torchao in each other: an older version has three.
const LEVELS: usize = 4;

impl Subclass {
    /// Reads the value of an annotation. `None` if it is something else.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Opaque(o) if Self::is(o) => Some(Self((**o).clone())),
            _ => None,
        }
    }

    fn is(o: &Opaque) -> bool {
        let by = match &o.construct {
            Construct::Reduce(args) => args.first(),
            _ => None,
        };
        matches!(by, Some(Value::Opaque(by)) if &*by.module == UTILS && &*by.name == WRAPPER)
    }

    /// The value.
    pub fn to_value(&self) -> Value {
        Value::Opaque(Box::new(self.0.clone()))
    }

    /// The name of its class, without the module.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The arguments that describe the tensor for which it stands: class, element type, shape, and more.
    pub fn args(&self) -> &[Value] {
        match &self.0.construct {
            Construct::Reduce(args) => match args.get(1) {
                Some(Value::Tuple(args)) => args,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// Its attributes, without the inner tensors.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &Value)> {
        pairs(&self.0).filter(|(_, value)| !is_hole(value))
    }

    /// The names of its inner tensors. Those of a tensor of torchao in it follow the name of that.
    pub fn inner(&self) -> Vec<String> {
        let mut out = Vec::new();
        names(&self.0, "", &mut out);
        out
    }

    /// The path of an inner tensor of the tensor at `path`. torchao names it in the same way when it writes safetensors:
    /// `layer.weight` has `layer._weight_qdata`.
    pub fn inner_path(path: &Path, name: &str) -> Option<Path> {
        let (last, above) = path.0.split_last()?;
        let Step::Key(key) = last else {
            return None;
        };
        let key = match key.rsplit_once('.') {
            Some((module, own)) => format!("{module}._{own}_{name}"),
            None => format!("_{key}_{name}"),
        };
        let mut steps = above.to_vec();
        steps.push(key.into());
        Some(Path::from(steps.as_slice()))
    }

    /// The tree that `torch.save` writes of it, with the inner tensors that `take` returns. `None` if one is missing.
    pub fn tree(&self, take: &mut dyn FnMut(&str) -> Option<Part>) -> Option<PartTree> {
        tree(&self.0, "", take)
    }
}

fn pairs(o: &Opaque) -> impl Iterator<Item = (&str, &Value)> {
    let pairs = match &o.state {
        Some(Value::Dict(pairs)) => pairs.as_slice(),
        _ => &[],
    };
    pairs.iter().filter_map(|(k, v)| Some((k.as_str()?, v)))
}

fn is_hole(value: &Value) -> bool {
    matches!(value, Value::Opaque(o) if (&*o.module, &*o.name) == HOLE)
}

fn names(o: &Opaque, prefix: &str, out: &mut Vec<String>) {
    for (name, value) in pairs(o) {
        match value {
            Value::Opaque(inner) if Subclass::is(inner) => {
                names(inner, &format!("{prefix}{name}_"), out);
            }
            value if is_hole(value) => out.push(format!("{prefix}{name}")),
            _ => {}
        }
    }
}

fn tree(o: &Opaque, prefix: &str, take: &mut dyn FnMut(&str) -> Option<Part>) -> Option<PartTree> {
    let Construct::Reduce(args) = &o.construct else {
        return None;
    };
    let [by, args, ..] = &args[..] else {
        return None;
    };
    let mut state = PartDict::default();
    for (name, value) in pairs(o) {
        let tree = match value {
            Value::Opaque(inner) if Subclass::is(inner) => {
                tree(inner, &format!("{prefix}{name}_"), take)?
            }
            value if is_hole(value) => PartTree::Leaf(take(&format!("{prefix}{name}"))?),
            value => PartTree::Leaf(Part::Value(value.clone())),
        };
        state.pairs.push((name.into(), tree));
    }
    let value = |value: Value| PartTree::Leaf(Part::Value(value));
    let class = made(&o.module, &o.name, Construct::Global);
    Some(PartTree::Call(
        FROM_TYPE,
        vec![
            value(by.clone()),
            value(Value::Opaque(Box::new(class))),
            value(args.clone()),
            PartTree::Dict(state),
        ],
    ))
}

/// A tensor of torchao in the graph of a pickle.
#[derive(Clone, Copy)]
pub(super) struct SubclassNode<'g> {
    pub(super) class: (&'g str, &'g str),
    args: Id,
    pub(super) state: &'g [(Id, Id)],
}

/// An inner tensor, by its name.
pub(super) type Inner = (String, Id);

impl<'g> SubclassNode<'g> {
    /// Reads a node as a tensor of torchao. `None` if it is something else, or of a class of another package.
    pub(super) fn of(graph: &'g Graph<'_>, id: Id) -> Option<Self> {
        let Node::Call(call) = graph.node(id) else {
            return None;
        };
        let bare = call.how == How::Call && call.state.is_none() && call.kwargs.is_none();
        if !bare || graph.as_allowed(call.callable) != Some(FROM_TYPE) {
            return None;
        }
        let &[function, class, args, state] = graph.as_seq(call.args)? else {
            return None;
        };
        let class = graph.as_global(class)?;
        let is_torchao = class.0 == "torchao" || class.0.starts_with("torchao.");
        match graph.node(state) {
            Node::Dict(state)
                if is_torchao && graph.as_global(function) == Some((UTILS, WRAPPER)) =>
            {
                Some(Self { class, args, state })
            }
            _ => None,
        }
    }

    /// All inner tensors. `None` if there is none, or if reshard could not write the tensor again: tensors in containers, or names that are
    /// no text. `draw` takes memory for each attribute, `holds` says whether there is a tensor in a container.
    pub(super) fn inner(
        &self,
        graph: &'g Graph<'_>,
        cx: &mut dyn Survey,
    ) -> Result<Option<Vec<Inner>>> {
        let mut out = Vec::new();
        let is_known = self.add_inner(graph, "", LEVELS, cx, &mut out)?;
        Ok((is_known && !out.is_empty()).then_some(out))
    }

    fn add_inner(
        &self,
        graph: &'g Graph<'_>,
        prefix: &str,
        levels: usize,
        cx: &mut dyn Survey,
        out: &mut Vec<Inner>,
    ) -> Result<bool> {
        for &(key, value) in self.state {
            let Some(name) = graph.as_str(key) else {
                return Ok(false);
            };
            cx.draw(value, (prefix.len() + name.len()) as u64)?;
            let name = format!("{prefix}{name}");
            if let Some(inner) = Self::of(graph, value) {
                let below = format!("{name}_");
                let is_known = levels > 1 && inner.add_inner(graph, &below, levels - 1, cx, out)?;
                if !is_known {
                    return Ok(false);
                }
            } else if !matches!(tensor_of(graph, value, Wrapped::Any), Ok(None)) {
                out.push((name, value));
            } else if cx.holds(value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The arguments and attributes, whose values are to be decoded.
    pub(super) fn objects(&self, graph: &'g Graph<'_>, out: &mut Vec<ObjectAt>) {
        out.push(ObjectAt(self.args));
        for &(_, value) in self.state {
            match Self::of(graph, value) {
                Some(inner) => inner.objects(graph, out),
                None if matches!(tensor_of(graph, value, Wrapped::Any), Ok(None)) => {
                    out.push(ObjectAt(value));
                }
                None => {}
            }
        }
    }

    /// The tensor as a value, from those of its arguments and attributes.
    pub(super) fn value(
        &self,
        graph: &'g Graph<'_>,
        values: &BTreeMap<ObjectAt, Value>,
    ) -> Option<Opaque> {
        let mut state = Vec::with_capacity(self.state.len());
        for &(key, value) in self.state {
            let name = graph.as_str(key)?;
            let value = match Self::of(graph, value) {
                Some(inner) => Value::Opaque(Box::new(inner.value(graph, values)?)),
                None if matches!(tensor_of(graph, value, Wrapped::Any), Ok(None)) => {
                    values.get(&ObjectAt(value))?.clone()
                }
                None => Value::Opaque(Box::new(made(HOLE.0, HOLE.1, Construct::Global))),
            };
            state.push((name.into(), value));
        }
        let args = match values.get(&ObjectAt(self.args))? {
            args @ Value::Tuple(_) => args.clone(),
            _ => return None,
        };
        let by = Value::Opaque(Box::new(made(UTILS, WRAPPER, Construct::Global)));
        let mut out = made(
            self.class.0,
            self.class.1,
            Construct::Reduce(vec![by, args]),
        );
        out.state = Some(Value::Dict(state));
        Some(out)
    }

    /// The tensor as it was found at a path.
    pub(super) fn found(
        &self,
        graph: &'g Graph<'_>,
        (path, inner): (Path, Vec<Path>),
        values: &BTreeMap<ObjectAt, Value>,
    ) -> FoundSubclass {
        FoundSubclass {
            path,
            class: format!("{}.{}", self.class.0, self.class.1).into(),
            value: self.value(graph, values).map(Subclass),
            inner,
        }
    }
}

/// The survey of a pickle in which a tensor is found.
pub(super) trait Survey {
    /// Takes memory for an attribute with a name of so many bytes.
    fn draw(&mut self, id: Id, name: u64) -> Result<()>;
    /// Whether there is a tensor in a container.
    fn holds(&mut self, id: Id) -> Result<bool>;
}
