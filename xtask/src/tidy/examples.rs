//! Rust in pages is compiled: a page with a block of it is the documentation of a module or type that exists for doc tests.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::shell::root;

pub(super) fn check(files: &[PathBuf], complaints: &mut Vec<String>) -> Result<()> {
    let read = |file: &PathBuf| {
        std::fs::read_to_string(root().join(file))
            .with_context(|| format!("cannot read {}", file.display()))
    };
    let has = |extension: &'static str| {
        files
            .iter()
            .filter(move |f| f.extension().is_some_and(|e| e == extension))
    };
    let mut tested = BTreeSet::new();
    for source in has("rs") {
        tested.extend(included(source, &read(source)?));
    }
    for page in has("md") {
        complaints.extend(check_page(page, &read(page)?, tested.contains(page)));
    }
    Ok(())
}

/// The pages whose blocks are doc tests because of this source, relative to the project's root.
fn included<'a>(source: &'a Path, text: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    text.lines().filter_map(move |line| {
        let attribute = line
            .trim_start()
            .trim_start_matches("#!")
            .trim_start_matches('#');
        let path = attribute
            .strip_prefix("[doc = include_str!(\"")?
            .split_once('"')?
            .0;
        Some(resolved(source.parent()?, path))
    })
}

/// `folder/path` without `..`.
fn resolved(folder: &Path, path: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for component in folder.join(path).components() {
        match component {
            Component::ParentDir => drop(out.pop()),
            other => out.push(other),
        }
    }
    out
}

fn check_page(page: &Path, text: &str, tested: bool) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |number: usize, what: &str| {
        complaints.push(format!("{}:{number}: {what}", page.display()));
    };
    // The fence that closes the block.
    let mut open: Option<&str> = None;
    let mut found = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let fence = &line[..line.len() - line.trim_start_matches('`').len()];
        match open {
            Some(end) if line == end => open = None,
            None if fence.len() >= 3 => {
                open = Some(fence);
                let info = line[fence.len()..].to_ascii_lowercase();
                let words: Vec<&str> = info.split([',', ' ', '{', '}']).collect();
                match words[0] {
                    "" => complain(
                        number,
                        "a block without a language; name it, or write `text`",
                    ),
                    "rust" | "rs" if words.iter().any(|w| w.starts_with("ignore")) => {
                        complain(
                            number,
                            "Rust that is ignored proves nothing; let it compile",
                        );
                    }
                    "rust" if !tested && !found => complain(
                        number,
                        "Rust that nothing compiles; add `#[doc = include_str!(\"…\")]` under `cfg(doctest)` to a \
                         crate that has what it uses",
                    ),
                    // Doc tests know Rust by this word alone, and by words that say how it is tested.
                    "rs" | "ignore" | "no_run" | "should_panic" | "compile_fail" => {
                        complain(number, "begin with the word `rust`");
                    }
                    _ => {}
                }
                found |= words[0] == "rust";
            }
            _ => {}
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str, tested: bool) -> Vec<String> {
        check_page(Path::new("docs/a.md"), text, tested)
    }

    #[test]
    fn rust_in_a_page_that_no_doc_test_includes_is_found_once() {
        let page = "Text\n\n```rust\nfn f() {}\n```\n\n```rust\n```\n";
        let found = complaints(page, false);
        assert!(
            found.len() == 1 && found[0].starts_with("docs/a.md:3: Rust that nothing"),
            "{found:?}"
        );
        assert!(complaints(page, true).is_empty());
    }

    #[test]
    fn rust_that_is_ignored_or_has_no_name_is_found() {
        for block in [
            "```rust,ignore\n```\n",
            "```rust,no_run,ignore-windows\n```\n",
            "```\n```\n",
            "```no_run\n```\n",
        ] {
            assert_eq!(complaints(block, true).len(), 1, "{block}");
        }
        assert!(complaints("```rust,no_run\n```\n", true).is_empty());
    }

    #[test]
    fn what_stands_in_a_block_opens_none() {
        assert!(
            complaints(
                "````text\n```rust\n```\n````\n```console\n$ a\n```\n",
                false
            )
            .is_empty()
        );
    }

    #[test]
    fn pages_are_included_by_attributes_of_modules_and_of_items() {
        let text = "#![doc = include_str!(\"../../../docs/a.md\")]\n#[doc = include_str!(\"b.md\")]\nstruct B;\n\
                    // include_str!(\"c.md\")\nconst C: &str = include_str!(\"c.md\");\n";
        let pages: Vec<PathBuf> = included(Path::new("crates/x/src/book.rs"), text).collect();
        assert_eq!(
            pages,
            [Path::new("docs/a.md"), Path::new("crates/x/src/b.md")]
        );
    }
}
