//! What is written as a storage.

use reshard_strategy::Blocks;

/// Elements that are written.
pub(crate) struct Source {
    pub(crate) blocks: Blocks,
    pub(crate) bytes: u64,
}
