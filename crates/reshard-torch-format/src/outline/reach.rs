//! Which storages a value needs.

use crate::{
    Result, StorageRef,
    pickle::{Graph, Id, Node},
    tensor::storage_of,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn storages(
    graph: &Graph<'_>,
    roots: impl Iterator<Item = Id>,
) -> Result<Vec<StorageRef>> {
    let (mut seen, mut left) = (BTreeSet::new(), Vec::from_iter(roots));
    let mut found: BTreeMap<Box<str>, StorageRef> = BTreeMap::new();
    while let Some(id) = left.pop() {
        if !seen.insert(id) {
            continue;
        }
        match graph.node(id) {
            Node::Tuple(v) | Node::List(v) | Node::Set(v) | Node::FrozenSet(v) => left.extend(v),
            Node::Dict(pairs) => left.extend(pairs.iter().flat_map(|(k, v)| [*k, *v])),
            Node::Call(call) => {
                left.extend([call.callable, call.args]);
                left.extend(call.kwargs.iter().chain(&call.state).chain(&call.items));
                left.extend(call.pairs.iter().flat_map(|(k, v)| [*k, *v]));
            }
            Node::Persistent(_) => {
                if let Some(stored) = storage_of(graph, id)? {
                    found
                        .entry(stored.storage.key.clone())
                        .or_insert(stored.storage);
                }
            }
            _ => {}
        }
    }
    Ok(found.into_values().collect())
}

/// The keys of all storages that a pickle names.
pub(super) fn keys(graph: &Graph<'_>) -> BTreeSet<Box<str>> {
    let stored = graph.ids().filter_map(|id| storage_of(graph, id).ok()?);
    stored.map(|stored| stored.storage.key).collect()
}
