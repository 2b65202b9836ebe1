//! The versions in a place that keeps them side by side.

use crate::attempt::folder_of;
use reshard_storage::{Entry, Leftover, Name};
use std::{collections::BTreeSet, time::SystemTime};

/// The versions in a place that keeps them side by side.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// The folders of attempts in the place.
    pub(crate) folders: BTreeSet<String>,
    /// When something in them changed last.
    changed: BTreeSet<SystemTime>,
    /// The folders of the version that the commit record names.
    pub(crate) live: BTreeSet<String>,
}

impl Versions {
    /// Those of the leftovers that are folders in the place.
    pub(crate) fn among(leftovers: &[Leftover], files: &[Entry]) -> Self {
        let inside: BTreeSet<&str> = files.iter().filter_map(|f| folder_of(&f.name)).collect();
        let all = || leftovers.iter().filter(|l| inside.contains(&*l.attempt));
        Self {
            folders: all().map(|l| l.attempt.clone()).collect(),
            changed: all().filter_map(|l| l.modified).collect(),
            live: BTreeSet::new(),
        }
    }

    /// Whether a file lies in one of their folders.
    pub(crate) fn have(&self, file: &Name) -> bool {
        folder_of(file).is_some_and(|folder| self.folders.contains(folder))
    }

    /// When the version after this one was written. A reader may have opened this one until then.
    pub(crate) fn next(&self, left: &Leftover) -> Option<SystemTime> {
        let modified = left.modified?;
        let mut later = self.changed.range(modified..);
        later.find(|changed| **changed > modified).copied()
    }
}
