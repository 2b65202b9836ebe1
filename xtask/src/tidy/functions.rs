//! No function is longer than a screen or two, tests included: what has more steps is told as functions of these steps.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::shell::root;

/// From the line of `fn` to that of the closing brace.
const MAX_LINES: usize = 100;

pub(super) fn check(files: &[PathBuf], complaints: &mut Vec<String>) -> Result<()> {
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "rs"))
    {
        let path = file.to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(root().join(file))
            .with_context(|| format!("cannot read {path}"))?;
        let tokens: TokenStream = text
            .parse()
            .map_err(|e| anyhow!("{path} is no Rust: {e}"))?;
        for Long { name, line, lines } in long(tokens) {
            complaints.push(format!(
                "{path}:{line}: `{name}` has {lines} lines, more than {MAX_LINES}"
            ));
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Long {
    name: String,
    line: usize,
    lines: usize,
}

/// Functions that are too long, also those in what a macro is given. `fn`, a name, and the next braces on the same level.
fn long(tokens: TokenStream) -> Vec<Long> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize)> = None;
    let mut is_fn = None;
    for token in tokens {
        match &token {
            TokenTree::Ident(ident) => {
                if let Some(line) = is_fn.take() {
                    open = Some((ident.to_string(), line));
                }
                is_fn = (*ident == "fn").then(|| ident.span().start().line);
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if let Some((name, line)) = open.take() {
                    let lines = group.span_close().end().line - line + 1;
                    if lines > MAX_LINES {
                        found.push(Long { name, line, lines });
                    }
                }
            }
            // A function without a body.
            TokenTree::Punct(sign) if sign.as_char() == ';' => open = None,
            _ => {}
        }
        if let TokenTree::Group(group) = token {
            found.extend(long(group.stream()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<Long> {
        text.parse().map(long).unwrap_or_default()
    }

    #[test]
    fn a_function_of_more_lines_than_allowed_is_found_wherever_it_stands() {
        let body = |lines: usize| "f();\n".repeat(lines - 2);
        for (before, behind) in [
            ("", ""),
            ("impl A {\n", "}"),
            ("proptest! {\n", "}"),
            ("fn g() {}\nmod tests {\n", "}"),
        ] {
            let text = |lines| {
                format!(
                    "{before}fn name<T>(a: [u8; 4]) -> u8 where T: Fn() {{\n{}}}{behind}",
                    body(lines)
                )
            };
            assert_eq!(found(&text(100)), []);
            let line = before.lines().count() + 1;
            assert_eq!(
                found(&text(101)),
                [Long {
                    name: "name".into(),
                    line,
                    lines: 101
                }]
            );
        }
    }

    #[test]
    fn declarations_and_types_of_functions_have_no_body() {
        let braces = format!("{{\n{}}}", "f();\n".repeat(200));
        for text in [
            "trait A { fn a(); }\nstruct B ",
            "type F = fn(u8) -> u8;\nimpl A ",
        ] {
            assert_eq!(found(&format!("{text}{braces}")), [], "{text}");
        }
    }
}
