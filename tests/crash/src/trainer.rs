//! `reshard-trainer DIR FIRST LAST RANKS FORM KEEP` saves steps and removes old checkpoints, and says on stdout how far it is, to be killed.

use anyhow::{Context, Result};
use reshard_crash::{Run, train};
use std::{io::Write as _, path::PathBuf};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &'static str| args.next().context(what);
    let dir = PathBuf::from(next("DIR is missing")?);
    let steps = next("FIRST is missing")?.parse()?..=next("LAST is missing")?.parse()?;
    let run = Run {
        ranks: next("RANKS is missing")?.parse()?,
        form: next("FORM is missing")?.parse()?,
        keep: next("KEEP is missing")?.parse()?,
    };
    train(&dir, steps, run, |line| {
        // Whoever has closed the pipe does not want to know.
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .unwrap_or(());
    })
}
