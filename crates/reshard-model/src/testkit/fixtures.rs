//! Where the checkpoints lie that other programs wrote.

use std::path::{Path, PathBuf};

/// Names another folder of the same layout.
const VARIABLE: &str = "RESHARD_FIXTURES";

/// The folder of all of them: `tests/fixtures` of this repository, or the folder that `RESHARD_FIXTURES` names. A relative path there starts at the root of the
/// repository, because cargo runs tests in the folder of their package.
pub fn fixtures() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match std::env::var_os(VARIABLE) {
        None => root.join("tests/fixtures"),
        Some(folder) => root.join(folder),
    }
}

/// Whether they are this repository's: then their names and what is wrong with them are known.
pub fn ours() -> bool {
    std::env::var_os(VARIABLE).is_none()
}

/// The folder of one of them, such as `megatron/mc012_optimizer_w4`. `None` if `RESHARD_FIXTURES` names a folder that lacks it: a test has nothing to look at
/// there.
///
/// # Panics
/// If this repository's fixtures lack it.
pub fn fixture(name: &str) -> Option<PathBuf> {
    let folder = fixtures().join(name);
    let is_there = folder.is_dir();
    assert!(is_there || !ours(), "there is no fixture {name}");
    is_there.then_some(folder)
}

/// One of their files, such as `megatron/vectors_012.json`; `None` as for [`fixture`].
///
/// # Panics
/// If this repository's fixtures lack it, or it is no text.
pub fn fixture_text(name: &str) -> Option<String> {
    let file = fixtures().join(name);
    let is_there = file.is_file();
    assert!(is_there || !ours(), "there is no fixture {name}");
    let text = std::fs::read_to_string(&file).ok();
    assert!(text.is_some() || !is_there, "{} is no text", file.display());
    text
}
