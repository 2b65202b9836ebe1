use super::{Build, Built, Items, Refusal};
use crate::{
    Budget, Error,
    memory::{block, blocks_of, make_room},
};
use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

/// A node of a [`Graph`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(u32);

/// How Python would make an object of some class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `callable(*args)`.
    Call,
    /// `callable.__new__(callable, *args)`.
    New,
}

/// An object as a pickle describes it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// How it would be made.
    pub how: How,
    /// The class or function; usually a [`Node::Global`].
    pub callable: Id,
    /// A tuple.
    pub args: Id,
    /// A dict.
    pub kwargs: Option<Id>,
    /// The state that it would restore.
    pub state: Option<Id>,
    /// The elements that would be appended or added to it.
    pub items: Vec<Id>,
    /// The items that would be set in it.
    pub pairs: Vec<(Id, Id)>,
}

/// Name of a class or function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Its module, by its name in Python 3.
    pub module: Box<str>,
    /// Its qualified name in the module.
    pub name: Box<str>,
}

/// The content of a node, borrowed from the pickle.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of Python's types")]
#[non_exhaustive]
pub enum Node<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Beyond 64 bits: two's complement, least significant byte first.
    Long(Cow<'a, [u8]>),
    Float(f64),
    Str(Cow<'a, str>),
    /// With lone surrogates, in Python's UTF-8 (`surrogatepass`).
    OddStr(&'a [u8]),
    Bytes(Cow<'a, [u8]>),
    ByteArray(&'a [u8]),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Set(Vec<Id>),
    FrozenSet(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function.
    Global(Arc<Name>),
    Call(Box<Call>),
    /// An object outside the pickle, by its id.
    Persistent(Id),
}

/// A builder that keeps a whole pickle as inert nodes. A shared value is one node, and cycles are possible.
///
/// ```
/// use reshard_torch_format::pickle::{Graph, Node, run};
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let mut graph = Graph::default();
/// let (root, _) = run(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", &mut graph, &Default::default())?;
/// let Node::Call(call) = graph.node(root) else { unreachable!() };
/// assert_eq!(graph.as_global(call.callable), Some(("os", "system"))); // data, and nothing more
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Graph<'a> {
    /// Each with the byte of the pickle that makes it.
    nodes: Vec<(Node<'a>, usize)>,
    at: usize,
    /// Each name once, however often the pickle spells it.
    names: BTreeSet<Arc<Name>>,
    /// The one node of `None`, `False`, `True` and each int of a byte, if there is one: lists of many of these are usual.
    common: [u32; 3 + 256],
    budget: Budget,
    /// Whether the budget is the caller's.
    bounded: bool,
}

const NO_NODE: u32 = u32::MAX;
const NONE: usize = 0;
const FALSE: usize = 1;
const TRUE: usize = 2;
const ZERO: usize = 3;

/// Takes its memory from the limits of [`run`](super::run).
impl Default for Graph<'_> {
    fn default() -> Self {
        Self {
            bounded: false,
            ..Self::within(Budget::new(u64::MAX))
        }
    }
}

impl<'a> Graph<'a> {
    /// A graph that takes its memory from this budget. Other memory may have been drawn from the budget before.
    pub fn within(budget: Budget) -> Self {
        Self {
            nodes: Vec::new(),
            at: 0,
            names: BTreeSet::new(),
            common: [NO_NODE; 3 + 256],
            budget,
            bounded: true,
        }
    }

    /// What is left of its budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The content of a node.
    pub fn node(&self, id: Id) -> &Node<'a> {
        self.nodes
            .get(id.0 as usize)
            .map_or(&Node::None, |(node, _)| node)
    }

    /// The position of the instruction that makes a node, in bytes. For `None`, a bool or a small int, the position of the first one.
    pub fn offset(&self, id: Id) -> u64 {
        self.nodes
            .get(id.0 as usize)
            .map_or(0, |(_, at)| *at as u64)
    }

    /// All nodes, in the order in which the pickle makes them.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        (0..self.nodes.len() as u32).map(Id)
    }

    /// The error for a node of a kind that is not read.
    pub(crate) fn unsupported(&self, id: Id, what: impl Into<Box<str>>) -> Error {
        Error::unsupported(self.offset(id), what)
    }

    /// The error for a node that exceeds a limit.
    pub(crate) fn beyond(&self, id: Id, limit: &'static str, max: u64) -> Error {
        let offset = self.offset(id);
        Error::Limit { offset, limit, max }
    }

    /// Draws memory for a node.
    pub(crate) fn draw(&self, id: Id, bytes: u64, budget: &mut Budget) -> Result<(), Error> {
        let drawn = budget.take(bytes);
        drawn.map_err(|refusal| refusal.at(self.offset(id) as usize))
    }

    /// Module and qualified name of a class or function. It also resolves a nested class that an old pickle writes as `getattr`.
    pub fn as_global(&self, id: Id) -> Option<(&str, &str)> {
        match self.node(id) {
            Node::Global(g) => Some((&g.module, &g.name)),
            _ => None,
        }
    }

    /// The same, if the table of globals allows it. Whatever is interpreted goes by this; all else stays inert.
    pub(crate) fn as_allowed(&self, id: Id) -> Option<(&str, &str)> {
        let of = self.as_global(id);
        of.filter(|(module, name)| super::is_allowed(module, name))
    }

    /// A str.
    pub fn as_str(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Str(s) => Some(s),
            _ => None,
        }
    }

    /// An int of up to 64 bits.
    pub fn as_int(&self, id: Id) -> Option<i64> {
        match self.node(id) {
            Node::Int(v) => Some(*v),
            _ => None,
        }
    }

    /// The elements of a tuple or list.
    pub fn as_seq(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Tuple(v) | Node::List(v) => Some(v),
            _ => None,
        }
    }

    /// The nodes that a node holds. Of a call, the arguments and not their tuple.
    pub(crate) fn parts(&self, id: Id) -> impl Iterator<Item = Id> {
        type Slices<'g> = (&'g [Id], &'g [(Id, Id)], Option<&'g Call>);
        let (items, pairs, call): Slices<'_> = match self.node(id) {
            Node::Tuple(v) | Node::List(v) | Node::Set(v) | Node::FrozenSet(v) => (v, &[], None),
            Node::Dict(pairs) => (&[], pairs, None),
            Node::Call(call) => (&call.items, &call.pairs, Some(&**call)),
            _ => (&[], &[], None),
        };
        let of_call = call.into_iter().flat_map(|call| {
            let args = self.as_seq(call.args).unwrap_or_default();
            let others = call.kwargs.iter().chain(&call.state);
            [call.callable]
                .into_iter()
                .chain(args.iter().chain(others).copied())
        });
        let pairs = pairs.iter().flat_map(|(k, v)| [*k, *v]);
        of_call.chain(items.iter().copied()).chain(pairs)
    }

    #[inline]
    fn add(&mut self, node: Node<'a>) -> Built<Id> {
        let id = u32::try_from(self.nodes.len()).unwrap_or(NO_NODE);
        if id == NO_NODE {
            return Err(Refusal::limit("nodes", NO_NODE.into()));
        }
        if self.nodes.len() == self.nodes.capacity() {
            make_room(&mut self.nodes, 32, &mut self.budget)?;
        }
        self.nodes.push((node, self.at));
        Ok(Id(id))
    }

    /// The one node of a value that is often there.
    #[inline]
    fn common(&mut self, place: usize, node: Node<'a>) -> Built<Id> {
        match self.common.get(place) {
            Some(&id) if id != NO_NODE => return Ok(Id(id)),
            _ => {}
        }
        let id = self.add(node)?;
        if let Some(free) = self.common.get_mut(place) {
            *free = id.0;
        }
        Ok(id)
    }

    /// Bytes that may be the builder's own; then they are drawn.
    fn owned(&mut self, bytes: Cow<'a, [u8]>) -> Built<Cow<'a, [u8]>> {
        if let Cow::Owned(bytes) = &bytes {
            self.budget.take(block(bytes.capacity()))?;
        }
        Ok(bytes)
    }

    fn ids_of(&mut self, items: Items<'_, Id>) -> Built<Vec<Id>> {
        self.budget.take(blocks_of::<Id>(items.len()))?;
        Ok(items.collect())
    }

    fn node_mut(&mut self, id: Id) -> Built<(&mut Node<'a>, &mut Budget)> {
        match self.nodes.get_mut(id.0 as usize) {
            Some((node, _)) => Ok((node, &mut self.budget)),
            None => Err(Refusal::damaged("a value is lost")),
        }
    }

    fn make(&mut self, how: How, callable: Id, args: Id, kwargs: Option<Id>) -> Built<Id> {
        if !matches!(self.node(args), Node::Tuple(_)) {
            return Err(Refusal::damaged("the arguments of a call are not a tuple"));
        }
        if !matches!(self.node(callable), Node::Global(_) | Node::Call(_)) {
            return Err(Refusal::damaged(
                "what is called is not a class or a function",
            ));
        }
        if let Some((module, name)) = self.nested(callable, args) {
            return self.named(module, name);
        }
        self.budget.take(blocks_of::<Call>(1))?;
        let call = Call {
            how,
            callable,
            args,
            kwargs,
            state: None,
            items: Vec::new(),
            pairs: Vec::new(),
        };
        self.add(Node::Call(Box::new(call)))
    }

    /// `getattr(Outer, "Inner")` is how old protocols name a nested class.
    fn nested(&self, callable: Id, args: Id) -> Option<(Box<str>, Box<str>)> {
        if self.as_global(callable)? != ("builtins", "getattr") {
            return None;
        }
        let &[outer, inner] = self.as_seq(args)? else {
            return None;
        };
        let (module, outer) = self.as_global(outer)?;
        let inner = self.as_str(inner)?;
        let fits = outer.len() + inner.len() < 250 && !inner.is_empty() && !inner.contains('.');
        fits.then(|| (module.into(), format!("{outer}.{inner}").into()))
    }

    fn named(&mut self, module: Box<str>, name: Box<str>) -> Built<Id> {
        if module.len() + name.len() > 1000 {
            return Err(Refusal::damaged(
                "the name of a class is longer than any name can be",
            ));
        }
        let name = Name { module, name };
        let name = match self.names.get(&name) {
            Some(known) => Arc::clone(known),
            None => {
                // Two counters, the texts, and the place in the set.
                let held = size_of::<Name>() + 4 * size_of::<usize>();
                self.budget
                    .take(block(held) + block(name.module.len()) + block(name.name.len()))?;
                let new = Arc::new(name);
                self.names.insert(Arc::clone(&new));
                new
            }
        };
        self.add(Node::Global(name))
    }
}

fn extend(list: &mut Vec<Id>, items: Items<'_, Id>, budget: &mut Budget) -> Built<()> {
    make_room(list, items.len(), budget)?;
    list.extend(items);
    Ok(())
}

fn extend_pairs(
    list: &mut Vec<(Id, Id)>,
    mut items: Items<'_, Id>,
    budget: &mut Budget,
) -> Built<()> {
    make_room(list, items.len() / 2, budget)?;
    list.extend(std::iter::from_fn(|| Some((items.next()?, items.next()?))));
    Ok(())
}

impl<'a> Build<'a> for Graph<'a> {
    type Value = Id;

    fn begin(&mut self, budget: Budget) {
        if !self.bounded {
            (self.budget, self.bounded) = (budget, true);
        }
    }
    fn at(&mut self, offset: usize) {
        self.at = offset;
    }
    fn share(&mut self, value: &Id) -> Built<Id> {
        Ok(*value)
    }
    fn none(&mut self) -> Built<Id> {
        self.common(NONE, Node::None)
    }
    fn bool(&mut self, v: bool) -> Built<Id> {
        self.common(if v { TRUE } else { FALSE }, Node::Bool(v))
    }
    fn int(&mut self, v: i64) -> Built<Id> {
        match u8::try_from(v) {
            Ok(small) => self.common(ZERO + usize::from(small), Node::Int(v)),
            Err(_) => self.add(Node::Int(v)),
        }
    }
    fn long(&mut self, le: Cow<'a, [u8]>) -> Built<Id> {
        let le = self.owned(le)?;
        self.add(Node::Long(le))
    }
    fn float(&mut self, v: f64) -> Built<Id> {
        self.add(Node::Float(v))
    }
    fn str(&mut self, v: Cow<'a, str>) -> Built<Id> {
        if let Cow::Owned(text) = &v {
            self.budget.take(block(text.capacity()))?;
        }
        self.add(Node::Str(v))
    }
    fn odd_str(&mut self, utf8: &'a [u8]) -> Built<Id> {
        if super::text::is_surrogate_utf8(utf8) {
            self.add(Node::OddStr(utf8))
        } else {
            Err(Refusal::damaged("a text is not UTF-8"))
        }
    }
    fn bytes(&mut self, v: Cow<'a, [u8]>) -> Built<Id> {
        let v = self.owned(v)?;
        self.add(Node::Bytes(v))
    }
    fn bytearray(&mut self, v: &'a [u8]) -> Built<Id> {
        self.add(Node::ByteArray(v))
    }
    fn tuple(&mut self, items: Items<'_, Id>) -> Built<Id> {
        let items = self.ids_of(items)?;
        self.add(Node::Tuple(items))
    }
    fn list(&mut self) -> Built<Id> {
        self.add(Node::List(Vec::new()))
    }
    fn dict(&mut self) -> Built<Id> {
        self.add(Node::Dict(Vec::new()))
    }
    fn set(&mut self) -> Built<Id> {
        self.add(Node::Set(Vec::new()))
    }
    fn frozenset(&mut self, items: Items<'_, Id>) -> Built<Id> {
        let items = self.ids_of(items)?;
        self.add(Node::FrozenSet(items))
    }
    fn append(&mut self, list: &mut Id, items: Items<'_, Id>) -> Built<()> {
        match self.node_mut(*list)? {
            (Node::List(v), budget) => extend(v, items, budget),
            (Node::Call(c), budget) => extend(&mut c.items, items, budget),
            _ => Err(Refusal::damaged(
                "it appends to something that is not a list",
            )),
        }
    }
    fn set_items(&mut self, dict: &mut Id, items: Items<'_, Id>) -> Built<()> {
        match self.node_mut(*dict)? {
            (Node::Dict(v), budget) => extend_pairs(v, items, budget),
            (Node::Call(c), budget) => extend_pairs(&mut c.pairs, items, budget),
            _ => Err(Refusal::damaged(
                "it sets items of something that is not a dict",
            )),
        }
    }
    fn add_items(&mut self, set: &mut Id, items: Items<'_, Id>) -> Built<()> {
        match self.node_mut(*set)? {
            (Node::Set(v), budget) => extend(v, items, budget),
            (Node::Call(c), budget) => extend(&mut c.items, items, budget),
            _ => Err(Refusal::damaged("it adds to something that is not a set")),
        }
    }
    fn global(&mut self, module: &str, name: &str) -> Built<Id> {
        self.named(module.into(), name.into())
    }
    fn stack_global(&mut self, module: Id, name: Id) -> Built<Id> {
        match (self.node(module), self.node(name)) {
            (Node::Str(m), Node::Str(n)) if m.len() + n.len() <= 1000 => {
                let (m, n) = (m.as_ref().into(), n.as_ref().into());
                self.named(m, n)
            }
            (Node::Str(_), Node::Str(_)) => Err(Refusal::damaged(
                "the name of a class is longer than any name can be",
            )),
            _ => Err(Refusal::damaged("the name of a class is not a str")),
        }
    }
    fn call(&mut self, callable: Id, args: Id) -> Built<Id> {
        self.make(How::Call, callable, args, None)
    }
    fn new_object(&mut self, class: Id, args: Id) -> Built<Id> {
        self.make(How::New, class, args, None)
    }
    fn new_object_ex(&mut self, class: Id, args: Id, kwargs: Id) -> Built<Id> {
        if !matches!(self.node(kwargs), Node::Dict(_)) {
            return Err(Refusal::damaged(
                "the keyword arguments of an object are not a dict",
            ));
        }
        self.make(How::New, class, args, Some(kwargs))
    }
    fn build(&mut self, object: &mut Id, state: Id) -> Built<()> {
        match self.node_mut(*object)? {
            (Node::Call(c), _) if c.state.is_none() => {
                c.state = Some(state);
                Ok(())
            }
            (Node::Call(_), _) => Err(Refusal::unsupported("an object whose state is set twice")),
            _ => Err(Refusal::damaged(
                "it sets the state of something that is not an object",
            )),
        }
    }
    fn persistent(&mut self, id: Id) -> Built<Id> {
        // Old files say `("module", class, …)` around the classes of saved modules, to carry their source code.
        if let Some(&[tag, class, ..]) = self.as_seq(id)
            && self.as_str(tag) == Some("module")
        {
            return Ok(class);
        }
        self.add(Node::Persistent(id))
    }
}
