//! The names of files: arrays, their chunks, and what reshard adds.

use reshard_model::Dims;

/// Name of the backend.
pub const NAME: &str = "zarr";

/// The file that reshard adds to a zarr checkpoint: checksums, and what zarr has no place for. Other programs ignore it.
pub const RECORD: &str = "reshard-zarr.json";

/// The description of an array of Zarr v2.
pub(crate) const ZARRAY: &str = ".zarray";

/// The description of an array or a group of Zarr v3.
pub(crate) const ZARR_JSON: &str = "zarr.json";

/// Consolidated metadata of Zarr v2.
pub(crate) const ZMETADATA: &str = ".zmetadata";

/// The file with the attributes of an array or a group of Zarr v2.
pub(crate) const ZATTRS: &str = ".zattrs";

/// The path of a file in a folder. That of the place itself is empty.
pub(crate) fn join(folder: &str, file: &str) -> String {
    match folder {
        "" => file.to_owned(),
        folder => format!("{folder}/{file}"),
    }
}

/// The folder of a file, and its name there.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Each folder above a path, from the outermost one on, and the rest of the path in it. The place itself is left out.
pub(crate) fn splits(path: &str) -> impl Iterator<Item = (&str, &str)> + Clone {
    let slashes = path.match_indices('/');
    slashes.map(|(at, _)| (&path[..at], &path[at + 1..]))
}

/// What Megatron Core appends to the name of an array for its lock files.
pub(crate) const SYNC: &str = ".sync";

/// Whether a file in the folder of an array has the name of a chunk.
pub(crate) fn is_chunk(file: &str) -> bool {
    parse_chunk_key(file).is_some()
}

/// The numbers of a chunk's file, exactly as they are written: without a sign and without leading zeros.
fn parse_chunk_key(name: &str) -> Option<Dims> {
    let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
    name.split('.').map(number).collect()
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
        assert_eq!(split("a/b/0.1"), ("a/b", "0.1"));
        assert_eq!(
            [".zarray", "0.1", "shard_0_1.pt"].map(is_chunk),
            [false, true, false]
        );
        assert_eq!((locked("a.sync"), locked("a")), (Some("a"), None));
    }
}
