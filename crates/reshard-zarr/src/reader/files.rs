//! What the files of a place are.

use super::opened::ZarrReader;
use crate::{
    RECORD,
    array::find::{ZARR_JSON, ZARRAY},
    names::{InArray, in_array, locked},
};
use reshard_model::{Dialect, ErrorKind};
use reshard_storage::{Entry, Name};
use reshard_strategy::{FileRole, Producer};

/// Whether a save gives a file such a name.
pub(super) fn owns(name: &Name) -> bool {
    let v3 = |file: &str| file == ZARR_JSON || file == "c";
    name.as_str() == RECORD
        || name.as_str() == ZARR_JSON
        || name
            .as_str()
            .rsplit_once('/')
            .is_some_and(|(_, file)| v3(file))
        || matches!(
            in_array(name),
            Some((_, InArray::Description | InArray::Chunk(_)))
        )
}

/// The role of a file in which no chunk lies.
pub(super) fn role(reader: &ZarrReader, file: &Entry) -> FileRole {
    if file.name.as_str() == RECORD {
        return FileRole::Part;
    }
    if let Some(role) = of_arrays(reader, &file.name) {
        return role;
    }
    let Some((folder, what)) = in_array(&file.name) else {
        return FileRole::Foreign;
    };
    let array = reader
        .arrays
        .binary_search_by(|array| (*array.key).cmp(folder))
        .is_ok();
    // Nobody knows which chunks an array has that can't be read.
    let refused = reader.refused.contains_key(folder);
    let is_array =
        |key: &str| reader.metadata.tensor(key).is_some() || reader.refused.contains_key(key);
    match what {
        InArray::Description if array || refused => FileRole::Part,
        InArray::Chunk(_) if refused => FileRole::Part,
        // Beyond its shape.
        InArray::Chunk(_) if array => FileRole::Leftover,
        InArray::Description | InArray::Chunk(_) if locked(folder).is_some_and(is_array) => {
            FileRole::Leftover
        }
        _ => FileRole::Foreign,
    }
}

/// The role of a file that belongs to an array by its folder, or that zarr gives to groups.
fn of_arrays(reader: &ZarrReader, name: &Name) -> Option<FileRole> {
    const GROUPS: [&str; 4] = [ZARR_JSON, ".zgroup", ".zattrs", ".zmetadata"];
    let name = name.as_str();
    let file = name.rsplit_once('/').map_or(name, |(_, file)| file);
    if GROUPS.contains(&file) {
        return Some(FileRole::Part);
    }
    let folders = name
        .match_indices('/')
        .map(|(at, _)| (&name[..at], &name[at + 1..]));
    folders.chain([("", name)]).find_map(|(folder, rest)| {
        // Nobody knows how an array names its chunks that can't be read.
        let numbered = || rest.starts_with("c/") || rest.starts_with(|c: char| c.is_ascii_digit());
        if reader.refused.contains_key(folder) && numbered() {
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

/// Which programs wrote it.
pub(super) fn producer(reader: &ZarrReader) -> Producer {
    let megatron = reader.dialect == Dialect::Megatron;
    let (by, can) = match (reader.has_record, megatron) {
        (true, _) => ("reshard", "reshard, and per array what reads Zarr v2"),
        (false, true) => (
            "Megatron Core 0.4 to 0.15",
            "Megatron Core up to 0.15, and per array what reads Zarr v2",
        ),
        (false, false) => ("a program that writes Zarr v2", "what reads Zarr v2"),
    };
    let mut notes = Vec::new();
    for array in &reader.arrays {
        let missing = array.missing(&reader.files);
        if missing > 0 {
            notes.push(format!(
                "{}: {missing} of {} chunks are not stored; their elements are the fill value",
                array.key, array.count
            ));
        }
    }
    let locks = reader
        .files
        .keys()
        .filter_map(|name| in_array(name)?.0.strip_suffix(crate::names::SYNC));
    let locks = locks
        .filter(|of| reader.metadata.tensor(of).is_some())
        .count();
    if locks > 0 {
        notes.push(format!(
            "{locks} lock files of Megatron Core lie beside arrays"
        ));
    }
    let unknown = reader
        .refused
        .iter()
        .filter(|(_, why)| why.kind != ErrorKind::Corrupt);
    let of = |text: &str| vec![text.to_owned()];
    Producer {
        written_by: of(by),
        loadable_by: of(can),
        notes,
        unknown: unknown
            .map(|(key, why)| (key.clone(), why.what.clone()))
            .collect(),
    }
}
