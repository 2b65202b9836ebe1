//! Detects that a checkpoint was replaced while it was read.

use crate::versions::{Version, tagged, timed};
use futures::{StreamExt as _, stream};
use reshard::{
    Checkpoint,
    storage::{Name, StorageError, Store},
    strategy::StrategyError,
};
use std::{collections::BTreeSet, sync::Arc};

/// The versions of a checkpoint's data files, taken before they are read. Programs that replace a checkpoint file by file, such as rsync, would
/// otherwise leave a reader with some tensors of the old version and some of the new one.
///
/// Of a store with tags, such as S3, it keeps nothing: its files were pinned when this was made, and another version can't be read.
#[derive(Clone, Debug)]
pub struct Snapshot {
    store: Arc<dyn Store>,
    files: Vec<(Name, Version)>,
}

impl Snapshot {
    /// The files of a checkpoint as they are now. Files that can't be looked at are left out; reading them is an error anyway.
    pub async fn of(checkpoint: &Checkpoint) -> Self {
        let store = Arc::clone(checkpoint.store());
        let names = checkpoint.item_files().into_iter();
        let names: BTreeSet<Name> = names.filter_map(|name| Name::new(name).ok()).collect();
        let files = match tagged(&*store, &names).await {
            Ok(Some(_)) => Vec::new(),
            _ => {
                let versions = stream::iter(names).map(|name| timed(&*store, name));
                let versions = versions.buffered(store.hints().concurrency.max(1));
                let seen: Vec<_> = versions.collect().await;
                seen.into_iter()
                    .filter_map(|seen| seen.ok().flatten())
                    .collect()
            }
        };
        Self { store, files }
    }

    /// Fails if a file has another version now.
    ///
    /// # Errors
    /// [`StorageError::Replaced`](reshard::storage::StorageError::Replaced), with the file.
    pub async fn check(&self) -> Result<(), StrategyError> {
        for (name, seen) in &self.files {
            let now = timed(&*self.store, name.clone()).await;
            if !matches!(now, Ok(Some((_, now))) if now.has_bytes_of(seen)) {
                let path = format!("{}/{name}", self.store.url());
                return Err(StrategyError::Storage(StorageError::Replaced { path }));
            }
        }
        Ok(())
    }
}
