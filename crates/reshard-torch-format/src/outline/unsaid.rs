//! What the values of objects do not say: which parts are one object in Python, and what Python knows of the tensors in them.

use crate::{
    Budget, Result, TensorRef,
    pickle::{Call, Graph, How, Id, Node},
    tensor::{Wrapped, storage_of, tensor_of},
};
use reshard_model::DType;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Something that Python knows of an object, and that its value does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unsaid {
    /// A part that can change is at two places.
    OneAtTwoPlaces,
    /// Tensors share elements that the value has apart.
    SharedElements,
    Parameters,
    Gradients,
    Order,
    Views,
    Devices,
}

/// In words.
pub(super) fn in_words(all: &BTreeSet<Unsaid>) -> String {
    let words = all.iter().map(|unsaid| match unsaid {
        Unsaid::OneAtTwoPlaces => "parts that are one object",
        Unsaid::SharedElements => "tensors that share elements",
        Unsaid::Parameters => "parameters",
        Unsaid::Gradients => "tensors that require gradients",
        Unsaid::Order => "tensors that are not row-major",
        Unsaid::Views => "views that are conjugated or negated",
        Unsaid::Devices => "devices of tensors",
    });
    words.collect::<Vec<_>>().join(", ")
}

/// A tensor of an object.
struct View {
    /// The number of its object.
    of: usize,
    dtype: DType,
    hull: Range<u64>,
    is_contiguous: bool,
}

/// A walk through objects, one after the other.
pub(super) struct Survey<'g, 'a> {
    graph: &'g Graph<'a>,
    depth: u32,
    budget: Budget,
    /// The nodes so far, and whether something below can change.
    seen: BTreeMap<Id, bool>,
    /// The tensors of objects by their storages, and whether something else has a part of the storage.
    storages: BTreeMap<Box<str>, (Vec<View>, bool)>,
    /// By the numbers of the objects.
    found: Vec<BTreeSet<Unsaid>>,
}

impl<'g, 'a> Survey<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>, depth: u32, budget: Budget) -> Self {
        Self {
            graph,
            depth,
            budget,
            seen: BTreeMap::new(),
            storages: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// Notes a dict or list that is taken apart. An object that has it, too, gets one of its own.
    pub(super) fn container(&mut self, id: Id) -> Result<()> {
        self.take(id, 4 * size_of::<(Id, bool)>())?;
        self.seen.insert(id, true);
        Ok(())
    }

    /// Notes a tensor that is in no object.
    pub(super) fn tensor(&mut self, tensor: &TensorRef) -> Result<()> {
        if !tensor.layout().is_ok_and(|layout| layout.bytes() > 0) {
            return Ok(());
        }
        self.storage(tensor, |(_, others)| *others = true)
    }

    /// Looks at an object, and returns its number.
    pub(super) fn object(&mut self, id: Id) -> Result<usize> {
        self.found.push(BTreeSet::new());
        self.walk(id, 0)?;
        Ok(self.found.len() - 1)
    }

    /// What was found in each object.
    pub(super) fn finish(mut self) -> Vec<BTreeSet<Unsaid>> {
        for (views, others) in self.storages.into_values() {
            if views.len() + usize::from(others) < 2 || (!others && one_covers_all(&views)) {
                continue;
            }
            for view in views {
                if let Some(of) = self.found.get_mut(view.of) {
                    of.insert(Unsaid::SharedElements);
                }
            }
        }
        self.found
    }

    fn take(&mut self, id: Id, bytes: usize) -> Result<()> {
        self.graph.draw(id, bytes as u64, &mut self.budget)
    }

    fn note(&mut self, what: Unsaid) {
        if let Some(last) = self.found.last_mut() {
            last.insert(what);
        }
    }

    fn storage(
        &mut self,
        tensor: &TensorRef,
        f: impl FnOnce(&mut (Vec<View>, bool)),
    ) -> Result<()> {
        let key = &tensor.storage.key;
        let takes = 2 * (key.len() + size_of::<View>() + size_of::<(Box<str>, Vec<View>, bool)>());
        self.take(Id::default(), takes)?;
        f(self.storages.entry(key.clone()).or_default());
        Ok(())
    }

    /// Looks at a node and what is below, and says whether something of it can change: only of that, Python's programs can tell whether it
    /// is one object or two equal ones.
    fn walk(&mut self, id: Id, depth: u32) -> Result<bool> {
        let graph = self.graph;
        if let Node::None
        | Node::Bool(_)
        | Node::Int(_)
        | Node::Long(_)
        | Node::Float(_)
        | Node::Str(_)
        | Node::OddStr(_)
        | Node::Bytes(_)
        | Node::Global(_) = graph.node(id)
        {
            return Ok(false);
        }
        if let Some(&can_change) = self.seen.get(&id) {
            if can_change {
                self.note(Unsaid::OneAtTwoPlaces);
            }
            return Ok(can_change);
        }
        // What is nested deeper has no value.
        if depth > self.depth {
            return Ok(true);
        }
        self.take(id, 4 * size_of::<(Id, bool)>())?;
        // Until its parts were looked at: it may contain itself.
        self.seen.insert(id, true);
        let can_change = match graph.node(id) {
            Node::Tuple(_) | Node::FrozenSet(_) => self.parts(id, depth)?,
            // Of what the decoder can't make a tensor of, it says why when the value is wanted.
            Node::Call(call) => match tensor_of(graph, id, Wrapped::Plain) {
                Ok(Some(tensor)) => self.view(&tensor).map(|()| true)?,
                Ok(None) => self.parts(id, depth)? || !is_constant(graph, call),
                Err(_) => true,
            },
            Node::Persistent(_) => self.bare(id).map(|()| true)?,
            _ => self.parts(id, depth).map(|_| true)?,
        };
        self.seen.insert(id, can_change);
        Ok(can_change)
    }

    /// Whether any part of a node can change. All are looked at.
    fn parts(&mut self, id: Id, depth: u32) -> Result<bool> {
        let mut can_change = false;
        for part in self.graph.parts(id) {
            can_change |= self.walk(part, depth + 1)?;
        }
        Ok(can_change)
    }

    fn view(&mut self, tensor: &TensorRef) -> Result<()> {
        if tensor.is_parameter {
            self.note(Unsaid::Parameters);
        } else if tensor.requires_grad {
            self.note(Unsaid::Gradients);
        }
        if tensor.conj || tensor.neg {
            self.note(Unsaid::Views);
        }
        if &*tensor.storage.location != "cpu" {
            self.note(Unsaid::Devices);
        }
        let Ok(layout) = tensor.layout() else {
            return Ok(());
        };
        if layout.bytes() == 0 {
            return Ok(());
        }
        if !layout.is_contiguous() {
            self.note(Unsaid::Order);
        }
        // Elements that must be changed are copied.
        let is_contiguous = layout.is_contiguous() && !tensor.conj && !tensor.neg;
        let view = View {
            of: self.found.len().saturating_sub(1),
            dtype: tensor.dtype,
            hull: layout.hull(),
            is_contiguous,
        };
        self.storage(tensor, |(views, _)| views.push(view))
    }

    /// A storage that no tensor has.
    fn bare(&mut self, id: Id) -> Result<()> {
        let Ok(Some(stored)) = storage_of(self.graph, id) else {
            return Ok(());
        };
        let dtype = stored.storage.dtype.unwrap_or(DType::UInt8);
        let elements = stored.storage.len / dtype.size();
        let Ok(flat) = TensorRef::contiguous(dtype, &[elements]) else {
            return Ok(());
        };
        let storage = stored.storage;
        self.view(&TensorRef { storage, ..flat })
    }
}

/// Whether a leaf can change, so that it matters where else it is. A tuple can't, and its parts are looked at.
pub(super) fn can_change(graph: &Graph<'_>, id: Id) -> bool {
    match graph.node(id) {
        Node::List(_) | Node::Dict(_) | Node::Set(_) | Node::ByteArray(_) => true,
        Node::Call(call) => !is_constant(graph, call),
        _ => false,
    }
}

/// Whether a call makes something that can't change, if its arguments can't: a shape, a member of an enum, a type of numpy.
fn is_constant(graph: &Graph<'_>, call: &Call) -> bool {
    let class = graph.as_global(call.callable);
    if class == Some(("numpy", "dtype")) {
        return true;
    }
    let can_change = matches!(
        class,
        Some(
            ("torch._utils" | "torch._tensor" | "collections", _)
                | ("builtins", "bytearray" | "list" | "dict" | "set")
        )
    );
    let has_args = |args: &[Id]| !args.is_empty();
    call.how == How::Call
        && !can_change
        && graph.as_seq(call.args).is_some_and(has_args)
        && call.kwargs.is_none()
        && call.state.is_none()
        && call.items.is_empty()
        && call.pairs.is_empty()
}

/// Whether a writer that sees only the values stores the elements of these tensors once: they are of one object, and one of them has
/// all elements.
fn one_covers_all(views: &[View]) -> bool {
    let Some(first) = views.first() else {
        return true;
    };
    let alike = |v: &View| v.is_contiguous && v.of == first.of && v.dtype == first.dtype;
    let start = views.iter().map(|v| v.hull.start).min();
    let end = views.iter().map(|v| v.hull.end).max();
    let whole = |v: &View| Some(v.hull.start) == start && Some(v.hull.end) == end;
    views.iter().all(alike) && views.iter().any(whole)
}
