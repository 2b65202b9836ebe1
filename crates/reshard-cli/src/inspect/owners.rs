//! Which object of a program owns a value, in formats that store a graph of objects: TensorFlow's.

use reshard::blocking::Checkpoint;
use std::collections::BTreeMap;

/// The path of the owner by key, from the root. Empty for other formats, and if there is no graph. An error if it can't be read.
pub(super) fn of(checkpoint: &Checkpoint) -> Result<BTreeMap<String, String>, String> {
    #[cfg(feature = "full")]
    {
        use reshard::tensor_bundle::{OBJECT_GRAPH, ObjectGraph};
        let has_graph = &*checkpoint.backend().backend == "tensor_bundle"
            && checkpoint.objects().any(|key| key == OBJECT_GRAPH);
        if has_graph {
            let graph = checkpoint.object(OBJECT_GRAPH);
            let graph = graph.map_err(|e| crate::error::chain(&e))?;
            let graph = ObjectGraph::of(&graph).ok_or("it is no object graph")?;
            return Ok(graph.owner_paths());
        }
    }
    let _ = checkpoint;
    Ok(BTreeMap::new())
}
