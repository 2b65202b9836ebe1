//! The version that readers see. Nobody else may write into its folders.

use reshard::{
    ErrorKind, OpenOptions,
    storage::{Result, StorageError, Stores},
};
use std::{collections::BTreeSet, io};

/// The folders of the version that readers see now.
#[derive(Clone, Debug)]
pub(super) enum Live {
    Folders(BTreeSet<String>),
    /// Something is there, and nobody knows what it needs.
    Unknown,
}

impl Live {
    pub(super) async fn of(dst: &str, stores: &Stores) -> Self {
        match folders(dst, stores).await {
            Ok(folders) => Self::Folders(folders),
            Err(_) => Self::Unknown,
        }
    }

    pub(super) fn may_have(&self, attempt: &str) -> bool {
        match self {
            Self::Folders(folders) => folders.contains(attempt),
            Self::Unknown => true,
        }
    }
}

async fn folders(dst: &str, stores: &Stores) -> reshard::Result<BTreeSet<String>> {
    match OpenOptions::new().stores(stores.clone()).open(dst).await {
        Ok(live) => {
            let files = live.item_files();
            let folders = files.iter().filter_map(|f| f.split_once('/'));
            Ok(folders.map(|(folder, _)| folder.to_owned()).collect())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(e) => Err(e),
    }
}

/// Looks whether an attempt that was taken over was committed meanwhile, by the process that has begun it.
///
/// # Errors
/// It was, or nobody can tell.
pub(super) async fn check_open(attempt: &str, dst: &str, stores: &Stores) -> Result<()> {
    let live = folders(dst, stores).await;
    let live = live.map_err(|e| StorageError::io("look at", dst, io::Error::other(e)))?;
    if !live.contains(attempt) {
        return Ok(());
    }
    Err(StorageError::Unsupported {
        what: format!("resuming the conversion to {dst}"),
        why: format!(
            "the conversion that was to be resumed was still running and has committed {attempt} meanwhile; all of it is there, so nothing is left to do"
        ),
    })
}
