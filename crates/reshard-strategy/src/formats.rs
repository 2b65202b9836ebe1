//! The formats that a program knows, and what their file names mean.

use crate::{Action, BackendVersion, Detection, LoadShardedStrategy, OwnFile, Registry, Result};
use reshard_storage::{Entry, Listing, Name, PlaceKind};
use std::collections::BTreeSet;

/// The formats that can load, in the order of their names, and the default one.
#[derive(Clone, Debug)]
pub struct Formats {
    /// In the order of their names.
    pub all: Vec<LoadShardedStrategy>,
    /// The one that is tried first.
    pub default: BackendVersion,
}

impl Formats {
    /// All formats of a registry.
    pub fn of(registry: &Registry) -> Result<Self> {
        Ok(Self {
            all: registry.all_load_sharded().collect::<Result<_>>()?,
            default: registry.default_of(Action::LoadSharded),
        })
    }

    /// The formats whose checkpoints can be places of this kind.
    pub fn of_kind(&self, kind: PlaceKind) -> Self {
        let of_kind = self.all.iter().filter(|f| f.info().lives_in(kind));
        Self {
            all: of_kind.cloned().collect(),
            default: self.default.clone(),
        }
    }

    /// Only this format.
    pub fn only(&self, format: &LoadShardedStrategy) -> Self {
        Self {
            all: vec![format.clone()],
            default: self.default.clone(),
        }
    }

    /// The formats whose `detect` gives this answer for the files of a place.
    pub fn that(&self, detected: Detection, top: &Listing) -> Vec<LoadShardedStrategy> {
        self.all
            .iter()
            .filter(|f| f.info().detect(top) == detected)
            .cloned()
            .collect()
    }

    /// The formats whose `detect_file` gives this answer for a file.
    pub fn of_file(&self, detected: Detection, file: &Entry) -> Vec<LoadShardedStrategy> {
        self.all
            .iter()
            .filter(|f| f.info().detect_file(file) == detected)
            .cloned()
            .collect()
    }

    /// Whether one of them answers `Yes` to these files.
    pub fn know(&self, top: &Listing) -> bool {
        !self.that(Detection::Yes, top).is_empty()
    }

    /// The names to look for, without duplicates.
    pub fn probes(&self) -> Result<BTreeSet<Name>> {
        let names = self.all.iter().flat_map(|f| f.info().probes);
        Ok(names.copied().map(Name::new).collect::<Result<_, _>>()?)
    }

    /// The names by which a place of files with a prefix is recognised, without duplicates. `None` if one of the formats has no such name, so
    /// that only a listing tells.
    pub fn probes_of_prefix(&self) -> Result<Option<BTreeSet<Name>>> {
        let mut names = BTreeSet::new();
        for format in &self.all {
            // Such a place has no folders.
            let direct = format
                .info()
                .probes
                .iter()
                .filter(|name| !name.contains('/'));
            let direct: Vec<Name> = direct.copied().map(Name::new).collect::<Result<_, _>>()?;
            if direct.is_empty() {
                return Ok(None);
            }
            names.extend(direct);
        }
        Ok(Some(names))
    }

    /// The names to look for in folders, without duplicates.
    pub fn probes_in_folders(&self) -> BTreeSet<&'static str> {
        self.all
            .iter()
            .flat_map(|f| f.info().probes_in_folders)
            .copied()
            .collect()
    }

    /// Whether the programs of one of these formats give a file such a name.
    pub fn own(&self, name: &str) -> bool {
        self.all.iter().any(|f| f.info().own_file(name).is_some())
    }

    /// The one format whose format record is among these files.
    pub fn with_record(&self, files: &[Entry]) -> Option<Self> {
        let is_record = |f: &LoadShardedStrategy, file: &Entry| {
            f.info().own_file(file.name.as_str()) == Some(OwnFile::Record)
        };
        let mut found = self
            .all
            .iter()
            .filter(|f| files.iter().any(|file| is_record(f, file)));
        found
            .next()
            .filter(|_| found.next().is_none())
            .map(|one| self.only(one))
    }

    /// The format that gives its format record this name.
    pub fn of_record(&self, name: &str) -> Option<BackendVersion> {
        self.all
            .iter()
            .find(|f| f.info().own_file(name) == Some(OwnFile::Record))
            .map(|f| f.key())
    }
}
