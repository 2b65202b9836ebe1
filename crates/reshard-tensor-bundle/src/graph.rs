//! The object graph of a checkpoint: which object of a program has which tensor.

mod from_names;

use crate::proto::{Field, Fields, Message, NotAMessage};
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
        let mut out = Self {
            bytes: bytes.len(),
            ..Self::default()
        };
        for field in Fields::of(bytes) {
            if let (1, node) = field.ok()? {
                out.nodes.push(node_of(node.bytes().ok()?).ok()?);
            }
        }
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
        let mut out = Message::default();
        for node in &self.nodes {
            let mut message = Message::default();
            for (name, child) in &node.children {
                let mut reference = Message::default();
                reference.int(1, i64::from(*child));
                reference.text(2, name);
                message.message(1, &reference.into_bytes());
            }
            for (name, key) in &node.attributes {
                let mut attribute = Message::default();
                attribute.text(1, name);
                attribute.text(3, key);
                message.message(2, &attribute.into_bytes());
            }
            for (variable, name, slot) in &node.slots {
                let mut reference = Message::default();
                reference.int(1, i64::from(*variable));
                reference.text(2, name);
                reference.int(3, i64::from(*slot));
                message.message(3, &reference.into_bytes());
            }
            if !node.attributes.is_empty() {
                let mut has = Message::default();
                has.int(1, 1);
                message.message(5, &has.into_bytes());
            }
            out.message(1, &message.into_bytes());
        }
        out.into_bytes()
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

fn text(field: Field<'_>) -> Result<String, NotAMessage> {
    Ok(String::from_utf8_lossy(field.bytes()?).into_owned())
}

fn id(field: Field<'_>) -> Result<u32, NotAMessage> {
    u32::try_from(field.int()?).map_err(|_| NotAMessage)
}

fn node_of(bytes: &[u8]) -> Result<ObjectNode, NotAMessage> {
    let mut out = ObjectNode::default();
    for field in Fields::of(bytes) {
        let (number, field) = field?;
        let inner = match number {
            1..=3 => Fields::of(field.bytes()?),
            _ => continue,
        };
        let (mut a, mut b, mut name, mut key) = (0, 0, String::new(), String::new());
        for field in inner {
            match (number, field?) {
                (1, (1, n)) | (3, (1, n)) => a = id(n)?,
                (1, (2, s)) | (2, (1, s)) | (3, (2, s)) => name = text(s)?,
                (2, (3, s)) => key = text(s)?,
                (3, (3, n)) => b = id(n)?,
                _ => {}
            }
        }
        match number {
            1 => out.children.push((name, a)),
            2 => out.attributes.push((name, key)),
            _ => out.slots.push((a, name, b)),
        }
    }
    Ok(out)
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
