//! What all commands have: strategies and stores, and how a checkpoint is opened with them.

use crate::{
    error::{CliError, Result},
    whereabouts,
};
use reshard::{
    ErrorKind, OpenOptions, Registry, Stores, blocking::Checkpoint, storage::LocalStore,
};
use std::path::PathBuf;

/// The program: the commands, over strategies and stores.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) registry: Registry,
    pub(crate) stores: Stores,
}

impl Program {
    /// With these strategies and stores.
    pub fn new(registry: Registry, stores: Stores) -> Self {
        Self { registry, stores }
    }

    pub(crate) fn open(&self, url: &str, options: OpenOptions) -> Result<Checkpoint> {
        let options = options
            .registry(self.registry.clone())
            .stores(self.stores.clone());
        Checkpoint::open_with(options, url).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => {
                let hint =
                    "restore that file from a copy, or save again; nothing can be read without it";
                CliError::damaged(CliError::from(e).text(), hint)
            }
            _ => self.explained(url, e),
        })
    }

    /// An error of what is no checkpoint, with what lies there instead.
    pub(crate) fn explained(&self, url: &str, e: reshard::Error) -> CliError {
        let path = || local_path(self, url);
        match e.kind() {
            ErrorKind::NotFound => path().and_then(|p| whereabouts::explain(url, &p)),
            // A file can't be opened as a directory.
            ErrorKind::Unavailable => path()
                .filter(|p| !p.is_dir())
                .and_then(|p| whereabouts::explain(url, &p)),
            _ => None,
        }
        .unwrap_or_else(|| e.into())
    }
}

/// Where a URL lies on this machine's file systems, if it does.
fn local_path(program: &Program, url: &str) -> Option<PathBuf> {
    let url = program.stores.open(url).ok()?.url();
    let store = url
        .starts_with("file://")
        .then(|| LocalStore::open(&url).ok())??;
    Some(store.path().to_path_buf())
}
