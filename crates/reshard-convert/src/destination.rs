//! Checks of the destination: how many files it may get, and that a conversion does not overwrite its source.

use crate::{Asked, Convert, ConvertError, Over, Result};
use reshard::{
    Stores,
    storage::{Depth, Link, LocalStore, PlaceKind, StorageError, Store},
    strategy::StrategyError,
};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The maximal number of data files of one conversion, unless [`Convert::max_files`](crate::Convert::max_files) sets another one.
/// A directory should not hold more.
pub const MAX_FILES: u64 = 65_536;

/// The maximal product of ranks and files per rank, whether a setting or a policy says how many each rank writes. Each of these files
/// is made, however small the source is, and making so many takes seconds.
pub const MAX_FILES_OF_RANKS: u64 = 16_384;

/// Checks that a conversion may write so many files. [`Convert`](crate::Convert) calls this itself. Your program can call
/// it before it opens the source.
///
/// # Errors
/// [`ConvertError::TooManyFiles`].
pub fn check_files(ranks: u32, files_per_rank: u32) -> Result<()> {
    files_of_ranks(ranks, files_per_rank, Asked::ByRanks)
}

/// The same for files that something else asks for.
pub(crate) fn files_of_ranks(ranks: u32, files_per_rank: u32, asked: Asked) -> Result<()> {
    let files = u64::from(ranks) * u64::from(files_per_rank);
    few_enough(files, MAX_FILES_OF_RANKS, asked)
}

pub(crate) fn few_enough(files: u64, max: u64, asked: Asked) -> Result<()> {
    if files <= max {
        Ok(())
    } else {
        Err(ConvertError::TooManyFiles { files, max, asked })
    }
}

/// Refuses an impossible destination before the source is checked, because that check may take long.
pub(crate) async fn check(setup: &Convert<'_>, kind: PlaceKind, stores: &Stores) -> Result<()> {
    let (src, dst) = (setup.source.url(), &*setup.dst);
    let source = &**setup.source.store();
    // If the place can't be opened, the save will report that.
    let Ok(place) = stores.open(dst) else {
        return Ok(());
    };
    let dst_path = local_path(&place.url());
    if let Some(over) = over(source, &*place, dst_path.as_deref()) {
        return Err(ConvertError::Over {
            dst: dst.into(),
            over,
            src: src.into(),
        });
    }
    if let Some(dst_path) = &dst_path
        && let Some(file) = linked(source, dst_path).await?
    {
        return Err(ConvertError::Linked {
            dst: dst.into(),
            file,
            src: src.into(),
        });
    }
    if setup.overwrite {
        return Ok(());
    }
    let taken = match &dst_path {
        Some(path) => match kind {
            PlaceKind::File => path.exists(),
            PlaceKind::Folder => fs::read_dir(path).is_ok_and(|mut found| found.next().is_some()),
            // The store knows which files have the prefix.
            _ => false,
        },
        None => is_taken(&place, kind).await?,
    };
    if taken {
        let exists = StorageError::Exists { path: dst.into() };
        return Err(ConvertError::Destination(StrategyError::from(exists)));
    }
    Ok(())
}

/// Whether something lies at a place in the network, by one listing. What killed attempts left is in nobody's way.
async fn is_taken(place: &Arc<dyn Store>, kind: PlaceKind) -> Result<bool> {
    let part = match kind {
        PlaceKind::Folder => Some(Arc::clone(place)),
        kind => place.of_kind(kind),
    };
    let Some(part) = part.filter(|_| place.hints().requests_are_dear()) else {
        return Ok(false);
    };
    match part.list(None, Depth::One).await {
        Ok(top) => Ok(!top.is_free()),
        // The save reports what it can't write to.
        Err(StorageError::Unsupported { .. } | StorageError::NotFound { .. }) => Ok(false),
        Err(e) => Err(ConvertError::Destination(e.into())),
    }
}

/// The path of a URL in the local file system, if it has one.
fn local_path(url: &str) -> Option<PathBuf> {
    let store = url
        .starts_with("file://")
        .then(|| LocalStore::open(url).ok())??;
    Some(store.path().to_path_buf())
}

fn over(source: &dyn Store, place: &dyn Store, dst: Option<&Path>) -> Option<Over> {
    let (src, url) = (source.url(), place.url());
    if let (Some(src), Some(dst)) = (local_path(&src), dst) {
        let inside = || {
            let inside = holds(&src, &existing(dst.to_path_buf()));
            inside.map(|_| Over::Inside)
        };
        return holds(dst, &src).or_else(inside);
    }
    let [src, dst] = [&src, &url].map(|url| url.trim_end_matches('/'));
    let is_in = |inner: &str, outer: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    match () {
        () if src == dst => Some(Over::Source),
        () if is_in(src, dst) => Some(Over::Above),
        () if is_in(dst, src) => Some(Over::Inside),
        () => None,
    }
}

/// The nearest directory above a path, or the path itself, that exists. A link to nothing is followed.
fn existing(mut path: PathBuf) -> PathBuf {
    let mut links = 0;
    while fs::metadata(&path).is_err() {
        let above = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        path = match fs::read_link(&path) {
            // No system follows more.
            Ok(target) if links < 40 => {
                links += 1;
                above.join(target)
            }
            _ => above,
        };
        if path.as_os_str().is_empty() {
            break;
        }
    }
    path
}

/// The first file of the source that is a link to what a directory holds.
async fn linked(source: &dyn Store, dst: &Path) -> Result<Option<String>> {
    let Some(src) = local_path(&source.url()).filter(|_| dst.exists()) else {
        return Ok(None);
    };
    let links = source
        .links()
        .await
        .map_err(|e| ConvertError::Destination(e.into()))?;
    let into = |link: &Link| link.followed && leads_into(dst, src.join(link.name.as_str()));
    Ok(links
        .into_iter()
        .find(into)
        .map(|link| link.name.to_string()))
}

/// Whether a link leads to what a directory holds, at its end or by another link on the way.
fn leads_into(dst: &Path, link: PathBuf) -> bool {
    let mut at = link;
    // No system follows more.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&at) else {
            return false;
        };
        at = at.parent().unwrap_or(Path::new("/")).join(target);
        if at.parent().is_some_and(|above| holds(dst, above).is_some()) {
            return true;
        }
    }
    false
}

/// Whether a directory is the same as another one or contains it, whatever their names are.
fn holds(dst: &Path, src: &Path) -> Option<Over> {
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let (dst, src) = (id(dst)?, fs::canonicalize(src).ok()?);
    let at = src.ancestors().position(|a| id(a) == Some(dst))?;
    Some(if at == 0 { Over::Source } else { Over::Above })
}
