/// Name of the backend.
pub const NAME: &str = "torch_dist";

/// The pickle that says what is stored and where. Its presence makes a directory a DCP checkpoint.
pub const METADATA: &str = ".metadata";

/// What a file is, by its name, if the programs of this format give such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnFile {
    /// `.metadata`.
    Metadata,
    /// `__{rank}.metadata` of a rank-local save.
    RankMetadata(u32),
    /// `__{rank}_{n}.distcp`. If a separation hint of Megatron Core precedes it, only the metadata of the checkpoint can decide.
    Data,
    /// A metadata file that is not renamed yet: `.metadata.tmp`.
    Unfinished,
}

/// Recognises a file by its name.
///
/// ```
/// use reshard_torch_dist::{OwnFile, own_file};
/// assert_eq!(own_file("__3.metadata"), Some(OwnFile::RankMetadata(3)));
/// assert_eq!(own_file("__0_2.distcp"), Some(OwnFile::Data));
/// assert_eq!(own_file("README.md"), None);
/// ```
pub fn own_file(name: &str) -> Option<OwnFile> {
    if name.contains('/') {
        return None;
    }
    if let Some(of) = name.strip_suffix(".tmp") {
        return metadata(of).map(|_| OwnFile::Unfinished);
    }
    metadata(name).or_else(|| hint(name)?.is_empty().then_some(OwnFile::Data))
}

/// The separation hint of Megatron Core in the name of a data file, `{hint}__{rank}_{n}.distcp`. Empty if there is none. Any text may be
/// a hint. So a name with a hint belongs to the checkpoint only in Megatron Core's dialect, and only if the metadata have this hint.
pub(crate) fn hint(name: &str) -> Option<&str> {
    let (hint, numbers) = name.strip_suffix(".distcp")?.rsplit_once("__")?;
    let (rank, n) = numbers.split_once('_')?;
    (number(rank).is_some() && number(n).is_some() && !hint.contains('/')).then_some(hint)
}

/// A number exactly as it is written: without a sign and without leading zeros.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n: &u32| n.to_string() == text)
}

fn metadata(name: &str) -> Option<OwnFile> {
    if name == METADATA {
        return Some(OwnFile::Metadata);
    }
    let rank = name.strip_prefix("__")?.strip_suffix(METADATA)?;
    number(rank).map(OwnFile::RankMetadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_names() {
        for (name, want) in [
            (".metadata", Some(OwnFile::Metadata)),
            ("__0.metadata", Some(OwnFile::RankMetadata(0))),
            ("__0_0.distcp", Some(OwnFile::Data)),
            ("__17_204.distcp", Some(OwnFile::Data)),
            ("optimizer.__0_2.distcp", None),
            ("__00_0.distcp", None),
            ("__0_00.distcp", None),
            ("__+1_0.distcp", None),
            ("__18446744073709551616_0.distcp", None),
            (".metadata.tmp", Some(OwnFile::Unfinished)),
            ("__12.metadata.tmp", Some(OwnFile::Unfinished)),
            ("common.pt", None),
            ("integrity.json", None),
            ("distrib_optim.pt", None),
            ("__0.distcp", None),
            ("__a_0.distcp", None),
            ("_0_0.distcp", None),
            ("__+1.metadata", None),
            ("__01.metadata", None),
            ("__0_0.distcp.tmp", None),
            ("logs/__0_0.distcp", None),
            ("a/.metadata", None),
            ("", None),
        ] {
            assert_eq!(own_file(name), want, "{name}");
        }
    }
}
