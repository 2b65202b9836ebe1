//! `reshard-reader CACHE SEED ROUNDS` reads a bucket through a cache that processes share, to be killed. It says on its standard output when it has
//! read for the first time.

use anyhow::{Context, Result};
use reshard_crash::Shared;
use std::{io::Write as _, path::PathBuf};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let cache = PathBuf::from(args.next().context("CACHE is missing")?);
    let seed = args.next().context("SEED is missing")?.parse()?;
    let rounds = args.next().context("ROUNDS is missing")?.parse()?;
    let shared = Shared::new(&cache)?;
    shared.read(seed, 0..1)?;
    writeln!(std::io::stdout(), "reading")?;
    shared.read(seed, 1..rounds)
}
