//! What the files of a place are.

use super::opened::ZarrReader;
use crate::{
    RECORD,
    names::{ZARR_JSON, ZARRAY, ZATTRS, ZMETADATA, is_chunk, locked, split, splits},
    zarr3,
};
use reshard_model::{Dialect, ErrorKind};
use reshard_storage::{Entry, Name};
use reshard_strategy::{FileRole, Producer, Refused, first};

/// The files of groups. Arrays have some of them, too.
const GROUPS: [&str; 4] = [ZARR_JSON, ".zgroup", ZATTRS, ZMETADATA];

/// Whether a program that writes Zarr gives a file such a name.
pub(super) fn owns(name: &Name) -> bool {
    let (folder, file) = split(name.as_str());
    // The chunks of v3, if slashes don't separate their numbers.
    let v3 = |file: &str| {
        let rest = file.strip_prefix('c');
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_chunk))
    };
    [RECORD, zarr3::RECORD].contains(&name.as_str())
        || GROUPS.contains(&file)
        || (!folder.is_empty() && (v3(file) || file == ZARRAY || is_chunk(file)))
}

/// Whether the files of an array that can't be read belong to the checkpoint, so that a replacement may remove them. Without a record, what is
/// damaged may be anything.
pub(crate) fn is_refused(reader: &ZarrReader, key: &str) -> bool {
    let refused = reader.refused.get(key);
    refused.is_some_and(|why| reader.has_record || why.kind != ErrorKind::Corrupt)
}

/// The role of a file in which no chunk lies.
pub(crate) fn role(reader: &ZarrReader, file: &Entry) -> FileRole {
    if [RECORD, zarr3::RECORD].contains(&file.name.as_str()) {
        return FileRole::Part;
    }
    if let Some(role) = of_arrays(reader, &file.name) {
        return role;
    }
    let Some((folder, file)) = file.name.as_str().rsplit_once('/') else {
        return FileRole::Foreign;
    };
    let array = reader
        .arrays
        .binary_search_by(|array| (*array.key).cmp(folder))
        .is_ok();
    // Nobody knows which chunks an array has that can't be read.
    let refused = is_refused(reader, folder);
    let is_array = |key: &str| reader.metadata.tensor(key).is_some() || is_refused(reader, key);
    match (file == ZARRAY, is_chunk(file)) {
        (true, _) if array || refused => FileRole::Part,
        (_, true) if refused => FileRole::Part,
        // Beyond its shape.
        (_, true) if array => FileRole::Leftover,
        (true, _) | (_, true) if locked(folder).is_some_and(is_array) => FileRole::Leftover,
        _ => FileRole::Foreign,
    }
}

/// Whether a folder is that of an array, or one around it.
fn is_node(reader: &ZarrReader, folder: &str) -> bool {
    let is_array = reader.metadata.tensor(folder).is_some();
    if folder.is_empty() || is_array || is_refused(reader, folder) {
        return true;
    }
    // Those below it follow each other in the order of keys, and nothing lies between them.
    let below = format!("{folder}/");
    let from = reader.arrays.partition_point(|array| *array.key < *below);
    let refused = reader.refused.range(below.clone()..);
    let first = reader.arrays.get(from).map(|array| &*array.key);
    first.is_some_and(|key| key.starts_with(&below))
        || refused
            .take_while(|(key, _)| key.starts_with(&below))
            .any(|(key, _)| is_refused(reader, key))
}

/// The role of a file that belongs to an array by its folder, or that zarr gives to groups.
fn of_arrays(reader: &ZarrReader, name: &Name) -> Option<FileRole> {
    let name = name.as_str();
    let (folder, file) = split(name);
    if GROUPS.contains(&file) && is_node(reader, folder) {
        return Some(FileRole::Part);
    }
    splits(name).chain([("", name)]).find_map(|(folder, rest)| {
        // Nobody knows how an array names its chunks that can't be read.
        let numbered = || rest.starts_with("c/") || rest.starts_with(|c: char| c.is_ascii_digit());
        if is_refused(reader, folder) && numbered() {
            return Some(FileRole::Part);
        }
        let array = reader.array_in(folder)?;
        match array.meta.keys.cell(rest, array.meta.shape.len()) {
            // Beyond its shape.
            Some(_) => Some(FileRole::Leftover),
            None => (rest == ZARRAY).then_some(FileRole::Part),
        }
    })
}

/// Whether a check looks at all bytes of a file: of each chunk, and of the description of an array whose checksum is in the record.
pub(super) fn covers(reader: &ZarrReader, name: &Name) -> bool {
    let name = name.as_str();
    let mut folders = splits(name).chain([("", name)]);
    let found = folders.find_map(|(folder, rest)| Some((reader.array_in(folder)?, rest)));
    let Some((array, rest)) = found else {
        return false;
    };
    if matches!(rest, ZARRAY | ZARR_JSON) {
        return array.checksums.is_some();
    }
    let at = array.meta.keys.cell(rest, array.meta.shape.len());
    at.is_some_and(|at| array.has_file(&at))
}

/// Whether a save of Megatron Core wrote all that it had to. It makes all arrays first, then each rank writes its chunks, also those that are zero. A chunk is
/// put into place as a whole. So a save that was killed lacks chunks, unless several ranks wrote parts of one chunk: then there are lock files.
pub(super) fn is_whole(reader: &ZarrReader) -> Result<(), String> {
    if reader.version.is_v3() {
        return Err("Megatron Core never wrote Zarr v3".into());
    }
    if reader.has_record {
        return Err(format!(
            "{RECORD} is there, so reshard saved it, and then it had a metadata.json"
        ));
    }
    if let Some((key, why)) = reader.refused.first_key_value() {
        return Err(format!("array {key} can't be read: {}", why.what));
    }
    if let Some(key) = locks(reader).next() {
        return Err(format!(
            "several ranks wrote parts of the chunks of {key}, because there are lock files, and nobody can tell whether all of them did"
        ));
    }
    for array in &reader.arrays {
        for number in 0..array.count {
            let file = array.file(number).map_err(|e| e.to_string())?;
            match array.stored(number, &reader.files) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(format!("a chunk of {} is missing: {file}", array.key)),
                Err(e) => return Err(e.to_string()),
            }
        }
    }
    Ok(())
}

/// The arrays of the lock files, each as often as it has some.
fn locks(reader: &ZarrReader) -> impl Iterator<Item = &str> {
    let locks = reader
        .files
        .keys()
        .filter_map(|name| locked(split(name.as_str()).0));
    locks.filter(move |of| reader.metadata.tensor(of).is_some())
}

/// So many arrays are named of which chunks are not stored.
const NOTES: usize = 100;

/// Which programs wrote it.
pub(super) fn producer(reader: &ZarrReader) -> Producer {
    let megatron = reader.dialect == Dialect::Megatron;
    let v3 = reader.version.is_v3();
    let (by, can) = match (reader.has_record, megatron, v3) {
        (true, _, true) => ("reshard", "reshard, and as a group what reads Zarr v3"),
        (true, _, false) => ("reshard", "reshard, and per array what reads Zarr v2"),
        (false, _, true) => ("a program that writes Zarr v3", "what reads Zarr v3"),
        (false, true, false) => (
            "Megatron Core 0.4 to 0.15",
            "Megatron Core up to 0.15, and per array what reads Zarr v2",
        ),
        (false, false, false) => ("a program that writes Zarr v2", "what reads Zarr v2"),
    };
    let mut notes = Vec::new();
    let mut others = 0;
    for array in &reader.arrays {
        match array.missing(&reader.files) {
            0 => {}
            missing if notes.len() < NOTES => notes.push(format!(
                "{}: {missing} of {} chunks are not stored; their elements are the fill value",
                array.key, array.count
            )),
            _ => others += 1,
        }
    }
    if others > 0 {
        notes.push(format!(
            "{others} more arrays have chunks that are not stored"
        ));
    }
    let mut others = 0;
    for array in &reader.arrays {
        match &array.meta.stated {
            None => {}
            Some(stated) if notes.len() < 2 * NOTES => notes.push(format!(
                "{}: its elements are {}, and are read as {}",
                array.key,
                stated.name(),
                array.meta.dtype
            )),
            Some(_) => others += 1,
        }
    }
    if others > 0 {
        notes.push(format!(
            "{others} more arrays have elements of types that are read as others"
        ));
    }
    let locks = locks(reader).count();
    if locks > 0 {
        notes.push(format!(
            "{locks} lock files of Megatron Core lie beside arrays"
        ));
    }
    let of = |text: &str| vec![text.to_owned()];
    let mut warnings = Vec::new();
    if !reader.contradicted.is_empty() {
        let paths = reader.contradicted.iter().map(|path| format!("{path:?}"));
        let paths = first(1, paths);
        warnings.push(format!(
            "consolidated metadata say something else of {paths} than the descriptions there; reshard reads these, and zarr-python the consolidated metadata"
        ));
    }
    Producer {
        warnings,
        written_by: of(by),
        loadable_by: of(can),
        notes,
        ..Producer::default()
    }
    .with_refused(&reader.refused)
}

/// The arrays that are stored in a way that is not understood, by their keys in order.
pub(super) fn unknown(reader: &ZarrReader) -> impl Iterator<Item = (&String, &Refused)> {
    let refused = reader.refused.iter();
    refused.filter(|(_, why)| why.kind != ErrorKind::Corrupt)
}
