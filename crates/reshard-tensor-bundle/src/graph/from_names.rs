//! Makes the object graph of a checkpoint from the names of its tensors.

use super::{ObjectGraph, ObjectNode};
use std::collections::{BTreeMap, VecDeque};

/// Stands between the path of an object and the name of its attribute.
const ATTRIBUTES: &str = "/.ATTRIBUTES/";

/// Stands between the path of a variable and that of the optimizer that keeps a slot for it.
pub(super) const SLOT: &str = ".OPTIMIZER_SLOT";

/// The attribute that holds the value of a variable.
const VALUE: &str = "VARIABLE_VALUE";

/// A name in the path of an object.
pub(super) fn escaped(name: &str) -> String {
    name.replace('.', "..").replace('/', ".S")
}

/// The name that was escaped so.
fn unescaped(name: &str) -> String {
    let (mut out, mut rest) = (String::new(), name.chars());
    while let Some(c) = rest.next() {
        match c {
            '.' => match rest.next() {
                Some('S') => out.push('/'),
                Some('.') | None => out.push('.'),
                Some(other) => out.extend(['.', other]),
            },
            c => out.push(c),
        }
    }
    out
}

/// A path has at most so many names. The rest of a longer one is its last name.
const DEEPEST: usize = 64;

#[derive(Default)]
struct Tree {
    children: BTreeMap<String, Tree>,
    attributes: Vec<(String, String)>,
    /// Its number, once it has one.
    number: u32,
}

impl Tree {
    fn at(&mut self, path: &[String]) -> &mut Self {
        let mut node = self;
        for name in path {
            node = node.children.entry(name.clone()).or_default();
        }
        node
    }

    fn get(&self, path: &[String]) -> Option<&Self> {
        path.iter()
            .try_fold(self, |node, name| node.children.get(name))
    }

    /// Adds a value, unless the object has one of that attribute.
    fn add(&mut self, attribute: &str, key: &str) {
        if self.attributes.iter().all(|(name, _)| name != attribute) {
            self.attributes.push((attribute.into(), key.into()));
        }
    }
}

/// A slot: variable, optimizer, name, attribute, key.
type Slot<'k> = (Vec<String>, Vec<String>, String, &'k str, &'k str);

/// Whether a tensor has a name as TensorFlow gives it to a value of an object. Others can't be in an object graph: TensorFlow makes the names
/// by which it reads from those in the graph.
pub(crate) fn is_of_object(name: &str) -> bool {
    name.contains(ATTRIBUTES)
}

/// The name that TensorFlow gives to the value of a variable with this path: `net.weight`, or `net/weight`, is `net/weight/.ATTRIBUTES/VARIABLE_VALUE`.
/// Such a name stays as it is.
pub(crate) fn name_of_object(key: &str) -> String {
    if is_of_object(key) {
        return key.into();
    }
    let by = if key.contains('/') { '/' } else { '.' };
    let path: Vec<String> = key.split(by).map(escaped).collect();
    format!("{}{ATTRIBUTES}{VALUE}", path.join("/"))
}

/// The graph in which each tensor belongs to an object with the path in its name. Tensors with other names are not in it.
pub(crate) fn from_names<'k>(keys: impl IntoIterator<Item = &'k str>) -> Vec<u8> {
    let (mut root, mut slots) = (Tree::default(), Vec::<Slot<'k>>::new());
    let of = |path: &str| -> Vec<String> { path.splitn(DEEPEST, '/').map(unescaped).collect() };
    for key in keys {
        let Some((path, attribute)) = key.rsplit_once(ATTRIBUTES) else {
            continue;
        };
        let slot = path
            .split_once(&format!("/{SLOT}/"))
            .and_then(|(variable, slot)| Some((variable, slot.rsplit_once('/')?)));
        match slot {
            Some((variable, (optimizer, name))) => {
                slots.push((of(variable), of(optimizer), unescaped(name), attribute, key));
            }
            None => root.at(&of(path)).add(attribute, key),
        }
    }
    for (variable, optimizer, ..) in &slots {
        root.at(variable);
        root.at(optimizer);
    }
    numbered(&mut root, &slots).to_bytes()
}

/// Objects in the order of their distance from the root, then the variables in slots.
fn numbered(root: &mut Tree, slots: &[Slot<'_>]) -> ObjectGraph {
    let mut nodes = Vec::new();
    let (mut queue, mut next) = (VecDeque::from([&mut *root]), 1);
    while let Some(tree) = queue.pop_front() {
        let mut node = ObjectNode {
            attributes: std::mem::take(&mut tree.attributes),
            ..ObjectNode::default()
        };
        for (name, child) in &mut tree.children {
            child.number = next;
            node.children.push((name.clone(), next));
            next += 1;
            queue.push_back(child);
        }
        nodes.push(node);
    }
    for (variable, optimizer, name, attribute, key) in slots {
        let (Some(variable), Some(optimizer)) = (root.get(variable), root.get(optimizer)) else {
            continue;
        };
        if let Some(optimizer) = nodes.get_mut(optimizer.number as usize) {
            optimizer.slots.push((variable.number, name.clone(), next));
        }
        next += 1;
        nodes.push(ObjectNode {
            attributes: vec![((*attribute).into(), (*key).into())],
            ..ObjectNode::default()
        });
    }
    ObjectGraph {
        nodes,
        ..ObjectGraph::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_read_again() {
        for name in ["a", "a.b", "a/b", "..", "/", ".S", "a.S/b"] {
            assert_eq!(unescaped(&escaped(name)), name);
            assert!(!escaped(name).contains('/'));
        }
        assert_eq!(unescaped("."), ".");
        assert_eq!(unescaped(".x"), ".x");
    }

    #[test]
    fn a_path_with_dots_or_slashes_becomes_the_name_of_a_value() {
        for (key, name) in [
            ("net.weight", "net/weight/.ATTRIBUTES/VARIABLE_VALUE"),
            ("net/a.b", "net/a..b/.ATTRIBUTES/VARIABLE_VALUE"),
            ("step", "step/.ATTRIBUTES/VARIABLE_VALUE"),
            ("a/.ATTRIBUTES/X", "a/.ATTRIBUTES/X"),
        ] {
            assert_eq!(name_of_object(key), name);
            assert!(is_of_object(name));
        }
        let graph = ObjectGraph::parse(&from_names(["net.weight"])).unwrap();
        assert!(graph.owner_paths().is_empty());
    }
}
