//! Words that were given up: each was replaced by the field's own term, or by plain English. One word has one meaning.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::shell::root;

struct Gone {
    word: &'static str,
    now: &'static str,
    /// Where it means something else, and stays.
    other: &'static [&'static str],
}

const fn gone(word: &'static str, now: &'static str, other: &'static [&'static str]) -> Gone {
    Gone { word, now, other }
}

/// In two parts each, as this file is checked as well.
const GONE: &[Gone] = &[
    gone(
        concat!("Sta", "ge"),
        "Transaction; a stage is what DCP's stager makes",
        &[],
    ),
    gone(
        concat!("Gat", "her"),
        "RecordRead; to gather is what a group does",
        &["crates/reshard-comm/", "crates/reshard-comm-tcp/"],
    ),
    gone(
        concat!("Pla", "ced"),
        "WriteResult; a placement is DTensor's",
        &[],
    ),
    gone(
        concat!("Fl", "at"),
        "FlatStateDict; flat is Megatron's flattened range",
        &[],
    ),
    gone(
        concat!("Pla", "in"),
        "ValueTree",
        &["crates/reshard-torch-format/", "tests/interop/"],
    ),
    gone(
        concat!("Fra", "me"),
        "Skeleton",
        &["crates/reshard-torch-format/"],
    ),
    gone(concat!("Tra", "il"), "ActionLog", &[]),
    gone(concat!("Tra", "ce"), "Action", &[]),
    gone(concat!("Si", "te"), "NewVersion", &[]),
    gone(concat!("Ho", "me"), "ResolvedPlace", &[]),
    gone(concat!("Land", "ing"), "LentBuffer", &[]),
    gone(concat!("Land", "ingView"), "LentView", &[]),
    gone(concat!("Cla", "im"), "RegionMut", &[]),
    gone(
        concat!("Scat", "ter"),
        "StridedCopy; to scatter is what a group does",
        &[
            "crates/reshard-comm/",
            "crates/reshard-comm-tcp/",
            "crates/reshard-embedding/",
            "tests/golden/tests/it/tf_embedding.rs",
        ],
    ),
    gone(concat!("Tw", "ins"), "DuplicatePieces", &[]),
    gone(concat!("Propo", "sals"), "Offer", &[]),
    gone(concat!("Ta", "p"), "Observer", &[]),
    gone(concat!("Di", "ce"), "Choices", &[]),
    gone(concat!("Wor", "ld"), "Contents, UnderTest", &[]),
    gone(concat!("Tu", "rn"), "Priority", &[]),
];

pub(super) fn check(files: &[PathBuf], complaints: &mut Vec<String>) -> Result<()> {
    for file in files {
        let path = file.to_string_lossy().replace('\\', "/");
        let is_text = path.ends_with(".rs") || path.ends_with(".md");
        // What was said of old versions stays said.
        if !is_text || path.starts_with("tests/fixtures/") || path == "CHANGELOG.md" {
            continue;
        }
        let text = std::fs::read_to_string(root().join(file))
            .with_context(|| format!("cannot read {path}"))?;
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
    let words = GONE
        .iter()
        .filter(|gone| !gone.other.iter().any(|other| path.starts_with(other)));
    for Gone { word, now, .. } in words {
        for (number, line) in (1..).zip(text.lines()) {
            if code(path, line)
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|part| part == *word)
            {
                complaints.push(format!(":{number}: `{word}` is {now}"));
            }
        }
    }
    complaints
}

/// What of a line is code: prose may begin a sentence with any word.
fn code(path: &str, line: &str) -> String {
    if path.ends_with(".md") {
        return line
            .split('`')
            .skip(1)
            .step_by(2)
            .collect::<Vec<_>>()
            .join(" ");
    }
    let (code, prose) = line.split_once("//").unwrap_or((line, ""));
    format!(
        "{code} {}",
        prose
            .split('`')
            .skip(1)
            .step_by(2)
            .collect::<Vec<_>>()
            .join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_gone_is_found_as_a_whole_word() {
        let (word, longer) = (GONE[0].word, format!("{}s", GONE[0].word));
        assert_eq!(
            check_text("a.rs", &format!("fn f()\nlet {word}::new({longer})")).len(),
            1
        );
        assert!(
            check_text(
                "a.rs",
                &format!("{longer} Backstage // {word} is a word, too")
            )
            .is_empty()
        );
        assert_eq!(
            check_text("a.rs", &format!("/// See [`{word}::begin`].")).len(),
            1
        );
        assert_eq!(
            check_text("a.md", &format!("{word}: see `{word}`\n{word}")).len(),
            1
        );
    }

    #[test]
    fn a_word_stays_where_it_means_something_else() {
        let line = format!("Op::{}(root)", GONE[1].word);
        assert_eq!(
            check_text("crates/reshard-storage/src/a.rs", &line).len(),
            1
        );
        assert!(check_text("crates/reshard-comm/src/local.rs", &line).is_empty());
    }
}
