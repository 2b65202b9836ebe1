//! House rules that no compiler checks.

mod circles;
mod examples;
mod files;
mod floors;
mod functions;
mod pages;
mod picture;
mod words;

use anyhow::{Context as _, Result, bail};

use serde_json::Value;

use crate::shell::{cargo, project_files, root, say};

/// A crate with a workspace of its own, which keeps the house rules all the same.
const ASIDE: &str = "crates/reshard-comm-mpi/Cargo.toml";

/// Checks all rules, and names everything that is wrong at once.
pub(crate) fn run(bless: bool) -> Result<()> {
    let files = project_files()?;
    let mut complaints = Vec::new();
    let text = cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"]).read()?;
    let mut metadata: Value = serde_json::from_str(&text).context("cargo metadata is no JSON")?;
    let text = cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .args(["--manifest-path", ASIDE])
        .read()?;
    let aside: Value = serde_json::from_str(&text).context("cargo metadata is no JSON")?;
    if let (Some(all), Some(more)) = (
        metadata["packages"].as_array_mut(),
        aside["packages"].as_array(),
    ) {
        all.extend(more.iter().cloned());
    }
    floors::check(&metadata, &mut complaints)?;
    circles::check(&metadata, &root(), &mut complaints)?;
    functions::check(&files, &mut complaints)?;
    files::check(&files, &mut complaints)?;
    pages::check(&files, bless, &mut complaints)?;
    picture::check(bless, &mut complaints)?;
    examples::check(&files, &mut complaints)?;
    words::check(&files, &mut complaints)?;
    if complaints.is_empty() {
        say(format!(
            "tidy: {} files, nothing to complain about",
            files.len()
        ));
        return Ok(());
    }
    for complaint in &complaints {
        say(format!("tidy: {complaint}"));
    }
    bail!(
        "tidy found {} breaches of the house rules",
        complaints.len()
    )
}
