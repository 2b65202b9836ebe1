use crate::{LoadShardedStrategy, Result, SaveShardedStrategy};
use std::fmt;

/// Configuration of a strategy that saves sharded leaves. It is data with a tag that is written by hand, and it can build the strategy.
///
/// ```json
/// { "type": "torch_dist", "files_per_rank": 2 }
/// ```
#[typetag::serde(tag = "type")]
pub trait SaveShardedConfig: fmt::Debug + Send + Sync {
    /// Makes the strategy.
    ///
    /// # Errors
    /// Values that contradict each other.
    fn build(&self) -> Result<SaveShardedStrategy>;
}

/// Configuration of a strategy that loads sharded leaves.
#[typetag::serde(tag = "type")]
pub trait LoadShardedConfig: fmt::Debug + Send + Sync {
    /// Makes the strategy.
    ///
    /// # Errors
    /// Values that contradict each other.
    fn build(&self) -> Result<LoadShardedStrategy>;
}
