//! The names of files: arrays, their chunks, and what reshard adds.

use reshard_model::Dims;
use reshard_storage::Name;

/// Name of the backend.
pub const NAME: &str = "zarr";

/// The file that reshard adds to a zarr checkpoint: checksums, and what zarr has no place for. Other programs ignore it.
pub const RECORD: &str = "reshard-zarr.json";

pub(crate) use crate::array::find::ZARRAY;

/// What Megatron Core appends to the name of an array for its lock files.
pub(crate) const SYNC: &str = ".sync";

/// The numbers of a chunk's file, exactly as they are written: without a sign and without leading zeros.
pub(crate) fn parse_chunk_key(name: &str) -> Option<Dims> {
    let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
    name.split('.').map(number).collect()
}

/// A file of an array, by its name alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InArray {
    /// `.zarray`.
    Description,
    /// A chunk, at this position.
    Chunk(Dims),
    /// Anything else.
    Other,
}

/// The folder of a file, and what the file is in an array there. `None` for files directly in the checkpoint.
pub(crate) fn in_array(name: &Name) -> Option<(&str, InArray)> {
    let (folder, file) = name.as_str().rsplit_once('/')?;
    let found = match parse_chunk_key(file) {
        _ if file == ZARRAY => InArray::Description,
        Some(index) => InArray::Chunk(index),
        None => InArray::Other,
    };
    Some((folder, found))
}

/// The array whose lock files lie in a folder: Megatron Core names each like the file that it locks.
pub(crate) fn locked(folder: &str) -> Option<&str> {
    folder.strip_suffix(SYNC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_told_by_their_positions() {
        for (name, index) in [
            ("0", Some([0].into())),
            ("3.0.12", Some([3, 0, 12].into())),
            ("", None),
            ("01", None),
            ("+1", None),
            ("1.", None),
            ("1..2", None),
            (".zarray", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(parse_chunk_key(name), index, "{name}");
        }
    }

    #[test]
    fn files_of_arrays_are_told_by_their_names() {
        let found = |name: &str| {
            let name = Name::new(name).unwrap();
            in_array(&name).map(|(of, what)| format!("{of} {what:?}"))
        };
        let say = |text: &str| Some(text.to_owned());
        assert_eq!(found("metadata.json"), None);
        assert_eq!(found("a.b/.zarray"), say("a.b Description"));
        assert_eq!(found("a/b/0.1"), say("a/b Chunk([0, 1])"));
        assert_eq!(found("a.sync/0.1"), say("a.sync Chunk([0, 1])"));
        assert_eq!(found("a/shard_0_1.pt"), say("a Other"));
        assert_eq!((locked("a.sync"), locked("a")), (Some("a"), None));
    }
}
