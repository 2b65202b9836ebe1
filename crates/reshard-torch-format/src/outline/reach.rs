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
        if let Node::Persistent(_) = graph.node(id)
            && let Some(stored) = storage_of(graph, id)?
        {
            let key = stored.storage.key.clone();
            found.entry(key).or_insert(stored.storage);
        }
        left.extend(graph.parts(id));
    }
    Ok(found.into_values().collect())
}

/// The keys of all storages that a pickle names.
pub(super) fn keys(graph: &Graph<'_>) -> BTreeSet<Box<str>> {
    let stored = graph.ids().filter_map(|id| storage_of(graph, id).ok()?);
    stored.map(|stored| stored.storage.key).collect()
}
