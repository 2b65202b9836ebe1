//! The names of the format and of a bundle's files.

/// The backend.
pub(crate) const KEY: &str = "tensor_bundle";

/// TensorFlow's own number of the format.
pub(crate) const VERSION: u32 = 2;

/// The end of the name of an index.
pub(crate) const INDEX: &str = ".index";

/// The end of the name of the file in which reshard notes what a bundle has no place for.
pub(crate) const RECORD: &str = ".reshard_bundle.json";

/// The state file of a folder: which checkpoint is the latest.
pub(crate) const STATE: &str = "checkpoint";

/// The prefix of a SavedModel's variables.
pub(crate) const VARIABLES: &str = "variables/variables";

/// What the name of a data file says: its prefix, its number, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataFile<'n> {
    pub(crate) stem: &'n str,
    pub(crate) shard: u32,
    pub(crate) of: u32,
}

/// The name of a data file.
pub(crate) fn data(stem: &str, shard: u32, of: u32) -> String {
    format!("{stem}.data-{shard:05}-of-{of:05}")
}

impl<'n> DataFile<'n> {
    /// `None` for other names.
    pub(crate) fn parse(name: &'n str) -> Option<Self> {
        let (stem, numbers) = name.rsplit_once(".data-")?;
        let (shard, of) = numbers.split_once("-of-")?;
        let out = Self {
            stem,
            shard: shard.parse().ok()?,
            of: of.parse().ok()?,
        };
        // One spelling: signs, spaces and other numbers of zeros are no such names.
        (data(stem, out.shard, out.of) == name && out.shard < out.of).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_files_are_known_by_their_names_alone() {
        assert_eq!(data("ckpt", 1, 3), "ckpt.data-00001-of-00003");
        assert_eq!(data("", 123_456, 200_000), ".data-123456-of-200000");
        for (name, stem, shard, of) in [
            ("ckpt-1.data-00000-of-00001", "ckpt-1", 0, 1),
            (".data-123456-of-200000", "", 123_456, 200_000),
            ("a.data-x.data-00001-of-00002", "a.data-x", 1, 2),
        ] {
            assert_eq!(DataFile::parse(name), Some(DataFile { stem, shard, of }));
        }
        for other in [
            "ckpt.data-0-of-1",
            "ckpt.data-00001-of-00001",
            "ckpt.data-+0000-of-00001",
            "ckpt.index",
            "ckpt.data-00000-of-",
        ] {
            assert_eq!(DataFile::parse(other), None, "{other}");
        }
    }
}
