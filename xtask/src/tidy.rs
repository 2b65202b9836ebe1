//! House rules that no compiler checks.

mod examples;
mod files;
mod floors;
mod pages;

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::shell::{Program, root, say};

/// Checks all rules, and names everything that is wrong at once.
pub(crate) fn run(bless: bool) -> Result<()> {
    let files = project_files()?;
    let mut complaints = Vec::new();
    floors::check(&mut complaints)?;
    files::check(&files, &mut complaints)?;
    pages::check(&files, bless, &mut complaints)?;
    examples::check(&files, &mut complaints)?;
    if complaints.is_empty() {
        say(format!("tidy: {} files, nothing to complain about", files.len()));
        return Ok(());
    }
    for complaint in &complaints {
        say(format!("tidy: {complaint}"));
    }
    bail!("tidy found {} breaches of the house rules", complaints.len())
}

/// Files of the project, relative to its root: what git tracks or would track.
fn project_files() -> Result<Vec<PathBuf>> {
    let listed =
        Program::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).read()?;
    let mut files: Vec<PathBuf> = listed.split_terminator('\0').map(PathBuf::from).collect();
    // A deleted file stays in the index until the deletion is staged.
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}
