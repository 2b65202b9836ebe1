//! The nested dict of a file, made of the paths of its leaves.

use crate::told::{At, LeafPlan};
use indexmap::IndexMap;
use reshard_model::{Path, Step, Tree, Value};
use reshard_torch_format::Part;
use std::collections::{BTreeMap, BTreeSet};

/// More steps would not fit a pickle's nesting.
const DEPTH: usize = 400;
/// So many `None`s may fill the holes of lists, in all.
const PADDING: u64 = 1 << 20;

/// The dict of a file. Readers take the text of a path in it for a key, so it has the keys of the leaves, each once.
pub(super) fn tree_of(leaves: Vec<(&LeafPlan, Part)>, empty: &[Path], is_flat: bool) -> Tree<Part> {
    let plans: Vec<&LeafPlan> = leaves.iter().map(|(plan, _)| *plan).collect();
    let nested = (!is_flat).then(|| grown(&plans, empty, false)).flatten();
    // A key that is no path may be in the way of a dict. Keys differ, so all fit beside each other.
    let tree = nested.or_else(|| grown(&plans, &[], true));
    let mut parts: Vec<Option<Part>> = leaves.into_iter().map(|(_, part)| Some(part)).collect();
    tree.unwrap_or_default().map(&mut |number| {
        let part = number.and_then(|number: usize| parts.get_mut(number)?.take());
        part.unwrap_or(Part::Value(Value::None))
    })
}

/// The numbers of the leaves in a dict, with nothing in the holes of lists. `None` if two of its paths would have the same text.
fn grown(plans: &[&LeafPlan], empty: &[Path], is_flat: bool) -> Option<Tree<Option<usize>>> {
    let mut grown = Grown::new(is_flat);
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
    let tree = finished(grown.root);
    let mut is_hole_in_the_way = false;
    tree.visit(&mut |path, number| {
        is_hole_in_the_way |= number.is_none() && keys.contains(&*Path::from(path).to_string());
    });
    (!is_hole_in_the_way).then_some(tree)
}

enum Node {
    Dict(IndexMap<Step, Node>),
    List(BTreeMap<u64, Node>),
    /// The number of a leaf.
    Leaf(usize),
}

/// A dict that grows.
struct Grown {
    root: Node,
    /// Whether each leaf is stored under its key, with its dots.
    is_flat: bool,
    padding: u64,
}

impl Grown {
    fn new(is_flat: bool) -> Self {
        Self {
            root: Node::Dict(IndexMap::new()),
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
                (Some(Node::Dict(d)), At::Key(_) | At::Int(_)) => d.get(&step(at)),
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

fn step(at: &At) -> Step {
    match at {
        At::Key(key) => Step::Key(key.clone()),
        At::Int(n) | At::Index(n) => Step::Index(*n),
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
        (Node::Dict(d), at) => d.entry(step(at)).or_insert_with(next),
        _ => return,
    };
    put(child, rest, new);
}

fn finished(node: Node) -> Tree<Option<usize>> {
    match node {
        Node::Leaf(number) => Tree::Leaf(Some(number)),
        Node::Dict(d) => Tree::Dict(d.into_iter().map(|(k, v)| (k, finished(v))).collect()),
        Node::List(v) => {
            let mut out = Vec::new();
            for (i, node) in v {
                while (out.len() as u64) < i {
                    out.push(Tree::Leaf(None));
                }
                out.push(finished(node));
            }
            Tree::List(out)
        }
    }
}
