use crate::{Head, Name};
use std::collections::{BTreeMap, BTreeSet};

/// One version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tagged {
    /// The file.
    pub name: Name,
    /// What is known about it.
    pub head: Head,
    /// What no other version of the file has, such as an ETag.
    pub tag: String,
}

impl Tagged {
    /// A version of a file.
    pub fn new(name: Name, head: Head, tag: impl Into<String>) -> Self {
        Self {
            name,
            head,
            tag: tag.into(),
        }
    }
}

/// Which files were looked for. A file that is among them and not found does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// Only the file that was asked for.
    File,
    /// All that lie in the same folder as the file that was asked for.
    Folder,
    /// All of the place.
    Place,
}

/// Versions of files, as a store learns them with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tags {
    /// The files that were found.
    pub files: Vec<Tagged>,
    /// Which were looked for.
    pub among: Among,
}

impl Tags {
    /// These files, of those that were looked for.
    pub fn new(files: Vec<Tagged>, among: Among) -> Self {
        Self { files, among }
    }
}

/// What a store has told of its files so far.
#[derive(Clone, Debug, Default)]
pub struct KnownTags {
    files: BTreeMap<Name, Tagged>,
    /// Files that were looked for one by one, folders, and whether all of the place is known.
    asked: BTreeSet<Name>,
    folders: BTreeSet<String>,
    all: bool,
    none: bool,
}

impl KnownTags {
    /// Whether the store need not be asked for this file.
    pub fn has(&self, name: &Name) -> bool {
        self.none || self.all || self.folders.contains(name.folder()) || self.asked.contains(name)
    }

    /// Keeps what the store has answered when it was asked for this file ([`Store::tags`](crate::Store::tags)).
    pub fn learn(&mut self, name: &Name, tags: Option<Tags>) {
        let Some(tags) = tags else {
            self.none = true;
            return;
        };
        match tags.among {
            Among::File => drop(self.asked.insert(name.clone())),
            Among::Folder => drop(self.folders.insert(name.folder().into())),
            Among::Place => self.all = true,
        }
        let named = |t: Tagged| (t.name.clone(), t);
        self.files.extend(tags.files.into_iter().map(named));
    }

    /// Whether the store has no tags.
    pub fn is_untagged(&self) -> bool {
        self.none
    }

    /// The version of a file. `None` if it was not asked for, or is not there.
    pub fn get(&self, name: &Name) -> Option<&Tagged> {
        self.files.get(name)
    }
}
