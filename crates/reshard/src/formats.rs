//! The formats that a program knows, and what files are to them by their names.

use reshard_storage::{Entry, Listing, PlaceKind};
use reshard_strategy::{BackendVersion, Detection, LoadShardedStrategy, OwnFile, Registry, Result};
use std::{collections::BTreeSet, sync::Arc};

pub(crate) type Format = Arc<dyn LoadShardedStrategy>;

/// Formats that load, in the order of their names.
#[derive(Clone, Debug)]
pub(crate) struct Formats(pub(crate) Vec<Format>);

impl Formats {
    /// All of a registry.
    pub(crate) fn of(registry: &Registry) -> Result<Self> {
        registry.all_load_sharded().map(|config| config.build()).collect::<Result<_>>().map(Self)
    }

    /// Those whose checkpoints can be such places.
    pub(crate) fn of_kind(&self, kind: PlaceKind) -> Self {
        Self(self.0.iter().filter(|f| f.lives_in(kind)).cloned().collect())
    }

    /// Those for which the files of a place are such a sign.
    pub(crate) fn that(&self, detected: Detection, top: &Listing) -> Vec<Format> {
        self.0.iter().filter(|f| f.detect(top) == detected).cloned().collect()
    }

    /// Whether one of them is sure of these files.
    pub(crate) fn know(&self, top: &Listing) -> bool {
        !self.that(Detection::Yes, top).is_empty()
    }

    /// Names to look for, each once.
    pub(crate) fn probes(&self) -> BTreeSet<&'static str> {
        self.0.iter().flat_map(|f| f.probes()).copied().collect()
    }

    /// Whether programs that write one of them call a file so.
    pub(crate) fn own(&self, name: &str) -> bool {
        self.0.iter().any(|f| f.own_file(name).is_some())
    }

    /// The one format whose commit record is among these files.
    pub(crate) fn with_record(&self, files: &[Entry]) -> Option<Self> {
        let is_record = |f: &Format, file: &Entry| f.own_file(file.name.as_str()) == Some(OwnFile::Record);
        let mut found = self.0.iter().filter(|f| files.iter().any(|file| is_record(f, file)));
        found.next().filter(|_| found.next().is_none()).map(|one| Self(vec![Arc::clone(one)]))
    }

    /// The format that calls its commit record so.
    pub(crate) fn of_record(&self, name: &str) -> Option<BackendVersion> {
        self.0.iter().find(|f| f.own_file(name) == Some(OwnFile::Record)).map(|f| f.key())
    }
}
