//! A copy of the project in which sources may be broken, with a target folder of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::shell::{project_files, root};

/// Brings the copy up to date. What is the same stays untouched, so that cargo does not build it again.
pub(crate) fn copy(to: &Path) -> Result<()> {
    let files: BTreeSet<PathBuf> = project_files()?.into_iter().collect();
    for file in &files {
        let (from, to) = (root().join(file), to.join(file));
        let bytes =
            std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot make {}", parent.display()))?;
        }
        std::fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    remove_others(to, Path::new(""), &files)
}

/// What the project no longer has, or what a test left.
fn remove_others(tree: &Path, below: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    let dir = tree.join(below);
    for entry in
        std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?
    {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(tree, &name, files)?;
        } else if !files.contains(&name) {
            std::fs::remove_file(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}
