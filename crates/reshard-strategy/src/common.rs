use crate::{BackendVersion, OpenCx, Result, SaveCx, StrategyError};
use async_trait::async_trait;
use reshard_model::{ShardedObject, ValueTree};
use std::{any::Any, fmt};

/// Saves common state: what is equal on all ranks. Called on the coordinator only.
#[async_trait]
pub trait SaveCommonStrategy: Any + fmt::Debug + Send + Sync {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Writes the common state into the transaction.
    ///
    /// # Errors
    /// What can't be encoded or written.
    async fn save_common(&self, common: &ValueTree, cx: &SaveCx<'_>) -> Result<()>;
    /// Whether it can store sharded objects for a sharded strategy that can't.
    fn can_handle_sharded_objects(&self) -> bool {
        false
    }
    /// Writes this rank's objects. Called on every rank.
    ///
    /// # Errors
    /// By default: not supported.
    async fn save_sharded_objects(&self, _objects: Vec<ShardedObject>, _cx: &SaveCx<'_>) -> Result<()> {
        Err(unsupported(&self.key(), "saving sharded objects"))
    }
}

/// Loads common state.
#[async_trait]
pub trait LoadCommonStrategy: Any + fmt::Debug + Send + Sync {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Reads the common state.
    ///
    /// # Errors
    /// A missing or damaged file.
    async fn load_common(&self, cx: &OpenCx) -> Result<ValueTree>;
    /// Whether it can load what was stored under another name or version; an error that says why not.
    ///
    /// # Errors
    /// By default: when the name differs, or the version is newer.
    fn check_compatibility(&self, stored: &BackendVersion) -> Result<()> {
        compatible(&self.key(), stored)
    }
    /// Whether it can load sharded objects for a sharded strategy that can't.
    fn can_handle_sharded_objects(&self) -> bool {
        false
    }
    /// Fills the objects.
    ///
    /// # Errors
    /// By default: not supported.
    async fn load_sharded_objects(
        &self,
        _objects: Vec<ShardedObject>,
        _cx: &OpenCx,
    ) -> Result<Vec<ShardedObject>> {
        Err(unsupported(&self.key(), "loading sharded objects"))
    }
    /// The stored objects, without data.
    ///
    /// # Errors
    /// By default: not supported.
    async fn load_sharded_metadata(&self, _cx: &OpenCx) -> Result<Vec<ShardedObject>> {
        Err(unsupported(&self.key(), "listing sharded objects"))
    }
}

pub(crate) fn unsupported(key: &BackendVersion, what: &str) -> StrategyError {
    StrategyError::Unsupported { strategy: key.to_string(), what: what.into() }
}

pub(crate) fn compatible(mine: &BackendVersion, stored: &BackendVersion) -> Result<()> {
    if mine.backend == stored.backend && stored.version <= mine.version {
        return Ok(());
    }
    Err(unsupported(mine, &format!("a checkpoint of {stored}")))
}
