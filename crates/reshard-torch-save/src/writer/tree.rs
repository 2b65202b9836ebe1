//! The nested dict of a file, made of the paths of its leaves.

use crate::told::{At, LeafPlan};
use indexmap::IndexMap;
use reshard_model::{Path, Step, Tree, Value};
use reshard_torch_format::Part;
use std::collections::BTreeMap;

/// More steps would not fit a pickle's nesting.
const DEPTH: usize = 400;
/// So many `None`s may fill the holes of lists, in all.
const PADDING: u64 = 1 << 20;

enum Node {
    Dict(IndexMap<Step, Node>),
    List(BTreeMap<u64, Node>),
    Leaf(Part),
}

/// A dict that grows.
pub(super) struct Grown {
    root: Node,
    /// Whether each leaf lies under its key, with its dots.
    flat: bool,
    padding: u64,
}

impl Grown {
    pub(super) fn new(flat: bool) -> Self {
        Self {
            root: Node::Dict(IndexMap::new()),
            flat,
            padding: PADDING,
        }
    }

    /// Puts a leaf where its path says, or under its key if something else is there.
    pub(super) fn add(&mut self, leaf: &LeafPlan, part: Part) {
        let direct = [At::Key(leaf.key.clone())];
        let nested = !self.flat && leaf.path.len() <= DEPTH && self.is_free(&leaf.path);
        let path = if nested { &leaf.path } else { &direct[..] };
        put(&mut self.root, path, Node::Leaf(part));
    }

    /// Puts an empty dict where nothing is.
    pub(super) fn add_empty(&mut self, path: &Path) {
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

    pub(super) fn tree(self) -> Tree<Part> {
        finished(self.root)
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

fn finished(node: Node) -> Tree<Part> {
    match node {
        Node::Leaf(part) => Tree::Leaf(part),
        Node::Dict(d) => Tree::Dict(d.into_iter().map(|(k, v)| (k, finished(v))).collect()),
        Node::List(v) => {
            let mut out = Vec::new();
            for (i, node) in v {
                while (out.len() as u64) < i {
                    out.push(Tree::Leaf(Part::Value(Value::None)));
                }
                out.push(finished(node));
            }
            Tree::List(out)
        }
    }
}
