//! `reshard-saver DIR STEP new|overwrite FORM` saves once, `reshard-saver DIR prune` prunes once,
//! `reshard-saver DIR remove PREFIX` removes keys once, to be killed.

use anyhow::{Context, Result};
use std::{path::PathBuf, time::Duration};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().context("DIR is missing")?);
    let step = args.next().context("STEP is missing")?;
    if step == "prune" {
        let url = dir.display().to_string();
        reshard::blocking::run(reshard::prune(&url).older_than(Duration::ZERO))?;
        return Ok(());
    }
    if step == "remove" {
        let prefix = args.next().context("PREFIX is missing")?;
        let url = dir.display().to_string();
        let removal = reshard::remove_sharded_tensors(&url, &prefix);
        reshard::blocking::run(removal.durability(reshard::Durability::Process))?;
        return Ok(());
    }
    let step = step.parse()?;
    let overwrite = args.next().as_deref() == Some("overwrite");
    let form: reshard_crash::Form = args.next().context("FORM is missing")?.parse()?;
    reshard_crash::save(&dir, step, overwrite, form)
}
