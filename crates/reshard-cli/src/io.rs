//! Where a run writes to: results, notes, errors, progress bars.

use crate::{
    error::{CliError, Result},
    glob::Keys,
    json,
    table::{BAD, BOLD, shown},
    units,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reshard::{
    blocking::Checkpoint,
    storage::{Progress, without_secrets},
};
use serde_json::json;
use std::{fmt, io::Write, time::Duration};

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
        let text = without_secrets(&text);
        // Who can't be told can't be told that either.
        writeln!(self.err, "{BOLD}note:{BOLD:#} {}", shown(&text)).unwrap_or(());
    }

    /// The first of many notes, and one about how many others there are.
    pub(crate) fn notes(
        &mut self,
        most: usize,
        mut all: impl Iterator<Item = String>,
        others: impl FnOnce(u64) -> String,
    ) {
        all.by_ref().take(most).for_each(|text| self.note(text));
        if let more @ 1.. = all.count() {
            self.note(others(more as u64));
        }
    }

    /// What went wrong, and what to do.
    pub(crate) fn error(&mut self, e: &CliError) {
        let (text, hint) = (e.text(), without_secrets(e.hint()));
        let text = without_secrets(&text);
        writeln!(self.err, "{BAD}error:{BAD:#} {text}").unwrap_or(());
        if !hint.is_empty() {
            writeln!(self.err, "{BOLD}hint:{BOLD:#} {}", shown(&hint)).unwrap_or(());
        }
    }

    /// The same for programs, on stdout; a closed pipe is no news any more.
    pub(crate) fn error_json(&mut self, kind: &str, url: Option<&str>, message: &str, hint: &str) {
        let [message, hint] = [message, hint].map(without_secrets);
        let url = url.map(without_secrets);
        let hint = Some(hint).filter(|hint| !hint.is_empty());
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

    /// As [`note_idle`](Self::note_idle), but if no key is chosen at all, that is an error: whoever reads the result alone must not take nothing for
    /// something that was looked at.
    pub(crate) fn require_some<'k>(
        &mut self,
        keys: Keys<'_>,
        dir: &str,
        stored: impl Iterator<Item = &'k str> + Clone,
    ) -> Result<()> {
        if keys.all() || stored.clone().any(|key| keys.has(key)) {
            self.note_idle(keys, dir, stored);
            return Ok(());
        }
        let hint = format!(
            "`reshard ls {dir}` lists the keys; `reshard show` prints what lies in the common state"
        );
        Err(none_chosen(keys.idle(stored), hint))
    }

    /// The same for a command about tensors alone, which tells patterns that match only objects apart. `lack` is what these don't have.
    pub(crate) fn require_tensors(
        &mut self,
        keys: Keys<'_>,
        (dir, lack): (&str, &str),
        checkpoint: &Checkpoint,
    ) -> Result<()> {
        let producer = checkpoint.producer();
        let refused = producer.unknown.keys().chain(producer.damaged.keys());
        let tensors = checkpoint.metadata().tensors().map(|t| t.key());
        let tensors = tensors.chain(refused.map(String::as_str));
        let objects: Vec<&str> = checkpoint.objects().collect();
        let objects = objects.iter().copied();
        let of_objects = keys.only_in(tensors.clone(), objects.clone());
        if keys.all() && objects.len() > 0 && tensors.clone().next().is_none() {
            let count = units::some(objects.len() as u64, "object");
            self.note(format!(
                "{dir} has no tensors, and {count} without a {lack}"
            ));
        }
        if of_objects.is_empty() {
            return self.require_some(keys, dir, tensors);
        }
        let what = |glob: &str| format!("{glob} matches only objects, which have no {lack}");
        let told = of_objects.iter().map(|glob| what(glob));
        if tensors.clone().any(|key| keys.has(key)) {
            told.for_each(|what| self.note(what));
            self.note_idle(keys, dir, tensors.chain(objects));
            return Ok(());
        }
        let idle = keys.idle(tensors.chain(objects));
        let hint = format!("`reshard show {dir} KEY` prints an object");
        Err(none_chosen(told.chain(idle).collect(), hint))
    }

    /// Notes with `no_verify` that nothing was checked, so that nobody takes the result for one that was.
    pub(crate) fn note_unverified(&mut self, no_verify: bool) {
        if no_verify {
            self.note("no checksum was checked before reading (--no-verify)");
        }
    }

    /// A bar of bytes, and what moves it.
    pub(crate) fn progress(&self, label: &'static str, total: u64) -> (ProgressBar, Progress) {
        let bar = self.bar(label, total);
        let moved = bar.clone();
        (bar, Progress::new(move |n| moved.inc(n)))
    }

    /// A bar of bytes.
    pub(crate) fn bar(&self, label: &'static str, total: u64) -> ProgressBar {
        let target = match self.bars {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = bar(target, label, total);
        // It is shown at once, before the first byte has moved. Without a terminal, the thread that draws would only take memory.
        if self.bars && !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        bar
    }
}

/// No key was chosen, for these reasons.
fn none_chosen(mut why: Vec<String>, hint: String) -> CliError {
    if why.is_empty() {
        why.push("--exclude leaves out all keys".into());
    }
    CliError::told(why.join("; "), hint)
}

/// `w, which is damaged`, or `3 keys that are damaged, such as w`.
pub(crate) fn keys_that(first: &str, more: usize, are: &str) -> String {
    let first = shown(first);
    match more as u64 {
        0 => format!("{first}, which is {are}"),
        more => format!(
            "{} that are {are}, such as {first}",
            units::some(1 + more, "key")
        ),
    }
}

/// How often a bar is drawn, if nothing moves.
const TICK: Duration = Duration::from_millis(250);

const BYTES: &str = "{prefix:<10} {wide_bar:.cyan/blue} {decimal_bytes:>10} of {decimal_total_bytes:<10} {decimal_bytes_per_sec:>12} {eta:>4}";

/// How many bytes of how many, at which rate, and how long the rest will take.
fn bar(target: ProgressDrawTarget, label: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(BYTES).map_or_else(
        |_| ProgressStyle::default_bar(),
        |s| s.progress_chars("━╸─"),
    );
    ProgressBar::with_draw_target(Some(total), target)
        .with_style(style)
        .with_prefix(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::sync::{Arc, Mutex};

    /// So wide that no line of a test is cut.
    const WIDTH: u16 = 200;

    /// A terminal that keeps all that was written to it.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        /// A bar draws to it.
        fn target(&self) -> ProgressDrawTarget {
            ProgressDrawTarget::term_like(Box::new(self.clone()))
        }

        /// All that was written so far.
        fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            WIDTH
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_shows_how_much_is_done_the_rate_and_how_long_the_rest_takes() {
        let screen = Screen::default();
        let bar = bar(screen.target(), "writing", 4_000_000);
        bar.inc(1_000_000);
        bar.force_draw();
        let shown = screen.text();
        // What is drawn last is the newest.
        let shown = shown.rsplit_once("writing").unwrap().1;
        let (_, numbers) = shown.split_once("1.00 MB of 4.00 MB").unwrap();
        let [rate, unit, rest] = numbers.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{shown:?}")
        };
        assert!(
            rate.parse::<f64>().is_ok() && unit.ends_with("B/s"),
            "{shown:?}"
        );
        assert!(rest.ends_with(['s', 'm', 'h', 'd']), "{shown:?}");
    }
}
