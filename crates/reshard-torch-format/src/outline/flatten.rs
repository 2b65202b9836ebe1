//! PyTorch's rules of flattening, on the graph of a pickle.

use super::{
    Contents, Found, FoundModule, KeyType, Leaf, ObjectAt,
    containers::{Class, Mapping, is_name, is_tensor, name, nth_value},
    modules::{Module, Modules, Parts},
    subclasses::{Subclass, SubclassNode},
    unsaid::{Survey, Unsaid, can_change, in_words},
};
use crate::{
    Budget, Error, Limits, Result,
    pickle::{Graph, Id, Node},
    tensor::{Meshes, Wrapped, part_of, tensor_of},
};
use reshard_model::{Path, Step};
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// The name of the only leaf of a file that is one tensor, or one object.
const TENSOR: &str = "tensor";
const OBJECT: &str = "object";

/// A dict that a plain dict with texts as keys can't stand for, a tuple, or a root that is a list.
pub(super) struct Around<'g> {
    pub(super) path: Path,
    /// Its class, if it is no plain dict.
    pub(super) class: Option<Class<'g>>,
    /// Its attributes.
    pub(super) state: Vec<(Box<str>, ObjectAt)>,
    pub(super) keys: Vec<(Box<str>, KeyType)>,
}

impl Around<'_> {
    /// The arguments and attributes.
    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectAt> {
        let args = self.class.map_or(&[][..], |class| class.args);
        let state = self.state.iter().map(|(_, at)| *at);
        args.iter().map(|arg| ObjectAt(*arg)).chain(state)
    }
}

/// Takes the root apart. The dicts, whose classes and attributes are not decoded yet, come beside the other contents.
pub(super) fn contents<'g>(
    graph: &'g Graph<'_>,
    root: Id,
    (limits, modules): (&'g Limits, &'g Modules),
) -> Result<(Contents, Vec<Around<'g>>, Vec<SubclassAt>)> {
    let mut walk = Walk {
        graph,
        limits,
        modules,
        known: BTreeMap::new(),
        budget: graph.budget().clone(),
        open: BTreeMap::new(),
        holding: BTreeMap::new(),
        tuples: matches!(graph.node(root), Node::List(_) | Node::Tuple(_)),
        odd: BTreeMap::new(),
        path: Vec::new(),
        named: 0,
        out: Contents::default(),
        around: Vec::new(),
        first: BTreeMap::new(),
        leaves: BTreeMap::new(),
        meshes: Meshes::default(),
        subclasses: Vec::new(),
    };
    walk.out.opens = true;
    match (walk.named(root)?, graph.node(root)) {
        (Some(dict), _) => walk.dict(root, &dict)?,
        (None, Node::List(items)) if walk.holds(root)? => {
            walk.note_around(root, Some(Class::LIST), Vec::new(), Vec::new())?;
            walk.list(root, items)?;
        }
        (None, Node::Tuple(items)) if walk.holds(root)? => walk.tuple(root, items)?,
        (None, Node::Call(_)) if modules.open && walk.module(root)?.is_some() => walk.take(root)?,
        (None, _) => {
            walk.out.opens = false;
            let name = match is_tensor(graph, root) {
                true => TENSOR,
                false => OBJECT,
            };
            walk.path.push(name.into());
            match walk.module(root)? {
                Some(module) => walk.found_module(root, &module)?,
                None => walk.leaf(root)?,
            }
        }
    }
    different(graph, root, &walk.out.leaves)?;
    walk.out.unsaid = walk.unsaid()?;
    Ok((walk.out, walk.around, walk.subclasses))
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

/// Called with the name of a part of a module and the part, or with `None` and whether the module has hooks.
type EachPart<'f, 'g, 'a> =
    &'f mut dyn FnMut(&mut Walk<'g, 'a>, &str, Option<Id>, bool) -> Result<()>;

struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    limits: &'g Limits,
    modules: &'g Modules,
    /// The objects that were looked at, and which modules they are.
    known: BTreeMap<Id, Option<Module<'g>>>,
    budget: Budget,
    /// Whether a list is taken apart; `None` while that is being found out.
    open: BTreeMap<Id, Option<bool>>,
    /// Whether there is a tensor somewhere in a container; `None` while that is being found out.
    holding: BTreeMap<Id, Option<bool>>,
    /// Whether tuples are taken apart: below a root that is no dict, for which PyTorch has no rule.
    tuples: bool,
    /// Whether a dict is one object: it has keys that can't be steps of a path, or it is of an unknown class and has no tensors.
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
    subclasses: Vec<SubclassAt>,
}

/// The path of a tensor of torchao, those of its inner tensors, and its node.
pub(super) type SubclassAt = (Path, Vec<Path>, Id);

impl super::subclasses::Survey for Walk<'_, '_> {
    fn draw(&mut self, id: Id, name: u64) -> Result<()> {
        let (steps, _) = self.path_takes();
        let takes = 4 * (steps as u64 + name) + 512;
        self.graph.draw(id, takes, &mut self.budget)
    }

    fn holds(&mut self, id: Id) -> Result<bool> {
        Walk::holds(self, id)
    }
}

impl<'g, 'a> Walk<'g, 'a> {
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
        if let Some(dict) = self.named(id)?
            && !dict.pairs.is_empty()
        {
            return self.dict(id, &dict);
        }
        match self.graph.node(id) {
            Node::List(items) if self.opens(id)? => self.list(id, items),
            Node::Tuple(items) if self.tuples && self.holds(id)? => self.tuple(id, items),
            Node::Call(_) => match self.module(id)? {
                Some(module) => self.found_module(id, &module),
                None if self.subclass(id)? => Ok(()),
                None => self.leaf(id),
            },
            _ => self.leaf(id),
        }
    }

    /// Takes a tensor of torchao apart. Returns whether it is one that has names for its inner tensors.
    fn subclass(&mut self, id: Id) -> Result<bool> {
        let Some(node) = SubclassNode::of(self.graph, id) else {
            return Ok(false);
        };
        let (graph, path) = (self.graph, self.place());
        let Some(inner) = node.inner(graph, self)? else {
            return Ok(false);
        };
        let mut paths = Vec::with_capacity(inner.len());
        for (name, _) in &inner {
            let Some(path) = Subclass::inner_path(&path, name) else {
                return Ok(false);
            };
            paths.push(path);
        }
        let own = self.path.pop();
        for ((_, value), path) in inner.into_iter().zip(&paths) {
            self.path.extend(path.0.last().cloned());
            self.leaf(value)?;
            self.path.pop();
        }
        self.path.extend(own);
        self.subclasses.push((path, paths, id));
        Ok(true)
    }

    /// The module that a node is, if it is one. Each node is looked at once.
    fn module(&mut self, id: Id) -> Result<Option<Module<'g>>> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        self.draw(id, 4 * size_of::<(Id, Option<Module<'_>>)>() as u64)?;
        let module = Module::of(self.graph, id, self.modules);
        self.known.insert(id, module);
        Ok(module)
    }

    /// Takes a module apart, if modules are opened, and notes how many tensors it has.
    fn found_module(&mut self, id: Id, module: &Module<'g>) -> Result<()> {
        let (steps, text) = self.path_takes();
        let (name, open) = (module.class, self.modules.open);
        let class = format!("{}.{}", name.0, name.1);
        self.draw(id, (2 * (steps + text + class.len()) + 256) as u64)?;
        let path = self.place();
        if open {
            self.note_place(id)?;
        }
        let mut all = Vec::new();
        let mut hooks = false;
        self.parts_of(
            id,
            module,
            (&mut String::new(), &mut Vec::new()),
            &mut |walk, name, value, hooked| {
                hooks |= hooked;
                if let Some(value) = value {
                    walk.draw(value, (size_of::<(Box<str>, Id)>() + name.len()) as u64)?;
                    all.push((Box::<str>::from(name), value));
                }
                Ok(())
            },
        )?;
        let is_tensor = |(_, value): &&(Box<str>, Id)| is_tensor(self.graph, *value);
        let tensors = all.iter().filter(is_tensor).count();
        match open {
            true => {
                for (name, value) in all {
                    self.path.push(Step::Key(name));
                    self.leaf(value)?;
                    self.path.pop();
                }
            }
            false => self.leaf(id)?,
        }
        self.out.modules.push(FoundModule {
            path,
            class: class.into(),
            tensors,
            hooks,
        });
        Ok(())
    }

    /// Calls `f` for everything that `state_dict()` of a module would return, with its name.
    fn parts_of(
        &mut self,
        id: Id,
        module: &Module<'g>,
        (prefix, above): (&mut String, &mut Vec<Id>),
        f: EachPart<'_, 'g, 'a>,
    ) -> Result<()> {
        if above.contains(&id) {
            return Err(self.graph.unsupported(id, "a module that contains itself"));
        }
        if above.len() as u64 >= u64::from(self.limits.depth) {
            let depth = self.limits.depth.into();
            return Err(self.graph.beyond(id, "levels of nesting", depth));
        }
        let parts = module.parts(self.graph, self.modules.script.as_ref());
        let Some(parts) = parts else {
            let what = "a module in which the name of a part is no text";
            return Err(self.graph.unsupported(id, what));
        };
        // A module is looked at each time that it is named, so each time takes something.
        let takes = (parts.len() + 1) as u64 * 64 + prefix.len() as u64;
        self.draw(id, takes)?;
        let hooks = matches!(module.parts, Parts::Dicts { hooks: true, .. });
        f(self, prefix, None, hooks)?;
        above.push(id);
        let own = prefix.len();
        for part in parts {
            prefix.push_str(part.name);
            match self.module(part.value)?.filter(|_| part.is_module) {
                Some(module) => {
                    prefix.push('.');
                    self.parts_of(part.value, &module, (prefix, above), f)?;
                }
                None => f(self, prefix, Some(part.value), false)?,
            }
            prefix.truncate(own);
        }
        above.pop();
        Ok(())
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
    fn dict(&mut self, id: Id, dict: &Mapping<'g>) -> Result<()> {
        let pairs = &*dict.pairs;
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
        self.note_dict(id, dict.class, &items)?;
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
    fn note_dict(
        &mut self,
        id: Id,
        class: Option<Class<'g>>,
        items: &indexmap::IndexMap<Box<str>, (Id, Id)>,
    ) -> Result<()> {
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
        let state = match self.graph.node(id) {
            Node::Call(call) => call.state,
            _ => None,
        };
        if keys.is_empty() && class.is_none() {
            return Ok(());
        }
        let state = state.map_or_else(Vec::new, |state| attributes(self.graph, state));
        self.note_around(id, class, state, keys)
    }

    fn note_around(
        &mut self,
        id: Id,
        class: Option<Class<'g>>,
        state: Vec<(Box<str>, ObjectAt)>,
        keys: Vec<(Box<str>, KeyType)>,
    ) -> Result<()> {
        // Each key may become a path of its own.
        let (steps, _) = self.path_takes();
        let each = (steps + 2 * size_of::<Step>() + size_of::<Around<'_>>()) as u64;
        let noted = (keys.len() + state.len() + 1) as u64;
        self.draw(id, each.saturating_mul(noted))?;
        self.around.push(Around {
            path: self.place(),
            class,
            state,
            keys,
        });
        Ok(())
    }

    fn tuple(&mut self, id: Id, items: &[Id]) -> Result<()> {
        self.note_around(id, Some(Class::TUPLE), Vec::new(), Vec::new())?;
        self.list(id, items)
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

    /// Whether a list is taken apart: it holds a tensor or a dict, directly or in inner lists; below a root that is no
    /// dict, also a tuple with a tensor.
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
                Node::Tuple(_) => self.tuples && self.holds(item)?,
                _ => self.is_dict(item)? || self.is_shown(item)?,
            };
            match holds {
                true => drop(self.open.insert(list, Some(true))),
                false => stack.push((list, next + 1)),
            }
        }
        Ok(matches!(self.open.get(&id), Some(Some(true))))
    }

    /// Whether there is a tensor in a container, directly or in inner lists, tuples and dicts.
    fn holds(&mut self, id: Id) -> Result<bool> {
        let graph = self.graph;
        // As in `opens`, without recursion.
        let mut stack = vec![(id, 0)];
        while let Some((container, next)) = stack.pop() {
            if let Some(Some(_)) = self.holding.get(&container) {
                continue;
            }
            if self.holding.insert(container, None).is_none() {
                self.draw(container, 4 * size_of::<(Id, Option<bool>, usize)>() as u64)?;
            }
            let Some(value) = nth_value(graph, container, next) else {
                self.holding.insert(container, Some(false));
                continue;
            };
            let holds = match (self.is_shown(value)?, self.holding.get(&value)) {
                (true, _) => true,
                (false, None) if nth_value(graph, value, 0).is_some() => {
                    stack.push((container, next));
                    stack.push((value, 0));
                    continue;
                }
                // A container that holds itself shows nothing new.
                (false, known) => known.copied().flatten().unwrap_or(false),
            };
            match holds {
                true => drop(self.holding.insert(container, Some(true))),
                false => stack.push((container, next + 1)),
            }
        }
        Ok(matches!(self.holding.get(&id), Some(Some(true))))
    }

    /// Whether a node is a tensor, or a module that is opened.
    fn is_shown(&mut self, id: Id) -> Result<bool> {
        Ok(is_tensor(self.graph, id) || (self.modules.open && self.module(id)?.is_some()))
    }

    fn is_dict(&mut self, id: Id) -> Result<bool> {
        Ok(match self.odd.get(&id) {
            Some(odd) => !odd,
            None => self.named(id)?.is_some(),
        })
    }

    /// A dict all of whose keys can be steps of a path. A dict with other keys is one object, and so is one of an unknown class without
    /// tensors. The keys of each dict are looked at once, however often it is referred to.
    fn named(&mut self, id: Id) -> Result<Option<Mapping<'g>>> {
        if self.odd.get(&id) == Some(&true) {
            return Ok(None);
        }
        let graph = self.graph;
        let Some(dict) = Mapping::of(graph, id) else {
            return Ok(None);
        };
        let odd = match self.odd.get(&id) {
            Some(odd) => *odd,
            None => {
                let odd = dict.pairs.iter().any(|(key, _)| !is_name(graph.node(*key)));
                odd || (!dict.is_known() && !self.holds(id)?)
            }
        };
        self.odd.insert(id, odd);
        Ok((!odd).then_some(dict))
    }
}

fn step_len(step: &Step) -> usize {
    match step {
        Step::Key(key) => key.len() + 1,
        Step::Index(_) => 20,
    }
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
