//! The files of a place, and what else has names where files could be.

use crate::names::splits;
use reshard_storage::{Entry, Listing, Name};
use std::{collections::BTreeMap, ops::Deref};

/// All files of a place with their lengths, by name.
#[derive(Debug, Default)]
pub(crate) struct PlaceFiles {
    files: BTreeMap<Name, u64>,
    /// Names of links to nothing, named pipes and the like.
    others: BTreeMap<Name, &'static str>,
}

impl From<Listing> for PlaceFiles {
    fn from(listing: Listing) -> Self {
        let mut out = Self {
            files: BTreeMap::new(),
            others: listing.others,
        };
        out.extend(listing.files);
        out
    }
}

impl Deref for PlaceFiles {
    type Target = BTreeMap<Name, u64>;

    fn deref(&self) -> &Self::Target {
        &self.files
    }
}

impl PlaceFiles {
    pub(crate) fn extend(&mut self, files: impl IntoIterator<Item = Entry>) {
        let files = files.into_iter().map(|file| (file.name, file.bytes));
        self.files.extend(files);
    }

    /// All below a folder.
    pub(crate) fn below(&self, folder: &str) -> impl Iterator<Item = &str> {
        below(&self.files, folder)
    }

    /// Describes what has a name where only a file should have it, or what is no folder above it.
    pub(crate) fn obstacle(&self, name: &str) -> Option<&'static str> {
        let other = |name: &str| self.others.get(&Name::new(name).ok()?).copied();
        if !self.others.is_empty() {
            // A folder above it is where files of this name belong.
            let mut above = splits(name).filter_map(|(folder, _)| other(folder));
            let found = above.find(|what| *what != Listing::FOLDER);
            if let Some(what) = other(name).or(found) {
                return Some(what);
            }
        }
        let mut inside = self.below(name).chain(below(&self.others, name));
        inside.next().map(|_| Listing::FOLDER)
    }

    /// Links to folders.
    pub(crate) fn linked_folders(&self) -> impl Iterator<Item = &str> {
        let links = self.others.iter();
        links
            .filter(|(_, what)| **what == Listing::LINKED_FOLDER)
            .map(|(name, _)| name.as_str())
    }

    /// Names that are no files, though files of these names would be read. Each is given with its folder, and with what it is.
    pub(crate) fn obstacles<'f>(
        &'f self,
        names: &'f [&str],
    ) -> impl Iterator<Item = (&'f str, &'f str, &'static str)> {
        let all = self.files.keys().chain(self.others.keys());
        let found = all.filter_map(move |name| {
            let name = name.as_str();
            let mut start = 0;
            name.split('/').find_map(|part| {
                let end = start + part.len();
                let (folder, whole) = (name[..start].trim_end_matches('/'), &name[..end]);
                start = end + 1;
                names.contains(&part).then_some((folder, part, whole))
            })
        });
        found.filter_map(|(folder, part, whole)| Some((folder, part, self.obstacle(whole)?)))
    }
}

fn below<'m, T>(map: &'m BTreeMap<Name, T>, folder: &str) -> impl Iterator<Item = &'m str> {
    let prefix = format!("{folder}/");
    // No name below the folder comes before this one.
    let first = Name::new(format!("{prefix}\u{1}"));
    let from = first.map_or_else(|_| map.range(..), |first| map.range(first..));
    let names = from.map(|(name, _)| name.as_str());
    names.take_while(move |name| name.starts_with(&prefix))
}
