//! The nested dict of a file, made of the paths of its leaves.

use crate::told::{At, LeafPlan, What};
use indexmap::IndexMap;
use reshard_model::{Construct, Opaque, Path, Step, Value};
use reshard_strategy::{Result, StrategyError};
use reshard_torch_format::{Part, PartDict, PartTree, TensorRef};
use std::collections::{BTreeMap, BTreeSet};

/// More steps would not fit a pickle's nesting.
const DEPTH: usize = 400;
/// So many `None`s may fill the holes of lists, in all.
const PADDING: u64 = 1 << 20;

/// The dict of a file, or the list or tuple that `classes` has for the root. Readers take the text of a path in it for a key, so it has the
/// keys of the leaves, each once. `classes` has the objects of dicts that are no plain ones, and the classes of tuples, by path.
pub(crate) fn tree_of(
    leaves: Vec<(&LeafPlan, PartTree)>,
    empty: &[Path],
    (is_flat, classes): (bool, BTreeMap<Path, Box<Opaque>>),
) -> PartTree {
    let plans: Vec<&LeafPlan> = leaves.iter().map(|(plan, _)| *plan).collect();
    let root = match classes.get(&Path::default()) {
        Some(class) if is_sequence(class) => Node::List(BTreeMap::new()),
        _ => Node::Dict(IndexMap::new()),
    };
    let grow = |root, empty: &[Path], is_flat| grown(&plans, empty, Grown::new(root, is_flat));
    let nested = (!is_flat).then(|| grow(root, empty, false)).flatten();
    // A key that is no path may be in the way of a dict. Keys differ, so all fit beside each other.
    let root = nested.or_else(|| grow(Node::Dict(IndexMap::new()), &[], true));
    let mut finish = Finish {
        classes,
        parts: leaves.into_iter().map(|(_, part)| Some(part)).collect(),
        path: Path::default(),
    };
    finish.node(root.unwrap_or_else(|| Node::Dict(IndexMap::new())))
}

/// Whether the class of a container is that of lists or tuples.
fn is_sequence(class: &Opaque) -> bool {
    class.construct == Construct::Global
}

/// The numbers of the leaves in a root, with nothing in the holes of lists. `None` if two of its paths would have the same text.
fn grown(plans: &[&LeafPlan], empty: &[Path], mut grown: Grown) -> Option<Node> {
    for (number, leaf) in plans.iter().enumerate() {
        grown.add(leaf, number)?;
    }
    let keys: BTreeSet<&str> = plans.iter().map(|leaf| &*leaf.key).collect();
    for path in empty
        .iter()
        .filter(|path| !keys.contains(&*path.to_string()))
    {
        grown.add_empty(path);
    }
    let is_in_the_way = has_hole(&grown.root, &mut Path::default(), &keys);
    (!is_in_the_way).then_some(grown.root)
}

/// Whether a hole of a list has one of these keys as the text of its path.
fn has_hole(node: &Node, path: &mut Path, keys: &BTreeSet<&str>) -> bool {
    let mut below = |step: Step, node: Option<&Node>| {
        path.0.push(step);
        let found = match node {
            Some(node) => has_hole(node, path, keys),
            None => keys.contains(&*path.to_string()),
        };
        path.0.pop();
        found
    };
    match node {
        Node::Leaf(_) => false,
        Node::Dict(d) => d.iter().any(|(at, node)| below(step(at), Some(node))),
        Node::List(v) => {
            let end = v.last_key_value().map_or(0, |(last, _)| last + 1);
            (0..end).any(|i| below(Step::Index(i), v.get(&i)))
        }
    }
}

enum Node {
    /// By their keys, none of which is an index.
    Dict(IndexMap<At, Node>),
    List(BTreeMap<u64, Node>),
    /// The number of a leaf.
    Leaf(usize),
}

/// A root that grows.
struct Grown {
    root: Node,
    /// Whether each leaf is stored under its key, with its dots.
    is_flat: bool,
    padding: u64,
}

impl Grown {
    fn new(root: Node, is_flat: bool) -> Self {
        Self {
            root,
            is_flat,
            padding: PADDING,
        }
    }

    /// Puts a leaf where its path says, or under its key if something else is there. `None` if something is there, too.
    fn add(&mut self, leaf: &LeafPlan, number: usize) -> Option<()> {
        let direct = [At::Key(leaf.key.clone())];
        let nested = !self.is_flat && leaf.path.len() <= DEPTH && self.is_free(&leaf.path);
        if !nested && !self.is_free(&direct) {
            return None;
        }
        let path = if nested { &leaf.path } else { &direct[..] };
        put(&mut self.root, path, Node::Leaf(number));
        Some(())
    }

    /// Puts an empty dict where nothing is.
    fn add_empty(&mut self, path: &Path) {
        let step = |step: &Step| match step {
            Step::Key(key) => At::Key(key.clone()),
            Step::Index(i) => At::Index(*i),
        };
        let path: Vec<At> = path.0.iter().map(step).collect();
        if !path.is_empty() && path.len() <= DEPTH && self.is_free(&path) {
            put(&mut self.root, &path, Node::Dict(IndexMap::new()));
        }
    }

    /// Whether a path leads to a place where nothing is, through dicts and lists only. It may not leave very large holes in a list.
    fn is_free(&mut self, path: &[At]) -> bool {
        let (mut node, mut holes) = (Some(&self.root), 0);
        for at in path {
            node = match (node, at) {
                (None, At::Index(i)) => {
                    holes = i.saturating_add(holes);
                    None
                }
                (None, _) => None,
                (Some(Node::Dict(d)), at) if !matches!(at, At::Index(_)) => d.get(at),
                (Some(Node::List(v)), At::Index(i)) => {
                    let end = v.last_key_value().map_or(0, |(last, _)| last + 1);
                    holes = i.saturating_sub(end).saturating_add(holes);
                    v.get(i)
                }
                _ => return false,
            };
        }
        let free = node.is_none() && holes <= self.padding;
        if free {
            self.padding -= holes;
        }
        free
    }
}

/// A step of a path, with keys as text.
fn step(at: &At) -> Step {
    match at {
        At::Key(key) => Step::Key(key.clone()),
        At::Int(n) => Step::Key(n.to_string().into()),
        At::Bool(true) => "True".into(),
        At::Bool(false) => "False".into(),
        At::None => "None".into(),
        At::Index(n) => Step::Index(*n),
    }
}

fn key(at: At) -> Value {
    match at {
        At::Key(key) => Value::Str(key),
        At::Int(n) => n.into(),
        At::Bool(b) => b.into(),
        At::None => Value::None,
        At::Index(n) => n.into(),
    }
}

fn put(root: &mut Node, path: &[At], new: Node) {
    let Some((first, rest)) = path.split_first() else {
        *root = new;
        return;
    };
    let next = || match rest.first() {
        Some(At::Index(_)) => Node::List(BTreeMap::new()),
        _ => Node::Dict(IndexMap::new()),
    };
    let child = match (root, first) {
        (Node::List(v), At::Index(i)) => v.entry(*i).or_insert_with(next),
        (Node::Dict(d), at) => d.entry(at.clone()).or_insert_with(next),
        _ => return,
    };
    put(child, rest, new);
}

struct Finish {
    classes: BTreeMap<Path, Box<Opaque>>,
    /// By the numbers of the leaves.
    parts: Vec<Option<PartTree>>,
    /// Of the node that is finished at the moment.
    path: Path,
}

impl Finish {
    fn node(&mut self, node: Node) -> PartTree {
        match node {
            Node::Leaf(number) => {
                let part = self.parts.get_mut(number).and_then(Option::take);
                part.unwrap_or(PartTree::Leaf(Part::Value(Value::None)))
            }
            Node::Dict(d) => {
                let class = self.classes.remove(&self.path);
                let class = class.filter(|class| !is_sequence(class));
                let pairs = d.into_iter().map(|(at, node)| {
                    let tree = self.below(step(&at), node);
                    (key(at), tree)
                });
                let pairs = pairs.collect();
                PartTree::Dict(PartDict { class, pairs })
            }
            Node::List(v) => {
                let class = self.classes.remove(&self.path);
                let mut out = Vec::new();
                for (i, node) in v {
                    while (out.len() as u64) < i {
                        out.push(PartTree::Leaf(Part::Value(Value::None)));
                    }
                    out.push(self.below(Step::Index(i), node));
                }
                match class {
                    Some(class) if is_sequence(&class) && &*class.name == "tuple" => {
                        PartTree::Tuple(out)
                    }
                    _ => PartTree::List(out),
                }
            }
        }
    }

    fn below(&mut self, step: Step, node: Node) -> PartTree {
        self.path.0.push(step);
        let tree = self.node(node);
        self.path.0.pop();
        tree
    }
}

pub(crate) fn described(what: &What) -> Result<TensorRef> {
    let What::Tensor {
        dtype,
        shape,
        requires_grad,
        python,
    } = what
    else {
        let what = "an object is described as a tensor";
        return Err(StrategyError::Internal(what.into()));
    };
    let mut tensor = TensorRef::contiguous(*dtype, shape).map_err(encoding)?;
    tensor.requires_grad = *requires_grad;
    tensor.is_parameter = python.is_parameter;
    if let Some(device) = &python.device {
        tensor.storage.location = device.clone();
    }
    Ok(tensor)
}

pub(crate) fn encoding(e: reshard_torch_format::Error) -> StrategyError {
    StrategyError::Invalid(e.to_string())
}
