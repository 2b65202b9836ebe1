//! The versions in a place that keeps them side by side.

use reshard_open::{
    attempt::{folder_of, in_folder},
    sidecar::is_sidecar,
};
use reshard_storage::{Entry, Leftover, Name};
use std::{collections::BTreeSet, time::SystemTime};

/// The versions in a place that keeps them side by side.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// The folders of attempts in the place.
    pub(crate) folders: BTreeSet<String>,
    /// When something changed last in those that were committed. Before a commit comes `reshard.json`, so attempts that were
    /// killed earlier are none of them.
    finished: BTreeSet<SystemTime>,
    /// The folders of the version that the commit record names.
    pub(crate) live: BTreeSet<String>,
}

impl Versions {
    /// Those of the leftovers that are folders in the place.
    pub(crate) fn among(leftovers: &[Leftover], files: &[Entry]) -> Self {
        let inside: BTreeSet<&str> = files.iter().filter_map(|f| folder_of(&f.name)).collect();
        let is_finished = |name: &Name| in_folder(name.as_str()).is_some_and(is_sidecar);
        let sidecars = files.iter().filter(|f| is_finished(&f.name));
        let finished: BTreeSet<&str> = sidecars.filter_map(|f| folder_of(&f.name)).collect();
        let lies_in = |left: &Leftover, folders: &BTreeSet<&str>| folders.contains(&*left.attempt);
        let all = leftovers.iter().filter(|left| lies_in(left, &inside));
        let later = leftovers.iter().filter(|left| lies_in(left, &finished));
        Self {
            folders: all.map(|left| left.attempt.clone()).collect(),
            finished: later.filter_map(|left| left.modified).collect(),
            live: BTreeSet::new(),
        }
    }

    /// Whether a file lies in one of their folders.
    pub(crate) fn have(&self, file: &Name) -> bool {
        folder_of(file).is_some_and(|folder| self.folders.contains(folder))
    }

    /// When the version that replaced this one was written. A reader may have opened this one until then.
    pub(crate) fn next(&self, left: &Leftover) -> Option<SystemTime> {
        let modified = left.modified?;
        let mut later = self.finished.range(modified..);
        later.find(|changed| **changed > modified).copied()
    }
}
