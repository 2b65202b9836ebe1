//! The list of mutants that no test can notice, in `docs/mutants.md`: they do what the code does.

use anyhow::{Context as _, Result, bail};

use super::mutant::Mutant;
use crate::shell::root;

pub(crate) const PAGE: &str = "docs/mutants.md";

/// One line of the list. A mutant is told by what is written in the source, as numbers of lines change too often.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    file: String,
    what: String,
    line: String,
}

impl Known {
    pub(crate) fn is(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file && self.what == mutant.what && self.line == mutant.line
    }

    pub(crate) fn says(&self) -> String {
        format!("{}: `{}` at `{}`", self.file, self.what, self.line)
    }
}

pub(crate) fn read() -> Result<Vec<Known>> {
    let text = std::fs::read_to_string(root().join(PAGE))
        .with_context(|| format!("cannot read {PAGE}"))?;
    parse(&text)
}

/// A heading `### FILE`, and below it lines "- ``WHAT`` at ``LINE``: WHY".
fn parse(text: &str) -> Result<Vec<Known>> {
    let (mut file, mut known) = (None, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(heading) = line.strip_prefix('#') {
            file = heading
                .strip_prefix("## ")
                .map(|file| file.trim().to_owned());
        } else if let (Some(file), Some(entry)) = (&file, line.strip_prefix("- ``")) {
            let parts = entry.split_once("`` at ``").and_then(|(what, rest)| {
                let (line, why) = rest.split_once("``: ")?;
                (!why.trim().is_empty()).then(|| (what.trim().to_owned(), line.trim().to_owned()))
            });
            let Some((what, line)) = parts else {
                bail!("{PAGE}:{number}: not of the form \"- ``MUTATION`` at ``LINE``: REASON\"");
            };
            known.push(Known {
                file: file.clone(),
                what,
                line,
            });
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_in_form() -> Result<()> {
        read().map(|_| ())
    }

    #[test]
    fn an_entry_is_told_by_file_mutation_and_line() -> Result<()> {
        let text = "# Mutants\n- ``no entry\n### a/b.rs\n\n- ``replace < with <= in f`` at ``if a < b || c {``: equal does nothing\n## Else\n- ``x\n";
        let known = parse(text)?;
        let (file, what, line) = ("a/b.rs", "replace < with <= in f", "if a < b || c {");
        let want = Known {
            file: file.into(),
            what: what.into(),
            line: line.into(),
        };
        assert_eq!(known, [want]);
        assert!(
            parse("### a.rs\n- ``replace < with <=`` at ``a < b``:\n").is_err(),
            "without a reason"
        );
        Ok(())
    }
}
