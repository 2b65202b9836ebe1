//! PyTorch's rules of flattening, on the graph of a pickle.

use super::{
    Contents, Found, KeyType, Leaf, ObjectAt,
    unsaid::{Survey, Unsaid, can_change, in_words},
};
use crate::{
    Budget, Error, Limits, Result,
    pickle::{Graph, How, Id, Node},
    tensor::{Meshes, Wrapped, is_part, part_of, tensor_of},
};
use reshard_model::{Path, Step};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
};

/// The name of the only leaf of a file that is one tensor, or one object.
const TENSOR: &str = "tensor";
const OBJECT: &str = "object";

/// A dict that a plain dict with texts as keys can't stand for.
pub(super) struct Around<'g> {
    pub(super) path: Path,
    /// Module and name of its class, if it is no plain dict.
    pub(super) class: Option<(&'g str, &'g str)>,
    /// The arguments of the class.
    pub(super) args: Vec<ObjectAt>,
    /// Its attributes.
    pub(super) state: Vec<(Box<str>, ObjectAt)>,
    pub(super) keys: Vec<(Box<str>, KeyType)>,
}

impl Around<'_> {
    /// The arguments and attributes.
    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectAt> {
        let state = self.state.iter().map(|(_, at)| at);
        self.args.iter().chain(state).copied()
    }
}

/// Takes the root apart. The dicts, whose classes and attributes are not decoded yet, come beside the other contents.
pub(super) fn contents<'g>(
    graph: &'g Graph<'_>,
    root: Id,
    limits: &'g Limits,
) -> Result<(Contents, Vec<Around<'g>>)> {
    let mut walk = Walk {
        graph,
        limits,
        budget: graph.budget().clone(),
        open: BTreeMap::new(),
        odd: BTreeMap::new(),
        path: Vec::new(),
        named: 0,
        out: Contents::default(),
        around: Vec::new(),
        first: BTreeMap::new(),
        leaves: BTreeMap::new(),
        meshes: Meshes::default(),
    };
    let pairs = walk.named(root);
    walk.out.has_root_dict = pairs.is_some();
    match pairs {
        Some(pairs) => walk.dict(root, &pairs)?,
        None => {
            let name = match is_tensor(graph, root) {
                true => TENSOR,
                false => OBJECT,
            };
            walk.path.push(name.into());
            walk.leaf(root)?;
        }
    }
    different(graph, root, &walk.out.leaves)?;
    walk.out.unsaid = walk.unsaid()?;
    Ok((walk.out, walk.around))
}

/// Fails if two leaves have one name.
fn different(graph: &Graph<'_>, root: Id, all: &[Found]) -> Result<()> {
    let mut names: BTreeMap<String, &Path> = BTreeMap::new();
    for found in all {
        if let Some(other) = names.insert(found.path.to_string(), &found.path) {
            let what = format!(
                "a file in which {} and {} have the same name, {},",
                other.quoted(),
                found.path.quoted(),
                found.path
            );
            return Err(graph.unsupported(root, what));
        }
    }
    Ok(())
}

struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    limits: &'g Limits,
    budget: Budget,
    /// Whether a list is taken apart; `None` while that is being found out.
    open: BTreeMap<Id, Option<bool>>,
    /// Whether a dict has keys that can't be steps of a path.
    odd: BTreeMap<Id, bool>,
    path: Vec<Step>,
    /// Bytes of all names so far.
    named: u64,
    out: Contents,
    around: Vec<Around<'g>>,
    /// Where each dict or list that is taken apart is first.
    first: BTreeMap<Id, Path>,
    /// The first leaf that is this object, by its number.
    leaves: BTreeMap<Id, usize>,
    meshes: Meshes,
}

impl<'g> Walk<'g, '_> {
    fn draw(&mut self, id: Id, bytes: u64) -> Result<()> {
        self.graph.draw(id, bytes, &mut self.budget)
    }

    fn place(&self) -> Path {
        Path::from(self.path.as_slice())
    }

    /// The memory of the path of the node, and what of it is text.
    fn path_takes(&self) -> (usize, usize) {
        let text = self.path.iter().map(step_len).sum();
        (text + self.path.len() * size_of::<Step>(), text)
    }

    fn take(&mut self, id: Id) -> Result<()> {
        if let Some(pairs) = self.named(id)
            && !pairs.is_empty()
        {
            return self.dict(id, &pairs);
        }
        match self.graph.node(id) {
            Node::List(items) if self.opens(id)? => self.list(id, items),
            _ => self.leaf(id),
        }
    }

    fn deeper(&self, id: Id) -> Result<()> {
        match self.path.len() as u64 >= u64::from(self.limits.depth) {
            true => Err(self
                .graph
                .beyond(id, "levels of nesting", self.limits.depth.into())),
            false => Ok(()),
        }
    }

    /// A key that is set twice keeps its place and takes the last value, as in Python.
    fn dict(&mut self, id: Id, pairs: &[(Id, Id)]) -> Result<()> {
        self.deeper(id)?;
        self.note_place(id)?;
        let pair = size_of::<(Box<str>, Id)>() as u64 * 2;
        let room = (pairs.len() as u64).saturating_mul(pair);
        self.draw(id, room)?;
        let mut items: indexmap::IndexMap<Box<str>, (Id, Id)> = indexmap::IndexMap::new();
        for &(key, value) in pairs {
            let Some(name) = name(self.graph, key) else {
                let what = "a dict with a key that is neither a str nor a number";
                return Err(self.graph.unsupported(key, what));
            };
            self.count(key, name.len())?;
            match items.get_mut(&*name) {
                // An int and its text are two keys in Python, and one name.
                Some((first, _)) if self.graph.node(*first) != self.graph.node(key) => {
                    let what = format!("a dict in which two keys have the name {name:?}");
                    return Err(self.graph.unsupported(key, what));
                }
                Some((_, last)) => *last = value,
                None => drop(items.insert(name, (key, value))),
            }
        }
        self.note_dict(id, &items)?;
        for (name, (_, value)) in items {
            self.path.push(Step::Key(name));
            self.take(value)?;
            self.path.pop();
        }
        self.budget.give_back(room);
        Ok(())
    }

    /// Notes where a dict or list is, and whether it has been at another place before.
    fn note_place(&mut self, id: Id) -> Result<()> {
        let (steps, _) = self.path_takes();
        let takes = 2 * steps + size_of::<(Id, Path)>() + 2 * size_of::<Path>();
        self.draw(id, takes as u64)?;
        let path = self.place();
        match self.first.entry(id) {
            Entry::Vacant(new) => drop(new.insert(path)),
            Entry::Occupied(first) => self.out.shared.push((path, first.get().clone())),
        }
        Ok(())
    }

    /// Notes the class of a dict, its attributes, and the types of its keys, if they are not those of a plain dict.
    fn note_dict(&mut self, id: Id, items: &indexmap::IndexMap<Box<str>, (Id, Id)>) -> Result<()> {
        let keys = items.iter().filter_map(|(name, (key, _))| {
            let kind = match self.graph.node(*key) {
                Node::Int(_) => KeyType::Int,
                Node::Bool(_) => KeyType::Bool,
                Node::None => KeyType::None,
                _ => return None,
            };
            Some((name.clone(), kind))
        });
        let keys: Vec<_> = keys.collect();
        let call = match self.graph.node(id) {
            Node::Call(call) => Some(&**call),
            _ => None,
        };
        if keys.is_empty() && call.is_none() {
            return Ok(());
        }
        let state = call.and_then(|call| call.state);
        let state = state.map_or_else(Vec::new, |state| attributes(self.graph, state));
        // Each key may become a path of its own.
        let (steps, _) = self.path_takes();
        let each = (steps + 2 * size_of::<Step>() + size_of::<Around<'_>>()) as u64;
        let noted = (keys.len() + state.len() + 1) as u64;
        self.draw(id, each.saturating_mul(noted))?;
        let class = call.and_then(|call| self.graph.as_global(call.callable));
        let is_plain_list =
            |args: &[Id]| class == Some(("collections", "OrderedDict")) && args.len() == 1;
        let args = call.and_then(|call| self.graph.as_seq(call.args));
        // Python 2 gives an OrderedDict its items as an argument.
        let args = args.filter(|args| !is_plain_list(args)).unwrap_or_default();
        self.around.push(Around {
            path: self.place(),
            class,
            args: args.iter().map(|arg| ObjectAt(*arg)).collect(),
            state,
            keys,
        });
        Ok(())
    }

    fn list(&mut self, id: Id, items: &[Id]) -> Result<()> {
        self.deeper(id)?;
        self.note_place(id)?;
        for (i, &item) in (0..).zip(items) {
            self.path.push(Step::Index(i));
            self.take(item)?;
            self.path.pop();
        }
        Ok(())
    }

    /// Text that is kept, however often the pickle refers to it.
    fn count(&mut self, id: Id, bytes: usize) -> Result<()> {
        self.named = self.named.saturating_add(bytes as u64);
        if self.named > self.limits.bytes {
            return Err(self.graph.beyond(id, "bytes of text", self.limits.bytes));
        }
        Ok(())
    }

    fn leaf(&mut self, id: Id) -> Result<()> {
        if self.out.leaves.len() as u64 >= self.limits.nodes {
            return Err(self.graph.beyond(id, "nodes", self.limits.nodes));
        }
        let (steps, text) = self.path_takes();
        self.count(id, text)?;
        // The path, its name where names are compared, and the description of a tensor.
        let takes = (steps + text + size_of::<Found>() + 256) as u64;
        self.draw(id, takes)?;
        if can_change(self.graph, id) {
            self.note_leaf(id, takes)?;
        }
        let leaf = match tensor_of(self.graph, id, Wrapped::Any) {
            Ok(Some(tensor)) => {
                if tensor.is_parameter || tensor.python_state.is_some() {
                    // Both are told with its path.
                    self.draw(id, 2 * takes)?;
                }
                Leaf::Tensor(Ok(Box::new(tensor)))
            }
            Ok(None) => match part_of(self.graph, id, &mut self.meshes, &mut self.budget) {
                Ok(Some(part)) => Leaf::Part(Box::new(part)),
                Ok(None) => Leaf::Object(ObjectAt(id)),
                Err(e @ Error::Limit { .. }) => return Err(e),
                Err(e) => Leaf::Tensor(Err(e)),
            },
            Err(e) => Leaf::Tensor(Err(e)),
        };
        let path = self.place();
        self.out.leaves.push(Found { path, leaf });
        Ok(())
    }

    /// Notes a leaf, and whether it has been at another place before. Each of the two paths takes about as much as was taken for it.
    fn note_leaf(&mut self, id: Id, takes: u64) -> Result<()> {
        self.draw(id, 4 * size_of::<(Id, usize)>() as u64)?;
        let first = *self.leaves.entry(id).or_insert(self.out.leaves.len());
        if let Some(first) = self.out.leaves.get(first) {
            self.graph.draw(id, 2 * takes, &mut self.budget)?;
            let shared = (self.place(), first.path.clone());
            self.out.shared.push(shared);
        }
        Ok(())
    }

    /// What the values of objects and of attributes do not say. An object that is an earlier leaf has been looked at.
    fn unsaid(&self) -> Result<Vec<(Path, String)>> {
        let mut survey = Survey::new(self.graph, self.limits.depth, self.budget.clone());
        for id in self.first.keys() {
            survey.container(*id)?;
        }
        let again: BTreeSet<&Path> = self.out.shared.iter().map(|(path, _)| path).collect();
        let mut numbers: Vec<(&Path, usize)> = Vec::new();
        for found in &self.out.leaves {
            match &found.leaf {
                Leaf::Tensor(Ok(tensor)) => survey.tensor(tensor)?,
                Leaf::Object(at) if !again.contains(&found.path) => {
                    numbers.push((&found.path, survey.object(at.0)?));
                }
                _ => {}
            }
        }
        let around = self.around.iter();
        for dict in around.filter(|dict| !again.contains(&dict.path)) {
            for at in dict.objects() {
                numbers.push((&dict.path, survey.object(at.0)?));
            }
        }
        let found = survey.finish();
        let mut all: BTreeMap<&Path, BTreeSet<Unsaid>> = BTreeMap::new();
        for (path, number) in numbers {
            let of = found.get(number).into_iter().flatten();
            all.entry(path).or_default().extend(of);
        }
        let all = all.into_iter().filter(|(_, of)| !of.is_empty());
        let all = all.map(|(path, of)| (path.clone(), in_words(&of)));
        Ok(all.collect())
    }

    /// Whether a list is taken apart: it holds a tensor or a dict, directly or in inner lists.
    fn opens(&mut self, id: Id) -> Result<bool> {
        // Lists are looked at without recursion, because they may be nested as deep as the pickle is long.
        let mut stack = vec![(id, 0)];
        while let Some((list, next)) = stack.pop() {
            let Node::List(items) = self.graph.node(list) else {
                continue;
            };
            if let Some(Some(_)) = self.open.get(&list) {
                continue;
            }
            self.open.insert(list, None);
            let Some(&item) = items.get(next) else {
                self.open.insert(list, Some(false));
                continue;
            };
            let holds = match self.graph.node(item) {
                Node::List(_) => match self.open.get(&item) {
                    None => {
                        stack.push((list, next));
                        stack.push((item, 0));
                        continue;
                    }
                    // A list that holds itself shows nothing new.
                    Some(known) => known.unwrap_or(false),
                },
                _ => self.is_dict(item) || is_tensor(self.graph, item),
            };
            match holds {
                true => drop(self.open.insert(list, Some(true))),
                false => stack.push((list, next + 1)),
            }
        }
        Ok(matches!(self.open.get(&id), Some(Some(true))))
    }

    fn is_dict(&mut self, id: Id) -> bool {
        match self.odd.get(&id) {
            Some(odd) => !odd,
            None => self.named(id).is_some(),
        }
    }

    /// The pairs of a dict all of whose keys can be steps of a path. A dict with other keys is one object. The keys of each dict are looked
    /// at once, however often it is referred to.
    fn named(&mut self, id: Id) -> Option<Cow<'g, [(Id, Id)]>> {
        if self.odd.get(&id) == Some(&true) {
            return None;
        }
        let graph = self.graph;
        let pairs = mapping(graph, id)?;
        let odd = || pairs.iter().any(|(key, _)| !is_name(graph.node(*key)));
        let odd = *self.odd.entry(id).or_insert_with(odd);
        (!odd).then_some(pairs)
    }
}

fn step_len(step: &Step) -> usize {
    match step {
        Step::Key(key) => key.len() + 1,
        Step::Index(_) => 20,
    }
}

fn is_tensor(graph: &Graph<'_>, id: Id) -> bool {
    is_part(graph, id) || !matches!(tensor_of(graph, id, Wrapped::Any), Ok(None))
}

/// The attributes of an object, from its state.
fn attributes(graph: &Graph<'_>, state: Id) -> Vec<(Box<str>, ObjectAt)> {
    let pairs = match graph.node(state) {
        Node::Dict(pairs) => pairs.as_slice(),
        // `__setstate__` or `__slots__` of a class that is not known.
        _ => return vec![("".into(), ObjectAt(state))],
    };
    let name = |key: Id| name(graph, key).unwrap_or_default();
    let pairs = pairs
        .iter()
        .map(|(key, value)| (name(*key), ObjectAt(*value)));
    pairs.collect()
}

/// The pairs of a dict, or of an object that is a dict for PyTorch: an `OrderedDict`, as `Module.state_dict` returns, or a `defaultdict`.
fn mapping<'g>(graph: &'g Graph<'_>, id: Id) -> Option<Cow<'g, [(Id, Id)]>> {
    let call = match graph.node(id) {
        Node::Dict(pairs) => return Some(pairs.into()),
        Node::Call(call) => call,
        _ => return None,
    };
    if (call.how, call.kwargs) != (How::Call, None) {
        return None;
    }
    let args = graph.as_seq(call.args)?;
    let is_one = match (graph.as_global(call.callable)?, args) {
        (("collections", "OrderedDict"), [items]) if call.pairs.is_empty() => {
            return pairs_of_python2(graph, *items).map(Cow::Owned);
        }
        (("collections", "OrderedDict"), args) => args.is_empty(),
        (("collections", "defaultdict"), args) => args.len() <= 1,
        _ => false,
    };
    (is_one && call.items.is_empty()).then_some((&*call.pairs).into())
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

fn is_name(node: &Node<'_>) -> bool {
    matches!(
        node,
        Node::Str(_) | Node::Int(_) | Node::Bool(_) | Node::None
    )
}

/// A key of a dict as PyTorch spells it in names: `str(key)`.
fn name(graph: &Graph<'_>, id: Id) -> Option<Box<str>> {
    Some(match graph.node(id) {
        Node::Str(s) => (&**s).into(),
        Node::Int(n) => n.to_string().into(),
        Node::Bool(true) => "True".into(),
        Node::Bool(false) => "False".into(),
        Node::None => "None".into(),
        _ => return None,
    })
}
