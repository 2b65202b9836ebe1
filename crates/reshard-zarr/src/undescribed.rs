//! Arrays whose descriptions are missing or out of reach.

use crate::{
    array::find::Found,
    names::{is_chunk, locked, split, splits},
    place::PlaceFiles,
};
use reshard_storage::Listing;
use reshard_strategy::Refused;
use std::collections::BTreeSet;

/// Folders without a description that hold nothing but files with the names of chunks, and links to folders, which may hold anything.
pub(crate) fn undescribed(files: &PlaceFiles, described: &[Found]) -> Vec<Found> {
    let described: BTreeSet<&str> = described.iter().map(|found| &*found.folder).collect();
    let is_described = |name: &str| {
        described.contains("") || splits(name).any(|(folder, _)| described.contains(folder))
    };
    let folders: BTreeSet<&str> = files
        .keys()
        .filter(|name| !is_described(name.as_str()))
        .filter_map(|name| folder_of_chunk(name.as_str()))
        .filter(|folder| locked(folder).is_none())
        .collect();
    let of_array = |folder: &str, name: &str| {
        // Hidden files, such as `.zattrs` or those of a file manager, describe no array.
        folder_of_chunk(name) == Some(folder) || split(name).1.starts_with('.')
    };
    let only_chunks = |folder: &&str| files.below(folder).all(|name| of_array(folder, name));
    let refused = |folder: &str| {
        let what = "it has chunks, and neither a .zarray nor a zarr.json that describes them";
        Found::refused(folder, folder, Refused::damaged(what))
    };
    let linked = files.linked_folders().filter(|name| !is_described(name));
    let linked = linked.map(|name| {
        let what = format!(
            "{}; if it has an array, put the folder itself here",
            Listing::LINKED_FOLDER
        );
        Found::refused(name, name, Refused::unknown(what))
    });
    let folders = folders.into_iter().filter(only_chunks).map(refused);
    folders.chain(linked).collect()
}

/// The folder of the array that has a chunk of this name, judging by the name: `w/1.0`, `w/1/0`, `w/c/1/0`, `w/c.1.0` or `w/c`.
fn folder_of_chunk(name: &str) -> Option<&str> {
    let (folder, file) = name.rsplit_once('/')?;
    if file == "c" || file.strip_prefix("c.").is_some_and(is_chunk) {
        return Some(folder);
    }
    if !is_chunk(file) {
        return None;
    }
    if file.contains('.') {
        return Some(folder);
    }
    let mut folder = folder;
    while let Some((above, last)) = folder.rsplit_once('/') {
        match last {
            "c" => return Some(above),
            last if is_chunk(last) => folder = above,
            _ => break,
        }
    }
    (folder != "c" && !is_chunk(folder)).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_chunk_is_told_by_its_name() {
        for (name, folder) in [
            ("w/1.0", Some("w")),
            ("a/w/0", Some("a/w")),
            ("w/1/0", Some("w")),
            ("w/c/1/0", Some("w")),
            ("w/c.1.0", Some("w")),
            ("w/c", Some("w")),
            // Layers are numbered, too.
            ("layers/0/w/1.0", Some("layers/0/w")),
            ("layers/0/1.0", Some("layers/0")),
            ("0", None),
            ("0/1", None),
            ("c/0", None),
            ("w/01", None),
            ("w/data", None),
        ] {
            assert_eq!(folder_of_chunk(name), folder, "{name}");
        }
    }
}
