//! `reshard-saver DIR STEP new|overwrite megatron|dcp`: saves once, to be killed.

use anyhow::{Context, Result};
use std::path::PathBuf;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().context("DIR is missing")?);
    let step = args.next().context("STEP is missing")?.parse()?;
    let overwrite = args.next().as_deref() == Some("overwrite");
    let dialect = args.next().context("the dialect is missing")?.parse()?;
    reshard_crash::save(&dir, step, overwrite, dialect)
}
