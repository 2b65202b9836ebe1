//! Names of files, as PyTorch's and transformers' users give them.

use reshard_strategy::OwnFile;

/// Name of the format, and of its configurations' tags.
pub const NAME: &str = "torch_save";
/// The index of a folder with several files.
pub(crate) const INDEX: &str = "pytorch_model.bin.index.json";
/// The only file of a folder.
pub(crate) const WEIGHTS: &str = "pytorch_model.bin";

/// What names of files of `torch.save` end with.
const ENDINGS: [&str; 4] = [".pt", ".pth", ".bin", ".ckpt"];

/// Whether a file of this name may be one of `torch.save`.
pub(crate) fn is_file(name: &str) -> bool {
    ENDINGS
        .iter()
        .any(|ending| name.len() > ending.len() && name.ends_with(ending))
}

/// The name of one of several files, which are counted from 1.
pub(crate) fn shard(number: usize, of: usize) -> String {
    format!("pytorch_model-{number:05}-of-{of:05}.bin")
}

/// What a file in a folder is by its name.
pub(crate) fn own_file(name: &str) -> Option<OwnFile> {
    match name {
        INDEX | WEIGHTS => Some(OwnFile::Record),
        _ => is_shard(name).then_some(OwnFile::Data),
    }
}

fn is_shard(name: &str) -> bool {
    let numbers = name
        .strip_prefix("pytorch_model-")
        .and_then(|name| name.strip_suffix(".bin")?.split_once("-of-"));
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(number, of)| is_number(number) && is_number(of))
}

/// The last part of a URL.
pub(crate) fn last_part(url: &str) -> &str {
    url.trim_end_matches('/').rsplit('/').next().unwrap_or(url)
}

/// The folder of the records in an archive of this name: torch takes the name without its ending.
pub(crate) fn prefix(file: &str) -> &str {
    match file.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() && stem.len() < 1000 => stem,
        _ => "archive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers_and_torch() {
        assert_eq!(shard(3, 12), "pytorch_model-00003-of-00012.bin");
        assert_eq!(own_file(&shard(3, 12)), Some(OwnFile::Data));
        assert_eq!(own_file(WEIGHTS), Some(OwnFile::Record));
        for not in [
            "model.pt",
            "pytorch_model-1-of-2.bin",
            "pytorch_model-.bin",
            "rank-0.bin",
        ] {
            assert_eq!(own_file(not), None, "{not}");
        }
        assert!(
            is_file("a.pt") && is_file("a.b.pth") && !is_file(".pt") && !is_file("a.safetensors")
        );
        assert_eq!(
            (prefix("model.pt"), prefix("a.b.pth"), prefix(".pt")),
            ("model", "a.b", "archive")
        );
        assert_eq!(last_part("file:///a/model.pt"), "model.pt");
    }
}
