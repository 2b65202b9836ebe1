//! Checks of the destination: how many files it may get, and that a conversion does not overwrite its source.

use crate::{Asked, ConvertError, Over, Result};
use reshard::{
    Stores,
    storage::{LocalStore, StorageError, Store},
    strategy::StrategyError,
};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The maximal number of files of one conversion. A directory should not hold more.
pub const MAX_FILES: u64 = 65_536;

/// Checks that a conversion may write so many files. [`Convert`](crate::Convert) calls this itself. Your program can call
/// it before it opens the source.
///
/// # Errors
/// [`ConvertError::TooManyFiles`].
pub fn check_files(ranks: u32, files_per_rank: u32) -> Result<()> {
    few_enough(u64::from(ranks) * u64::from(files_per_rank), Asked::ByRanks)
}

pub(crate) fn few_enough(files: u64, asked: Asked) -> Result<()> {
    if files <= MAX_FILES { Ok(()) } else { Err(ConvertError::TooManyFiles { files, asked }) }
}

/// Refuses an impossible destination before the source is checked, because that check may take long.
pub(crate) fn check(
    src: &str,
    source: &dyn Store,
    dst: &str,
    stores: &Stores,
    overwrite: bool,
) -> Result<()> {
    // If the place can't be opened, the save will report that.
    let Ok(place) = stores.open(dst) else { return Ok(()) };
    let dst_path = local_path(&place.url());
    if let Some(over) = over(source, &*place, dst_path.as_deref()) {
        return Err(ConvertError::Over { dst: dst.into(), over, src: src.into() });
    }
    let taken = dst_path.is_some_and(|d| fs::read_dir(d).is_ok_and(|mut found| found.next().is_some()));
    if taken && !overwrite {
        let exists = StorageError::Exists { path: dst.into() };
        return Err(ConvertError::Destination(StrategyError::from(exists)));
    }
    Ok(())
}

/// The path of a URL in the local file system, if it has one.
fn local_path(url: &str) -> Option<PathBuf> {
    let store = url.starts_with("file://").then(|| LocalStore::open(url).ok())??;
    Some(store.path().to_path_buf())
}

fn over(source: &dyn Store, place: &dyn Store, dst: Option<&Path>) -> Option<Over> {
    let url = source.url();
    match (local_path(&url), dst) {
        (Some(src), Some(dst)) => holds(dst, &src),
        _ => (url == place.url()).then_some(Over::Source),
    }
}

/// Whether a directory is the same as another one or contains it, whatever their names are.
fn holds(dst: &Path, src: &Path) -> Option<Over> {
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let (dst, src) = (id(dst)?, fs::canonicalize(src).ok()?);
    let at = src.ancestors().position(|a| id(a) == Some(dst))?;
    Some(if at == 0 { Over::Source } else { Over::Above })
}
