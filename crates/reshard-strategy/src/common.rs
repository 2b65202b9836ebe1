use crate::{BackendVersion, OpenCx, Result, StorageReader, StrategyError, Uncovered};
use async_trait::async_trait;
use reshard_model::{ShardedObject, ValueTree};
use reshard_storage::{FileBody, Name};
use std::{any::Any, fmt};

/// Stores common state. The coordinator's common state is stored. This strategy makes a layout of files, and writes nothing itself. So
/// these files are written, counted and committed like all others.
///
/// # Contract
/// The files own their data, so they need no stager: the caller may change its state when a method returns. Equal input gives equal files.
pub trait SaveCommonStrategy: Any + fmt::Debug + Send + Sync {
    /// Its name.
    fn key(&self) -> BackendVersion;

    /// The files of the common state. Called on the coordinator only.
    ///
    /// # Errors
    /// What can't be encoded.
    fn layout_common(&self, common: &ValueTree) -> Result<Vec<FileBody>>;

    /// The files of this rank's objects, for a sharded strategy that stores none. `None` if this strategy stores none either. It is
    /// called on every rank, and no two ranks pass the same object. It is also called with no objects, to find out whether it can.
    ///
    /// # Errors
    /// What can't be encoded.
    fn layout_objects(&self, _objects: &[ShardedObject]) -> Result<Option<Vec<FileBody>>> {
        Ok(None)
    }
}

/// Loads common state.
#[async_trait]
pub trait LoadCommonStrategy: Any + fmt::Debug + Send + Sync {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Reads the common state, from its own files or through the open reader of the sharded part.
    ///
    /// # Errors
    /// A missing or damaged file.
    async fn load_common(&self, cx: &OpenCx, from: &dyn StorageReader) -> Result<ValueTree>;
    /// Checks that it can load what was stored under another name or version. The error says why not.
    ///
    /// # Errors
    /// By default, the name differs or the version is newer.
    fn check_compatibility(&self, stored: &BackendVersion) -> Result<()> {
        compatible(&self.key(), stored)
    }
    /// Whether saves of this strategy give a file of common state such a name. A replacement of the checkpoint removes files with such
    /// names. Files that no strategy owns stay.
    fn owns(&self, _name: &Name) -> bool {
        false
    }
    /// The same for files of objects. It is called only if this strategy has stored the objects.
    fn owns_object(&self, _name: &Name) -> bool {
        false
    }
    /// The names that the file of a stored object may have, without their suffixes. By default its unique key. Files that have them go with the
    /// object, if its key is removed from the checkpoint.
    fn names_of_object(&self, object: &ShardedObject) -> Vec<String> {
        vec![object.unique_key()]
    }
    /// Whether it loads sharded objects for a sharded strategy that doesn't.
    fn can_handle_sharded_objects(&self) -> bool {
        false
    }
    /// Fills the objects with values, and returns them in the same order. Each object is one that
    /// [`load_sharded_metadata`](Self::load_sharded_metadata) lists.
    ///
    /// # Errors
    /// A missing or damaged file. By default: not supported.
    async fn load_sharded_objects(
        &self,
        _objects: Vec<ShardedObject>,
        _cx: &OpenCx,
    ) -> Result<Vec<ShardedObject>> {
        Err(unsupported(&self.key(), "loading sharded objects"))
    }
    /// Checks every byte of a file of common state, or of the file of an object. Returns how many bytes of it can't be confirmed, and why.
    /// `None`, the default, means that none of them are checked.
    ///
    /// # Errors
    /// The file is missing or damaged.
    async fn check_file(
        &self,
        _file: &Name,
        _cx: &OpenCx,
    ) -> Result<Option<Vec<(Uncovered, u64)>>> {
        Ok(None)
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
    StrategyError::Unsupported {
        strategy: key.to_string(),
        what: what.into(),
    }
}

pub(crate) fn compatible(mine: &BackendVersion, stored: &BackendVersion) -> Result<()> {
    if mine.backend == stored.backend && stored.version <= mine.version {
        return Ok(());
    }
    Err(unsupported(mine, &format!("a checkpoint of {stored}")))
}
