//! Where a conversion may be written: never over what is being read.

use crate::{
    args::Convert,
    error::{CliError, Result},
    program::{Program, local_path},
};
use reshard::{storage::StorageError, strategy::StrategyError};
use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Refuses what can't be done before the source is read, which may take long.
pub(super) fn check(program: &Program, args: &Convert) -> Result<()> {
    let (src, dst) = (local_path(program, &args.src), local_path(program, &args.dst));
    if let (Some(src), Some(dst)) = (src, &dst)
        && let Some(what) = holds(dst, &src)
    {
        let what = format!("{} {what} {}", args.dst, args.src);
        return Err(CliError::told(
            what,
            "convert to a new place beside the source, verify it, then rename it to where you want it",
        ));
    }
    let taken = dst.is_some_and(|d| fs::read_dir(d).is_ok_and(|mut found| found.next().is_some()));
    if taken && !args.overwrite {
        return Err(StrategyError::from(StorageError::Exists { path: args.dst.clone() }).into());
    }
    Ok(())
}

/// Whether a directory is another one or lies above it, by whatever name.
fn holds(dst: &Path, src: &Path) -> Option<&'static str> {
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let (dst, src) = (id(dst)?, fs::canonicalize(src).ok()?);
    let at = src.ancestors().position(|a| id(a) == Some(dst))?;
    Some(if at == 0 { "is the source itself:" } else { "is a directory in which the source lies:" })
}
