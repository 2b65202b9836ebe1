//! Containers as a pickle describes them: dicts, and objects of classes of dicts, in the idioms of Python 2 and 3.

use crate::{
    pickle::{Graph, How, Id, Node},
    tensor::{Wrapped, is_part, tensor_of},
};
use std::borrow::Cow;

/// A dict, or an object of a class of dicts.
pub(super) struct Mapping<'g> {
    pub(super) pairs: Cow<'g, [(Id, Id)]>,
    /// The class, if it is no plain dict.
    pub(super) class: Option<Class<'g>>,
}

/// The class of a container, and how Python makes an empty object of it.
#[derive(Clone, Copy)]
pub(super) struct Class<'g> {
    pub(super) module: &'g str,
    pub(super) name: &'g str,
    pub(super) args: &'g [Id],
    pub(super) made: Made,
}

/// How Python makes an object of a class of containers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// By a call of a class that is known to be one of dicts.
    Known,
    /// By a call of an unknown class.
    Call,
    /// By a call of an unknown class, with the items in an argument. Python 2 pickles subclasses of `OrderedDict` this way.
    CallWithItems,
    /// By `__new__` of an unknown class.
    New,
    /// By `copyreg._reconstructor(class, dict, items)`, as protocols 0 and 1 pickle subclasses of `dict`.
    Reconstructed,
    /// A list or tuple.
    Sequence,
}

impl<'g> Class<'g> {
    /// The class of a tuple.
    pub(super) const TUPLE: Self = Self::sequence("tuple");
    /// The class of a list.
    pub(super) const LIST: Self = Self::sequence("list");

    const fn sequence(name: &'static str) -> Self {
        Self {
            module: "builtins",
            name,
            args: &[],
            made: Made::Sequence,
        }
    }
}

impl<'g> Mapping<'g> {
    /// Reads a node as a dict: a plain one, an `OrderedDict` (as `Module.state_dict` returns), a `defaultdict`, or an object of an unknown
    /// class in which the pickle sets items.
    pub(super) fn of(graph: &'g Graph<'_>, id: Id) -> Option<Self> {
        let call = match graph.node(id) {
            Node::Dict(pairs) => {
                return Some(Self {
                    pairs: pairs.into(),
                    class: None,
                });
            }
            Node::Call(call) if call.items.is_empty() && call.kwargs.is_none() => call,
            _ => return None,
        };
        let (module, name) = graph.as_global(call.callable)?;
        let args = graph.as_seq(call.args)?;
        let with = |args, made, pairs| {
            let class = Class {
                module,
                name,
                args,
                made,
            };
            Self {
                pairs,
                class: Some(class),
            }
        };
        let pairs = Cow::from(&*call.pairs);
        match ((module, name), call.how, args) {
            (("collections", "OrderedDict"), How::Call, [items]) if pairs.is_empty() => {
                let items = pairs_of_python2(graph, *items)?;
                Some(with(&[], Made::Known, items.into()))
            }
            (("collections", "OrderedDict"), How::Call, [])
            | (("collections", "defaultdict"), How::Call, [] | [_]) => {
                Some(with(args, Made::Known, pairs))
            }
            (("collections", "OrderedDict" | "defaultdict"), How::Call, _) => None,
            (("copyreg", "_reconstructor"), How::Call, [class, base, items])
                if pairs.is_empty() =>
            {
                graph.as_global(*class)?;
                match (graph.as_global(*base), graph.node(*items)) {
                    (Some(("builtins", "dict")), Node::Dict(items)) => {
                        let args = args.get(..2).unwrap_or_default();
                        Some(with(args, Made::Reconstructed, items.into()))
                    }
                    _ => None,
                }
            }
            (_, How::Call, [items]) if pairs.is_empty() => {
                let items = pairs_of_python2(graph, *items).filter(|items| !items.is_empty())?;
                Some(with(&[], Made::CallWithItems, items.into()))
            }
            (_, How::Call, _) if !pairs.is_empty() => Some(with(args, Made::Call, pairs)),
            (_, How::New, _) if !pairs.is_empty() => Some(with(args, Made::New, pairs)),
            _ => None,
        }
    }

    /// Whether PyTorch's flattening takes it apart, whatever it holds.
    pub(super) fn is_known(&self) -> bool {
        self.class.is_none_or(|class| class.made == Made::Known)
    }
}

/// The items of an `OrderedDict` as Python 2 pickles it: a list of lists of two.
fn pairs_of_python2(graph: &Graph<'_>, items: Id) -> Option<Vec<(Id, Id)>> {
    let Node::List(items) = graph.node(items) else {
        return None;
    };
    let pair = |item: &Id| match graph.as_seq(*item)? {
        [key, value] => Some((*key, *value)),
        _ => None,
    };
    items.iter().map(pair).collect()
}

/// The value at a place of a list, a tuple or a dict.
pub(super) fn nth_value(graph: &Graph<'_>, id: Id, n: usize) -> Option<Id> {
    match graph.node(id) {
        Node::List(items) | Node::Tuple(items) => items.get(n).copied(),
        Node::Dict(pairs) => pairs.get(n).map(|(_, value)| *value),
        Node::Call(call) if !call.pairs.is_empty() => call.pairs.get(n).map(|(_, value)| *value),
        // The items are in the last argument of Python 2's calls.
        Node::Call(call) => match graph.node(*graph.as_seq(call.args)?.last()?) {
            Node::List(items) => graph.as_seq(*items.get(n)?)?.get(1).copied(),
            Node::Dict(pairs) => pairs.get(n).map(|(_, value)| *value),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn is_name(node: &Node<'_>) -> bool {
    matches!(
        node,
        Node::Str(_) | Node::Int(_) | Node::Bool(_) | Node::None
    )
}

/// A key of a dict as PyTorch spells it in names: `str(key)`.
pub(super) fn name(graph: &Graph<'_>, id: Id) -> Option<Box<str>> {
    Some(match graph.node(id) {
        Node::Str(s) => (&**s).into(),
        Node::Int(n) => n.to_string().into(),
        Node::Bool(true) => "True".into(),
        Node::Bool(false) => "False".into(),
        Node::None => "None".into(),
        _ => return None,
    })
}

/// Whether a node is a tensor, or would be one if its description made sense.
pub(super) fn is_tensor(graph: &Graph<'_>, id: Id) -> bool {
    is_part(graph, id) || !matches!(tensor_of(graph, id, Wrapped::Any), Ok(None))
}
