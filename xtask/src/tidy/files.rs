//! Rules about single files: size, shape of `lib.rs`, crate docs, doc tests that run, no paths of somebody's machine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::shell::root;

const MAX_LINES: usize = 900;

/// Parts of paths that exist on one machine only. Written in two parts, as this file is checked as well.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
];

pub(super) fn check(files: &[PathBuf], complaints: &mut Vec<String>) -> Result<()> {
    for file in files {
        let path = file.to_string_lossy().replace('\\', "/");
        // Checkpoints that other programs wrote are kept as they are.
        if path.starts_with("tests/fixtures/") {
            continue;
        }
        let bytes =
            std::fs::read(root().join(file)).with_context(|| format!("cannot read {path}"))?;
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        complaints.extend(
            check_text(&path, &text)
                .into_iter()
                .map(|complaint| format!("{path}{complaint}")),
        );
    }
    Ok(())
}

fn check_text(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in numbered(text) {
        if let Some(part) = MACHINE_PATHS
            .iter()
            .find(|part| names_machine_path(line, part))
        {
            complaints.push(format!(":{number}: names a path of one machine ({part}…)"));
        }
    }
    if !path.ends_with(".rs") {
        return complaints;
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        complaints.push(format!(
            ": {lines} lines, more than {MAX_LINES}: split it by what it does"
        ));
    }
    for (number, line) in numbered(text) {
        let doc = line.trim_start();
        if let Some(fence) = doc
            .strip_prefix("/// ```")
            .or_else(|| doc.strip_prefix("//! ```"))
            && fence.split(',').any(|word| word.trim() == "ignore")
        {
            complaints.push(format!(
                ":{number}: a doc test that is ignored proves nothing; use `no_run` or `text`"
            ));
        }
    }
    let name = Path::new(path).file_name().unwrap_or_default();
    if name == "lib.rs" {
        // The crates under tests/ are small, and nobody's library.
        if path.starts_with("crates/")
            && let Some(number) = first_code(text)
        {
            complaints.push(format!(
                ":{number}: lib.rs holds only docs, `mod` and `use`"
            ));
        }
        let crate_docs = |line: &str| line.starts_with("//!") || line.starts_with("#![doc");
        if !text.lines().any(crate_docs) {
            complaints.push(": has no crate docs (`//!`)".to_owned());
        }
    }
    if name == "mod.rs" {
        complaints.push(": modules are `name.rs` beside `name/`, not `mod.rs`".to_owned());
    }
    complaints
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// Whether an absolute path with this beginning stands in the line (`network/x` does not count).
fn names_machine_path(line: &str, part: &str) -> bool {
    line.match_indices(part).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')'))
    })
}

/// The first line that is neither docs, attribute, `mod` nor `use`.
fn first_code(text: &str) -> Option<usize> {
    // What ends a statement that goes over several lines.
    let mut open: Option<char> = None;
    for (number, line) in numbered(text) {
        let line = line.trim();
        if let Some(end) = open {
            if line.ends_with(end) {
                open = None;
            }
            continue;
        }
        if line.is_empty() || line.starts_with("//") || line == "}" {
            continue;
        }
        let item = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        let end = if line.starts_with('#') {
            ']'
        } else if item.starts_with("use ") || item.starts_with("extern crate ") {
            ';'
        } else if item.starts_with("mod ") && line.ends_with([';', '{']) {
            continue;
        } else {
            return Some(number);
        };
        if !line.ends_with([end, ';']) {
            open = Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_modules_and_uses_are_no_code() {
        let text = "//! Docs.\n#![expect(\n    lint,\n    reason = \"x\"\n)]\n\nmod a;\npub mod b {\n    pub use x::{\n        Y,\n        Z,\n    };\n}\n#[cfg(test)]\nmod tests;\n";
        // An attribute over several lines ends with `)]`.
        assert_eq!(first_code(text), None);
    }

    #[test]
    fn a_function_in_lib_rs_is_found_at_its_line() {
        assert_eq!(first_code("//! Docs.\nmod a;\n\npub fn f() {}\n"), Some(4));
        let complaints = check_text("crates/x/src/lib.rs", "mod a;\nconst N: u8 = 1;\n");
        assert!(
            complaints[0].starts_with(":2:") && complaints[1].contains("crate docs"),
            "{complaints:?}"
        );
    }

    #[test]
    fn a_path_of_one_machine_is_found_but_a_word_that_ends_alike_is_not() {
        let path = format!("see {}someone/x", MACHINE_PATHS[0]);
        assert_eq!(check_text("README.md", &path).len(), 1);
        let words = format!("the net{0}x and frame{0}", MACHINE_PATHS[3]);
        assert!(check_text("README.md", &words).is_empty() || cfg!(windows));
        assert!(check_text("README.md", &format!("net{}x", MACHINE_PATHS[3])).is_empty());
    }

    #[test]
    fn a_long_file_and_an_ignored_doc_test_are_named() {
        let long = "// line\n".repeat(MAX_LINES + 1);
        assert!(check_text("a.rs", &long)[0].contains("901 lines"));
        assert!(check_text("a.rs", "/// ```rust,ignore\n")[0].contains("ignored"));
        assert!(check_text("a.rs", "/// ```no_run\n").is_empty());
    }
}
