//! What a file holds, path by path, without reading an element.

mod containers;
mod flatten;
mod modules;
mod reach;
mod subclasses;
mod unsaid;

use crate::{
    Budget, Error, Limits, PartRef, Result, StorageRef, TensorRef,
    archive::ByteOrder,
    pickle::{Graph, Id, run},
    value::{Decoder, made},
};
pub use modules::{Modules, ScriptClasses};
pub use subclasses::{FoundSubclass, Subclass};

use bytes::Bytes;
use containers::{Class, Made};
use reshard_model::{Construct, Opaque, Path, Value};
use std::collections::{BTreeMap, BTreeSet};
use subclasses::SubclassNode;

/// The pickle of a file, parsed. It shows which leaves there are, and where the elements of tensors lie. Values of leaves are decoded when
/// somebody asks for them.
///
/// ```
/// use reshard_model::{Tensor, Value};
/// use reshard_torch_format::{Leaf, Outline, encode};
///
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let model = Value::Dict(vec![("w".into(), Tensor::from_vec(&[2], vec![1f32, 2.])?.into())]);
/// let file = encode(&Value::Dict(vec![("model".into(), model), ("step".into(), 7.into())]))?;
/// let pickle = file.pickle.into();
/// let limits = Default::default();
/// let outline = Outline::parse(&pickle, 1000, &limits)?;
/// let found = outline.contents(Default::default())?.leaves;
/// let names: Vec<String> = found.iter().map(|leaf| leaf.path.to_string()).collect();
/// assert_eq!(names, ["model.w", "step"]);
/// assert!(matches!(&found[0].leaf, Leaf::Tensor(t) if t.as_ref().unwrap().shape[..] == [2]));
/// let Leaf::Object(step) = found[1].leaf else { unreachable!() };
/// let none = |s: &_, _: &mut _| unreachable!("{s:?} is not needed");
/// assert_eq!(outline.values(&[step], Default::default(), none)?, [7.into()]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Outline<'a> {
    pickle: &'a Bytes,
    graph: Graph<'a>,
    root: Id,
    limits: &'a Limits,
    /// The length of the file, from which the budget comes.
    file: u64,
    /// The length of the pickle.
    length: usize,
}

/// An object in an [`Outline`]: the same pickle gives the same object the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectAt(Id);

/// A leaf of a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// Its path, by PyTorch's rules of flattening. Keys of dicts are text, as in PyTorch ([`FoundDict::keys`] has their types); an index is
    /// that of a list.
    pub path: Path,
    /// What it is.
    pub leaf: Leaf,
}

impl Found {
    /// A leaf at a path.
    pub fn new(path: Path, leaf: Leaf) -> Self {
        Self { path, leaf }
    }
}

/// A container of a file that a plain dict with texts as keys, or a list, can't stand for.
#[derive(Debug)]
pub struct FoundDict {
    /// Its path; empty for the root.
    pub path: Path,
    /// The class, if it is no plain dict: the object without its items and state. That of a tuple, and of a root that is a list, is the
    /// class itself ([`Construct::Global`]).
    pub class: Option<Box<Opaque>>,
    /// Its attributes, such as `_metadata` of what `Module.state_dict` returns. `None` for one that is not decoded, because it holds
    /// tensors or is too large.
    pub state: Vec<(Box<str>, Option<Value>)>,
    /// The keys that are no str, as text, with their types.
    pub keys: Vec<(Box<str>, KeyType)>,
}

/// The type of a key of a dict that is no str.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyType {
    /// An int of up to 64 bits.
    Int,
    /// `True` or `False`.
    Bool,
    /// `None`.
    None,
}

impl KeyType {
    /// Python's name of it: `int`, `bool` or `None`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int => "int",
            Self::Bool => "bool",
            Self::None => "None",
        }
    }

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Int, Self::Bool, Self::None];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// Everything that a file holds.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Contents {
    /// All leaves, in their order.
    pub leaves: Vec<Found>,
    /// The dicts around them that have a class, a state, or keys that are no str; the tuples, and the root if it is a list.
    pub dicts: Vec<FoundDict>,
    /// The modules, whether they were opened or not.
    pub modules: Vec<FoundModule>,
    /// The tensors of torchao's classes, whose inner tensors are leaves.
    pub subclasses: Vec<FoundSubclass>,
    /// The paths of dicts, lists and leaves that are the same object as an earlier one, with the path of that one.
    pub shared: Vec<(Path, Path)>,
    /// The paths of objects, and of dicts with attributes, whose values do not say everything; with what they don't say, in words.
    pub unsaid: Vec<(Path, String)>,
    /// The keys of all storages that the pickle names.
    pub storages: BTreeSet<Box<str>>,
    /// Whether the leaves are what the root contains. If not, the root is the only leaf, under a name that the file does not have.
    pub opens: bool,
}

/// A pickled module of torch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundModule {
    /// Its path; empty for a root that was opened.
    pub path: Path,
    /// The full name of its class.
    pub class: Box<str>,
    /// The number of tensors that its `state_dict()` would return.
    pub tensors: usize,
    /// Whether it, or a module in it, has hooks that may change what `state_dict()` returns. They are not called.
    pub hooks: bool,
}

/// What a leaf is.
#[derive(Debug)]
pub enum Leaf {
    /// A dense tensor or a parameter, or why its description makes no sense.
    Tensor(Result<Box<TensorRef>>),
    /// The part of a global tensor that one rank holds: a DTensor or a ShardedTensor.
    Part(Box<PartRef>),
    /// Anything else.
    Object(ObjectAt),
}

impl<'a> Outline<'a> {
    /// Parses the pickle of a file of `file` bytes.
    ///
    /// # Errors
    /// As [`run`].
    pub fn parse(pickle: &'a Bytes, file: u64, limits: &'a Limits) -> Result<Self> {
        let mut graph = Graph::within(limits.budget(file));
        let (root, length) = run(pickle, &mut graph, limits)?;
        Ok(Self {
            pickle,
            graph,
            root,
            limits,
            file,
            length,
        })
    }

    /// The length of the pickle, in bytes. More may follow it.
    pub fn pickle_len(&self) -> usize {
        self.length
    }

    pub(crate) fn graph(&self) -> &Graph<'a> {
        &self.graph
    }

    /// All leaves, in their order, and the dicts around them. Containers are taken apart as PyTorch's `flatten_state_dict` does since 2.4:
    /// every dict is, and a list that holds a tensor or a dict, directly or in inner lists. Beyond that, an object of an unknown class in
    /// which the pickle sets items is taken apart if there is a tensor in it. So is a root that is a list or a tuple, with the tuples in it:
    /// PyTorch has no rule for these, and keeps a tuple below a dict as one object. A file whose root
    /// is a tensor has one leaf, `tensor`; the leaf of a root that is neither is `object`.
    ///
    /// # Errors
    /// [`Error::Limit`] for more leaves or longer names than the limits allow: a small pickle may refer to one dict very often.
    /// [`Error::Unsupported`] if two leaves have one name, or something contains itself.
    pub fn contents(&self, order: ByteOrder) -> Result<Contents> {
        self.contents_with(order, &Modules::default())
    }

    /// The same, with modules as asked for. A module that is opened contributes the leaves that its `state_dict()` would return, each as one
    /// step of a path with dots.
    ///
    /// # Errors
    /// As [`contents`](Self::contents); [`Error::Unsupported`] for a module that contains itself.
    pub fn contents_with(&self, order: ByteOrder, modules: &Modules) -> Result<Contents> {
        let how = (self.limits, modules);
        let (mut contents, around, subclasses) = flatten::contents(&self.graph, self.root, how)?;
        let mut objects: Vec<ObjectAt> = around.iter().flat_map(flatten::Around::objects).collect();
        let node = |id: Id| SubclassNode::of(&self.graph, id);
        for node in subclasses.iter().filter_map(|(_, _, id)| node(*id)) {
            node.objects(&self.graph, &mut objects);
        }
        let values = self.values_without_storages(&objects, order);
        let mut all_unsaid: BTreeMap<Path, String> = contents.unsaid.into_iter().collect();
        for dict in around {
            let class = dict.class.map(|class| {
                let (made, unsaid) = empty_of(class, &values);
                if let Some(unsaid) = unsaid {
                    let of = all_unsaid.entry(dict.path.clone()).or_default();
                    of.push_str(if of.is_empty() { "" } else { ", " });
                    of.push_str(unsaid);
                }
                Box::new(made)
            });
            let state = dict.state.into_iter();
            let state = state.map(|(name, at)| (name, values.get(&at).cloned()));
            contents.dicts.push(FoundDict {
                class,
                path: dict.path,
                state: state.collect(),
                keys: dict.keys,
            });
        }
        contents.unsaid = all_unsaid.into_iter().collect();
        let found = subclasses.into_iter().filter_map(|(path, inner, id)| {
            Some(node(id)?.found(&self.graph, (path, inner), &values))
        });
        contents.subclasses = found.collect();
        contents.storages = reach::keys(&self.graph);
        Ok(contents)
    }

    /// What the value of the pickle doesn't say, in words: which parts are one object in Python, and what Python knows of the tensors in them
    /// beside shape and elements. `None` if it says everything.
    ///
    /// # Errors
    /// [`Error::Limit`] if it has more parts than there is memory for.
    ///
    /// ```
    /// use reshard_torch_format::Outline;
    /// # fn main() -> Result<(), reshard_torch_format::Error> {
    /// let pickle = (&b"\x80\x02]q\x00h\x00\x86."[..]).into();               // ([…], the same list)
    /// let limits = Default::default();
    /// let outline = Outline::parse(&pickle, 1000, &limits)?;
    /// assert_eq!(outline.unsaid()?.as_deref(), Some("parts that are one object"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn unsaid(&self) -> Result<Option<String>> {
        let budget = self.graph.budget().clone();
        let mut survey = unsaid::Survey::new(&self.graph, self.limits.depth, budget);
        survey.object(self.root)?;
        let found = survey.finish().pop().filter(|found| !found.is_empty());
        Ok(found.map(|found| unsaid::in_words(&found)))
    }

    /// The storages that values of these objects need, each once.
    ///
    /// # Errors
    /// A storage is described wrongly.
    pub fn storages(&self, objects: &[ObjectAt]) -> Result<Vec<StorageRef>> {
        reach::storages(&self.graph, objects.iter().map(|object| object.0))
    }

    /// The values of those objects that need no storage, until they are together more than the limits allow.
    pub fn values_without_storages(
        &self,
        objects: &[ObjectAt],
        order: ByteOrder,
    ) -> BTreeMap<ObjectAt, Value> {
        let fetch = |s: &StorageRef, _: &mut Budget| Err(Error::tensor(&s.key, "it is not read"));
        let decoder = Decoder::new(&self.graph, self.pickle, self.limits, fetch);
        let mut decoder = decoder.of_file(order, self.file);
        let decoded = objects
            .iter()
            .map(|object| (*object, decoder.root(object.0)));
        decoded
            .take_while(|(_, value)| !matches!(value, Err(Error::Limit { .. })))
            .filter_map(|(object, value)| Some((object, value.ok()?)))
            .collect()
    }

    /// The values of objects. `fetch` gets the bytes of a storage.
    ///
    /// # Errors
    /// As [`load`](crate::load).
    pub fn values(
        &self,
        objects: &[ObjectAt],
        order: ByteOrder,
        fetch: impl FnMut(&StorageRef, &mut Budget) -> Result<Bytes>,
    ) -> Result<Vec<Value>> {
        let decoder = Decoder::new(&self.graph, self.pickle, self.limits, fetch);
        let mut decoder = decoder.of_file(order, self.file);
        objects
            .iter()
            .map(|object| decoder.root(object.0))
            .collect()
    }
}

/// An empty object of the class of a container, and what it doesn't say of the class, in words.
fn empty_of(
    class: Class<'_>,
    values: &BTreeMap<ObjectAt, Value>,
) -> (Opaque, Option<&'static str>) {
    let args = class
        .args
        .iter()
        .map(|arg| values.get(&ObjectAt(*arg)).cloned());
    let args: Option<Vec<Value>> = args.collect();
    let unsaid = match (&args, class.made) {
        (None, _) => Some("arguments of its class that hold tensors"),
        (_, Made::CallWithItems) => Some("that its class gets the items as an argument"),
        _ => None,
    };
    let mut args = args.unwrap_or_default();
    let construct = match class.made {
        Made::Sequence => Construct::Global,
        Made::New => Construct::NewObj(args),
        Made::Reconstructed => {
            args.push(Value::Dict(Vec::new()));
            Construct::Reduce(args)
        }
        Made::Known | Made::Call | Made::CallWithItems => Construct::Reduce(args),
    };
    (made(class.module, class.name, construct), unsaid)
}
