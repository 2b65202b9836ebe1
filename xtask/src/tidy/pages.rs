//! A change of bytes is an event: each page of `docs/formats/` names the sources that write the bytes it draws, with their
//! hash, so that neither changes without somebody looking at the other.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::shell::{root, say};

const OPEN: &str = "<!-- source:";
const HASH: &str = "sha256:";

pub(super) fn check(files: &[PathBuf], bless: bool, complaints: &mut Vec<String>) -> Result<()> {
    let pages = files.iter().filter(|file| {
        file.starts_with("docs/formats")
            && file.extension().is_some_and(|extension| extension == "md")
    });
    for page in pages {
        let name = page.display();
        let text = std::fs::read_to_string(root().join(page))
            .with_context(|| format!("cannot read {name}"))?;
        let Some(line) = text.lines().find(|line| line.starts_with(OPEN)) else {
            complaints.push(format!(
                "{name}: names no source; add a line `{OPEN} PATH... {HASH} 0 -->` and run `cargo xtask tidy --bless`"
            ));
            continue;
        };

        let Some((sources, written)) = parse(line) else {
            complaints.push(format!(
                "{name}: cannot read `{line}`; it should be `{OPEN} PATH... {HASH} HEX -->`"
            ));
            continue;
        };
        let missing: Vec<&str> = sources
            .iter()
            .copied()
            .filter(|source| !root().join(source).exists())
            .collect();
        if sources.is_empty() {
            complaints.push(format!(
                "{name}: `{line}` names no source; write its path before `{HASH}`"
            ));
            continue;
        }
        if !missing.is_empty() {
            complaints.push(format!(
                "{name}: names sources that do not exist: {}",
                missing.join(", ")
            ));
            continue;
        }

        let now = hash(&sources, files)?;
        if now == written {
            continue;
        }

        // Only this one line changes, so the page's own text stays as somebody wrote it.
        if bless {
            let new_line = format!("{OPEN} {} {HASH} {now} -->", sources.join(" "));
            std::fs::write(root().join(page), text.replacen(line, &new_line, 1))
                .with_context(|| format!("cannot write {name}"))?;
            say(format!("tidy: {name} blessed"));
        } else {
            complaints.push(format!(
                "{name}: its sources ({}) have changed; see that the page still tells the truth, then run \
                 `cargo xtask tidy --bless`",
                sources.join(", ")
            ));
        }
    }
    Ok(())
}

/// The sources and the hash of a source line.
fn parse(line: &str) -> Option<(Vec<&str>, &str)> {
    let (sources, hash) = line
        .strip_prefix(OPEN)?
        .strip_suffix("-->")?
        .split_once(HASH)?;
    Some((sources.split_whitespace().collect(), hash.trim()))
}

/// 16 hex digits over the contents of the sources; a folder stands for the Rust files in it.
fn hash(sources: &[&str], files: &[PathBuf]) -> Result<String> {
    let mut hasher = Sha256::new();
    for source in sources {
        let source = Path::new(source);
        let is_rust = |file: &Path| file.extension().is_some_and(|extension| extension == "rs");
        for file in files
            .iter()
            .filter(|file| *file == source || (file.starts_with(source) && is_rust(file)))
        {
            let text = std::fs::read_to_string(root().join(file))
                .with_context(|| format!("cannot read {}", file.display()))?;
            // Line ends are git's business, not the format's.
            hasher.update(text.replace("\r\n", "\n"));
            hasher.update([0]);
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_line_gives_its_paths_and_hash() {
        assert_eq!(
            parse("<!-- source: a.rs b/ sha256: 01ab -->"),
            Some((vec!["a.rs", "b/"], "01ab"))
        );
        assert_eq!(parse("<!-- source: a.rs -->"), None);
    }

    #[test]
    fn the_hash_follows_the_content_and_the_order() -> Result<()> {
        let files = [
            PathBuf::from("xtask/src/main.rs"),
            PathBuf::from("xtask/src/shell.rs"),
        ];
        let both = hash(&["xtask/src"], &files)?;
        assert_eq!(both.len(), 16);
        assert_eq!(
            both,
            hash(&["xtask/src/main.rs", "xtask/src/shell.rs"], &files)?
        );
        assert_ne!(both, hash(&["xtask/src/main.rs"], &files)?);
        Ok(())
    }
}
