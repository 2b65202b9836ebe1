//! Where a run writes to: results, notes, errors, progress bars.

use crate::{
    error::CliError,
    glob::Keys,
    json,
    table::{BAD, BOLD, shown},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::{fmt, io::Write};

/// Where a run writes to.
pub struct Io<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Notes and errors.
    pub err: &'a mut dyn Write,
    /// Whether to draw progress bars on the terminal's stderr, if there is one.
    pub bars: bool,
}

impl fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("bars", &self.bars)
            .finish_non_exhaustive()
    }
}

impl Io<'_> {
    /// Something the user should know that is no result.
    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        let text = text.to_string();
        // Who can't be told can't be told that either.
        writeln!(self.err, "{BOLD}note:{BOLD:#} {}", shown(&text)).unwrap_or(());
    }

    /// What went wrong, and what to do.
    pub(crate) fn error(&mut self, e: &CliError) {
        let (text, hint) = (e.text(), e.hint());
        writeln!(
            self.err,
            "{BAD}error:{BAD:#} {text}\n{BOLD}hint:{BOLD:#} {}",
            shown(hint)
        )
        .unwrap_or(());
    }

    /// The same for programs, on stdout; a closed pipe is no news any more.
    pub(crate) fn error_json(&mut self, kind: &str, url: Option<&str>, message: &str, hint: &str) {
        let error = json!({ "kind": kind, "url": url, "message": message, "hint": hint });
        drop(json::write(
            self.out,
            &json!({ "schema": 1, "error": error }),
        ));
        self.out.flush().unwrap_or(());
    }

    /// Tells which patterns match none of the keys that are stored, and what may have been meant.
    pub(crate) fn note_idle<'k>(
        &mut self,
        keys: Keys<'_>,
        dir: &str,
        stored: impl Iterator<Item = &'k str>,
    ) {
        if keys.all() {
            return;
        }
        let stored: Vec<&str> = stored.collect();
        for idle in keys.idle(stored.iter().copied()) {
            self.note(format!("{idle}; `reshard ls {dir}` lists the keys"));
        }
    }

    /// A bar of bytes.
    pub(crate) fn bar(&self, label: &'static str, total: u64) -> ProgressBar {
        let target = if self.bars {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template(
            "{prefix:<10} {wide_bar:.cyan/blue} {decimal_bytes:>10} of {decimal_total_bytes:<10} {decimal_bytes_per_sec:>12} {eta:>4}",
        )
        .map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("━╸─"));
        ProgressBar::with_draw_target(Some(total), target)
            .with_style(style)
            .with_prefix(label)
    }
}
