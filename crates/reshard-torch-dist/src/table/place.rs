//! Where the items of one metadata file lie.

use super::{Item, Place, Stored, Table};
use crate::{
    limits::not_understood,
    metadata::{
        build::{Columns, NONE, RawDict, RawStorage},
        worth::{Beyond, MEMORY, STEPS, Within, Worth},
    },
};
use indexmap::IndexSet;
use reshard_storage::Name;
use reshard_strategy::{LimitOption, Result, StrategyError};
use std::collections::BTreeMap;

/// Enters the locations of the items of one metadata file into the table.
pub(super) struct Placing<'t> {
    pub(super) table: &'t mut Table,
    /// The transforms of all files, by number.
    pub(super) transforms: &'t mut IndexSet<Vec<String>>,
    pub(super) worth: &'t mut Worth,
    pub(super) columns: &'t Columns,
    pub(super) file: &'t str,
    /// Whether several files are merged. Then it is noted which items this file has a place for.
    pub(super) merging: bool,
    pub(super) placed: Vec<Item>,
}

impl Placing<'_> {
    pub(super) fn storage(&mut self, places: &RawDict) -> Result<()> {
        let (file, columns) = (self.file, self.columns);
        let corrupt = |what: String| StrategyError::corrupt(file, None, what);
        let first = self.table.files.len() as u32;
        let (mut files, mut transforms) = (BTreeMap::new(), BTreeMap::new());
        // A key may be long, and every item may name it. So the result of its look-up is kept.
        let stored = self.worth.filled(columns.texts.len(), Stored::Unasked);
        let mut stored = stored.map_err(|b| beyond(file, b))?;
        for (index, storage) in places.storage() {
            let index = columns.indices[index as usize];
            let Some(key) = columns.texts.get(index.key) else {
                return Err(corrupt("an entry of storage_data names no key".into()));
            };
            // A location without file, offset or length is damage, even if nobody wants the item.
            let raw = columns.storage(storage);
            if columns.texts.get(raw.file).is_none()
                || raw.offset == u64::MAX
                || raw.length == u64::MAX
            {
                return Err(corrupt(format!(
                    "the entry of {key:?} in storage_data lacks its file, offset or length"
                )));
            }
            let place = self.place(raw, &mut files, &mut transforms);
            let place = place.map_err(|b| beyond(file, b))?;
            let of = &mut stored[index.key as usize];
            if let Stored::Unasked = of {
                *of = self.table.stored(key);
            }
            // An object has no offset, and a chunk has one. So the offset tells what the entry must belong to.
            match (index.offset(), *of) {
                (_, Stored::Unknown) => {}
                (None, Stored::Object(id)) => {
                    let set = set(&mut self.table.objects, id.0, place, first);
                    let set = set.map_err(|what| twice(file, key, what))?;
                    let noted = self.note(Item::Object(id), place, set);
                    noted.map_err(|b| beyond(file, b))?;
                }
                (Some((at, n)), Stored::Tensor(id)) => {
                    let hint = (index.hint != NONE).then_some(index.hint as usize);
                    let tensor = self.table.metadata.tensor_by_id(id);
                    // Bytes that no chunk owns are ignored.
                    if let Some(id) = tensor.and_then(|t| t.chunk_at(&columns.ints(at, n), hint)) {
                        let set = set(&mut self.table.chunks, id.0, place, first);
                        let set = set.map_err(|what| twice(file, key, what))?;
                        let noted = self.note(Item::Chunk(id), place, set);
                        noted.map_err(|b| beyond(file, b))?;
                    } else {
                        // Such an entry is short, but searching for its chunk takes many steps. So steps are limited.
                        let steps = tensor.map_or(0, |t| t.chunk_count().max(1).ilog2() * n);
                        let steps = self.worth.steps(steps as usize);
                        steps.map_err(|b| beyond(file, b))?;
                    }
                }
                // Another rank says that it is something else, which is told with the key.
                _ if self.table.contradictions.contains_key(key) => *of = Stored::Unknown,
                (at, _) => {
                    let kind = at.map_or("an object", |_| "a tensor");
                    return Err(corrupt(format!(
                        "{key:?} is stored as {kind}, but is not described as one"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Notes that an item has a place in this file. If another file has set one before, this is one of a copy.
    fn note(&mut self, item: Item, place: Place, set: bool) -> Within<()> {
        if self.merging {
            self.worth.push(&mut self.placed, item)?;
        }
        match set {
            true => Ok(()),
            false => self.worth.push(&mut self.table.copies, (item, place)),
        }
    }

    fn place(
        &mut self,
        raw: RawStorage,
        files: &mut BTreeMap<u32, u32>,
        transforms: &mut BTreeMap<u32, u32>,
    ) -> Within<Place> {
        // Many items lie in few files. Each name is paid for and kept once.
        let file = match (files.get(&raw.file), self.columns.texts.get(raw.file)) {
            (Some(&known), _) => known,
            (None, None) => u32::MAX,
            (None, Some(name)) => {
                self.worth
                    .take(name.len().saturating_mul(2).saturating_add(ENTRY))?;
                let known = self.table.files.len() as u32;
                self.table.files.push(file_name(name));
                files.insert(raw.file, known);
                known
            }
        };

        // Equal lists of transforms share a number across files, too.
        let transforms = match transforms.get(&raw.transforms) {
            _ if raw.transforms == NONE => 0,
            Some(&known) => known,
            None => {
                let texts = self.columns.descriptors(raw.transforms);
                let bytes = texts
                    .clone()
                    .map(|t| t.len().saturating_add(size_of::<String>()));
                self.worth.take(bytes.fold(ENTRY, usize::saturating_add))?;
                let texts = texts.map(String::from).collect();
                let known = self.transforms.insert_full(texts).0 as u32;
                transforms.insert(raw.transforms, known);
                known
            }
        };
        Ok(Place {
            file,
            transforms,
            offset: raw.offset,
            length: raw.length,
        })
    }
}
/// The first place counts, of equal keys of several ranks; one rank's files start at `first`, and it has each key once. Returns whether
/// it is the first.
fn set(
    places: &mut [Place],
    id: u32,
    place: Place,
    first: u32,
) -> std::result::Result<bool, &'static str> {
    let Some(p) = places.get_mut(id as usize) else {
        return Ok(true);
    };
    match p.file {
        u32::MAX => *p = place,
        file if file >= first => return Err("has two entries in storage_data"),
        _ => return Ok(false),
    }
    Ok(true)
}

pub(super) fn twice(file: &str, key: &str, what: &str) -> StrategyError {
    StrategyError::corrupt(file, None, format!("{key:?} {what}"))
}

/// No file system has longer names.
const LONGEST_NAME: usize = 4096;

fn file_name(name: &str) -> std::result::Result<Name, String> {
    if name.len() > LONGEST_NAME {
        return Err(format!(
            "it has {} bytes, and no file system has names of more than {LONGEST_NAME}",
            name.len()
        ));
    }
    Name::new(name).map_err(|e| e.to_string())
}

/// The memory of an entry in a map, without its contents.
pub(super) const ENTRY: usize = 128;

/// The error for a file that exceeds a limit. This does not show that the file is damaged.
pub(super) fn beyond(file: &str, b: Beyond) -> StrategyError {
    let what = match b.limit {
        MEMORY => format!("{file} asks for more memory than a file of its length may take"),
        STEPS => {
            format!("{file} refers to the same things more often than a file of its length may")
        }
        other => {
            return not_understood(format!(
                "reading {file}, which has more than {} {other},",
                b.max
            ));
        }
    };
    StrategyError::Limit {
        what,
        option: LimitOption::MaxMemory,
        max: b.max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_name_that_a_file_system_takes() {
        assert!(file_name(&"x".repeat(LONGEST_NAME)).is_ok());
        let e = file_name(&"x".repeat(LONGEST_NAME + 1)).unwrap_err();
        assert!(e.contains("it has 4097 bytes"), "{e}");
    }

    #[test]
    fn of_the_files_of_ranks_each_has_a_place_once_and_the_first_counts() {
        let place = |file| Place {
            file,
            transforms: 0,
            offset: 7,
            length: 1,
        };
        let mut places = [place(u32::MAX); 2];
        set(&mut places, 0, place(3), 2).unwrap();
        assert_eq!(
            set(&mut places, 0, place(4), 2),
            Err("has two entries in storage_data")
        );
        assert_eq!(
            set(&mut places, 0, place(3), 3),
            Err("has two entries in storage_data")
        );
        // The next rank's files begin at the fifth.
        set(&mut places, 0, place(6), 5).unwrap();
        set(&mut places, 9, place(6), 5).unwrap();
        assert_eq!(places.map(|p| p.file), [3, u32::MAX]);
    }
}
