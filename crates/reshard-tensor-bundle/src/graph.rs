//! The object graph of a checkpoint: which object of a program has which tensor.

mod from_names;

use prost::Message;
use reshard_model::Value;
use std::collections::{BTreeMap, VecDeque};

pub(crate) use from_names::{from_names, is_of_object, name_of_object};

/// The key of the object graph.
pub const OBJECT_GRAPH: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

/// The most bytes of all owner paths together, as so many times the bytes of the graph, and in addition.
const PATHS: (usize, usize) = (64, 1 << 20);

/// `TrackableObjectGraph`: the objects of the program that saved a checkpoint, and the keys of their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectGraph {
    /// The objects. The first one is the root.
    pub nodes: Vec<ObjectNode>,
    bytes: usize,
}

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectNode {
    /// Objects that it refers to, by their name in it.
    pub children: Vec<(String, u32)>,
    /// Its values: the name of an attribute, and the key in the checkpoint.
    pub attributes: Vec<(String, String)>,
    /// Variables that it keeps for others: the variable, the name of the slot, and the variable in it.
    pub slots: Vec<(u32, String, u32)>,
}

impl ObjectGraph {
    /// Parses the bytes under the key [`OBJECT_GRAPH`]. `None` if they are no object graph.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let stored = Stored::decode(bytes).ok()?.nodes.into_iter();
        let nodes = stored.map(|node| Some(Node::decode(&*node).ok()?.into()));
        let out = Self {
            nodes: nodes.collect::<Option<_>>()?,
            bytes: bytes.len(),
        };
        let known = |n: &u32| (*n as usize) < out.nodes.len();
        let is_sound = |node: &ObjectNode| {
            node.children.iter().all(|(_, n)| known(n))
                && node.slots.iter().all(|(a, _, b)| known(a) && known(b))
        };
        let sound = out.nodes.iter().all(is_sound);
        sound.then_some(out)
    }

    /// The graph that an object of a checkpoint is. `None` for other values.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bytes(bytes) => Self::parse(bytes),
            Value::Str(text) => Self::parse(text.as_bytes()),
            _ => None,
        }
    }

    /// The path of the object that has the value of a key, from the root, by key: names joined by `/`, in TensorFlow's escapes. A slot
    /// variable has the path of its variable, `.OPTIMIZER_SLOT`, the path of its optimizer and the name of the slot.
    ///
    /// An object that nothing leads to has no path, and neither have those for which a hostile graph asks too much memory.
    pub fn owner_paths(&self) -> BTreeMap<String, String> {
        // By which object, under which name, each object is reached first.
        let mut from: Vec<Option<(u32, &str)>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([0u32]);
        while let Some(at) = queue.pop_front() {
            for (name, child) in self
                .nodes
                .get(at as usize)
                .iter()
                .flat_map(|node| &node.children)
            {
                if let Some(slot @ None) = from.get_mut(*child as usize)
                    && *child != 0
                {
                    *slot = Some((at, name));
                    queue.push_back(*child);
                }
            }
        }
        let mut slots: BTreeMap<u32, (u32, &str, u32)> = BTreeMap::new();
        for (optimizer, node) in (0..).zip(&self.nodes) {
            for (variable, name, slot) in &node.slots {
                slots.entry(*slot).or_insert((*variable, name, optimizer));
            }
        }

        let mut room = PATHS.0.saturating_mul(self.bytes).saturating_add(PATHS.1);
        let mut out = BTreeMap::new();
        for (n, node) in (0..).zip(&self.nodes) {
            let path = |n, room: &mut usize| match slots.get(&n) {
                Some((variable, slot, optimizer)) if from.get(n as usize) == Some(&None) => {
                    let (variable, optimizer) = (
                        path(&from, *variable, room)?,
                        path(&from, *optimizer, room)?,
                    );
                    Some(format!(
                        "{variable}/{}/{optimizer}/{}",
                        from_names::SLOT,
                        from_names::escaped(slot)
                    ))
                }
                _ => path(&from, n, room),
            };
            for (_, key) in &node.attributes {
                if let Some(path) = path(n, &mut room) {
                    out.entry(key.clone()).or_insert(path);
                }
            }
        }
        out
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let nodes = self.nodes.iter();
        Stored {
            nodes: nodes.map(|node| Node::from(node).encode_to_vec()).collect(),
        }
        .encode_to_vec()
    }
}

/// `TrackableObjectGraph`. Its nodes are decoded one by one.
#[derive(Clone, PartialEq, Message)]
struct Stored {
    #[prost(bytes = "vec", repeated, tag = "1")]
    nodes: Vec<Vec<u8>>,
}

/// `TrackableObjectGraph.TrackableObject`.
#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(message, repeated, tag = "1")]
    children: Vec<Reference>,
    #[prost(message, repeated, tag = "2")]
    attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "3")]
    slots: Vec<Reference>,
    #[prost(message, optional, tag = "5")]
    has_checkpoint_values: Option<bool>,
}

/// `ObjectReference`, and `SlotVariableReference`, which also has a slot. Names from other programs may not be UTF-8.
#[derive(Clone, PartialEq, Message)]
struct Reference {
    #[prost(uint32, tag = "1")]
    node: u32,
    #[prost(bytes = "vec", tag = "2")]
    name: Vec<u8>,
    #[prost(uint32, tag = "3")]
    slot: u32,
}

/// `SerializedTensor`.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

impl From<Node> for ObjectNode {
    fn from(node: Node) -> Self {
        let children = node.children.into_iter();
        let attributes = node.attributes.into_iter();
        let slots = node.slots.into_iter();
        Self {
            children: children.map(|r| (text(r.name), r.node)).collect(),
            attributes: attributes.map(|a| (text(a.name), text(a.key))).collect(),
            slots: slots.map(|r| (r.node, text(r.name), r.slot)).collect(),
        }
    }
}

impl From<&ObjectNode> for Node {
    fn from(node: &ObjectNode) -> Self {
        let reference = |node: &u32, name: &String, slot: u32| Reference {
            node: *node,
            name: name.clone().into(),
            slot,
        };
        let attribute = |(name, key): &(String, String)| Attribute {
            name: name.clone().into(),
            key: key.clone().into(),
        };
        let (children, slots) = (node.children.iter(), node.slots.iter());
        Self {
            children: children.map(|(name, n)| reference(n, name, 0)).collect(),
            attributes: node.attributes.iter().map(attribute).collect(),
            slots: slots
                .map(|(n, name, slot)| reference(n, name, *slot))
                .collect(),
            has_checkpoint_values: (!node.attributes.is_empty()).then_some(true),
        }
    }
}

/// The path of an object from the root. `None` if there is none, or it would take more than the room that is left.
fn path(from: &[Option<(u32, &str)>], n: u32, room: &mut usize) -> Option<String> {
    let mut names = Vec::new();
    let mut at = n;
    while at != 0 {
        let (parent, name) = from.get(at as usize).copied().flatten()?;
        *room = room.checked_sub(2 * name.len() + 24)?;
        names.push(from_names::escaped(name));
        at = parent;
    }
    names.reverse();
    Some(names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_graph_of_names_gives_the_names_back_as_paths() {
        let keys = [
            "model/layer/kernel/.ATTRIBUTES/VARIABLE_VALUE",
            "model/layer/kernel/.OPTIMIZER_SLOT/opt/m/.ATTRIBUTES/VARIABLE_VALUE",
            "opt/iter/.ATTRIBUTES/VARIABLE_VALUE",
            "a.Sb/..c/.ATTRIBUTES/VARIABLE_VALUE",
        ];
        let bytes = from_names(keys);
        let graph = ObjectGraph::parse(&bytes).unwrap();
        assert_eq!(graph.to_bytes(), bytes);
        let paths = graph.owner_paths();
        assert_eq!(paths[keys[0]], "model/layer/kernel");
        assert_eq!(paths[keys[1]], "model/layer/kernel/.OPTIMIZER_SLOT/opt/m");
        assert_eq!(paths[keys[2]], "opt/iter");
        assert_eq!(paths[keys[3]], "a.Sb/..c");
        assert_eq!(paths.len(), keys.len());
        // The root, and everything that has a name.
        assert!(
            graph.nodes[0]
                .children
                .iter()
                .any(|(name, _)| name == "a/b")
        );
    }

    #[test]
    fn a_graph_that_leads_in_circles_or_far_down_ends() {
        let node = |child: u32| ObjectNode {
            children: vec![("n".repeat(100), child)],
            attributes: vec![("v".into(), format!("key {child}"))],
            ..ObjectNode::default()
        };
        let graph = ObjectGraph {
            nodes: (0..50_000u32).map(|n| node((n + 1) % 50_000)).collect(),
            ..ObjectGraph::default()
        };
        let graph = ObjectGraph::parse(&graph.to_bytes()).unwrap();
        let paths = graph.owner_paths();
        assert!(!paths.is_empty() && paths.len() < 50_000);
        let total: usize = paths.values().map(String::len).sum();
        assert!(total < PATHS.0 * graph.bytes + PATHS.1);
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
            drop(ObjectGraph::parse(&bytes).map(|graph| graph.owner_paths()));
        }
    }
}
