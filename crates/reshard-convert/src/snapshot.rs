//! Detects that a checkpoint was replaced while it was read.

use reshard::{
    Checkpoint,
    storage::{Name, StorageError, Store},
    strategy::StrategyError,
};
use std::{os::unix::fs::MetadataExt as _, sync::Arc};

/// The versions of a checkpoint's data files, taken before they are read. Programs that replace a checkpoint file by file, such as rsync, would
/// otherwise leave a reader with some tensors of the old version and some of the new one.
///
/// It holds nothing for stores that are not a file system of this machine.
#[derive(Clone, Debug)]
pub struct Snapshot {
    store: Arc<dyn Store>,
    files: Vec<(Name, Version)>,
}

/// Device, inode, length in bytes, and modification time in seconds and nanoseconds. A hard link or another mode changes none of them.
type Version = (u64, u64, u64, i64, i64);

impl Snapshot {
    /// The files of a checkpoint as they are now. Files that can't be opened are left out; reading them is an error anyway.
    pub async fn of(checkpoint: &Checkpoint) -> Self {
        let store = Arc::clone(checkpoint.store());
        let mut files = Vec::new();
        let names = checkpoint.item_files().into_iter();
        for name in names.filter_map(|name| Name::new(name).ok()) {
            match version(&*store, &name).await {
                Ok(Some(version)) => files.push((name, version)),
                // A store in the network has no such files, and the first one shows it.
                Ok(None) => break,
                Err(_) => {}
            }
        }
        Self { store, files }
    }

    /// Fails if a file has another version now.
    ///
    /// # Errors
    /// [`StorageError::Replaced`](reshard::storage::StorageError::Replaced), with the file.
    pub async fn check(&self) -> Result<(), StrategyError> {
        for (name, seen) in &self.files {
            let now = version(&*self.store, name).await;
            if !matches!(now, Ok(Some(now)) if now == *seen) {
                let path = format!("{}/{name}", self.store.url());
                return Err(StrategyError::Storage(StorageError::Replaced { path }));
            }
        }
        Ok(())
    }
}

/// `None` if it is no file of this machine.
async fn version(store: &dyn Store, name: &Name) -> Result<Option<Version>, StorageError> {
    let Some(file) = store.local_file(name).await? else {
        return Ok(None);
    };
    let of = file
        .metadata()
        .map_err(|e| StorageError::io("look at", name.as_str(), e))?;
    Ok(Some((
        of.dev(),
        of.ino(),
        of.len(),
        of.mtime(),
        of.mtime_nsec(),
    )))
}
