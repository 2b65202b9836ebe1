//! House rules that no compiler checks.

mod examples;
mod files;
mod floors;
mod pages;
mod picture;
mod words;

use anyhow::{Result, bail};

use crate::shell::{project_files, say};

/// Checks all rules, and names everything that is wrong at once.
pub(crate) fn run(bless: bool) -> Result<()> {
    let files = project_files()?;
    let mut complaints = Vec::new();
    floors::check(&mut complaints)?;
    files::check(&files, &mut complaints)?;
    pages::check(&files, bless, &mut complaints)?;
    picture::check(bless, &mut complaints)?;
    examples::check(&files, &mut complaints)?;
    words::check(&files, &mut complaints)?;
    if complaints.is_empty() {
        say(format!("tidy: {} files, nothing to complain about", files.len()));
        return Ok(());
    }
    for complaint in &complaints {
        say(format!("tidy: {complaint}"));
    }
    bail!("tidy found {} breaches of the house rules", complaints.len())
}
