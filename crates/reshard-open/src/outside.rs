//! Notes of what a save writes outside of the folder of its attempt, in a place that keeps versions side by side.
//!
//! A note is there before the files that it names, and goes after the commit. So if there is a note and no checkpoint, these files are of a
//! save that was never finished, and `prune` may remove them.

use crate::attempt::{folder_of, in_folder};
use bytes::Bytes;
use reshard_storage::{Entry, Name, Result, StorageError, Store};
use reshard_strategy::StrategyError;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How the names of notes begin.
const PREFIX: &str = "reshard-outside-";

/// A longer note is not read. Then nobody knows whose the files are, and they stay.
const MOST: u64 = 256 << 20;

#[derive(Serialize, Deserialize)]
struct Note {
    schema: u32,
    files: Vec<String>,
}

/// Whether a file in the folder of an attempt is a note.
pub fn is_note(inside: &str) -> bool {
    inside.starts_with(PREFIX)
}

/// Whether a file in the folder of an attempt is a note of this rank.
pub fn is_note_of(rank: u32, inside: &str) -> bool {
    let rest = inside.strip_prefix(PREFIX);
    rest.and_then(|rest| rest.split_once('-'))
        .is_some_and(|(of, _)| of == rank.to_string())
}

fn is_inside(folder: &Name, name: &Name) -> bool {
    let rest = name.as_str().strip_prefix(folder.as_str());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// The note of those of these files that lie outside of the folder. `None` if none does.
pub fn note(
    folder: &Name,
    (rank, number): (u32, u64),
    names: &[Name],
) -> Result<Option<(Name, Bytes)>> {
    let outside = names.iter().filter(|name| !is_inside(folder, name));
    let files: Vec<String> = outside.map(|name| name.to_string()).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let name = Name::new(format!("{folder}/{PREFIX}{rank}-{number}.json"))?;
    let note = serde_json::to_vec(&Note { schema: 1, files });
    let note = note.map_err(|e| StorageError::Internal {
        what: format!("a note can't be written: {e}"),
    })?;
    Ok(Some((name, note.into())))
}

/// What killed attempts have left: by attempt, the files outside of its folder. `None` if something lies there that no attempt has noted.
///
/// # Errors
/// What the store says.
pub async fn of_killed(
    store: &Arc<dyn Store>,
    files: &[Entry],
    attempts: &BTreeSet<String>,
) -> Result<Option<BTreeMap<String, Vec<Entry>>>, StrategyError> {
    let mut left: BTreeMap<&str, &Entry> = BTreeMap::new();
    let mut notes = Vec::new();
    for file in files {
        let name = file.name.as_str();
        match folder_of(&file.name).filter(|of| attempts.contains(*of)) {
            None => drop(left.insert(name, file)),
            Some(of) if in_folder(name).is_some_and(is_note) => notes.push((of, &file.name)),
            Some(_) => {}
        }
    }
    let mut found: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for (of, name) in notes {
        let bytes = match store.read_all(name, MOST).await {
            Err(StorageError::Longer { .. }) => None,
            read => read?,
        };
        let note = bytes.and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
        let named = note.into_iter().filter(|note| note.schema == 1);
        for name in named.flat_map(|note| note.files) {
            if let Some(file) = left.get(name.as_str()) {
                known.insert(file.name.as_str());
                found.entry(of.into()).or_default().push((*file).clone());
            }
        }
    }
    Ok((known.len() == left.len()).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_executor::block_on;
    use reshard_storage::{StoreExt as _, testkit::MemoryStore};

    const ATTEMPT: &str = "1-1a2b3c4d5e6f7081-0";

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn of_killed_in(files: &[(&str, &str)]) -> Option<BTreeMap<String, Vec<Entry>>> {
        let store = MemoryStore::new();
        for (file, text) in files {
            store.put(name(file), text.to_string().into());
        }
        let files = block_on(store.files()).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        block_on(of_killed(&store, &files, &[ATTEMPT.to_owned()].into())).unwrap()
    }

    #[test]
    fn a_note_names_what_lies_outside_of_the_folder() {
        let folder = name(ATTEMPT);
        let inside = format!("{ATTEMPT}/a");
        assert!(note(&folder, (0, 0), &[name(&inside)]).unwrap().is_none());
        let alike = format!("{ATTEMPT}a/b");
        let files = [name(&inside), name("w/0.0"), name(&alike)];
        let (at, text) = note(&folder, (2, 3), &files).unwrap().unwrap();
        assert_eq!(at.as_str(), format!("{ATTEMPT}/reshard-outside-2-3.json"));
        let note: Note = serde_json::from_slice(&text).unwrap();
        assert_eq!(note.files, ["w/0.0", &alike]);
    }

    #[test]
    fn what_no_note_names_says_that_nobody_knows() {
        let at = &*format!("{ATTEMPT}/reshard-outside-0-1.json");
        let text = r#"{"schema":1,"files":["common.pt","../x","gone"]}"#;
        let found = of_killed_in(&[(at, text), ("common.pt", "1")]).unwrap();
        assert_eq!(found[ATTEMPT][0].name.as_str(), "common.pt");
        assert_eq!(found[ATTEMPT].len(), 1);
        assert!(of_killed_in(&[(at, text), ("common.pt", "1"), ("x", "1")]).is_none());
        assert!(of_killed_in(&[(at, "{"), ("common.pt", "1")]).is_none());
        let newer = text.replace(":1", ":2");
        assert!(of_killed_in(&[(at, &newer), ("common.pt", "1")]).is_none());
        // Another folder is not one of an attempt that has ended.
        let of_other = at.replace("1-1a", "2-1a");
        assert!(of_killed_in(&[(&of_other, text)]).is_none());
    }
}
