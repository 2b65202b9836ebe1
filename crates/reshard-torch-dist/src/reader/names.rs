//! What items are called in messages.

use reshard_model::shortened;
use reshard_plan::{ChunkId, Metadata};

/// A chunk's name for messages.
pub(super) fn name_of(metadata: &Metadata, chunk: ChunkId) -> String {
    match metadata.chunk(chunk) {
        Some((t, region)) => format!("{}chunk {region}", named(t.key())),
        None => "an unknown chunk".into(),
    }
}

/// How the name of a tensor's chunk begins.
pub(super) fn named(key: &str) -> String {
    format!("tensor {} ", shortened(key))
}
