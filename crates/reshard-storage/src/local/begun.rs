//! What the rank that begins a version tells the ranks that join it: the place, and which directory it builds the version in.

use super::{
    dir::{Dir, Identity},
    url,
    version::{NewVersion, ResolvedPlace},
};
use crate::shown_path;
use crate::{Result, StorageError};
use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Separates the place, a URL, from the directory. In a URL of ours it only stands for itself.
const MARK: char = '#';

/// A directory as ranks of one machine know it: the machine since it was started, and the directory's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Built(String);

impl Built {
    /// `None` where the system does not say which machine it is.
    fn of(fd: &OwnedFd) -> Option<Self> {
        let identity = Identity::of(fd).ok()?;
        Some(Self(format!("{}.{identity:x}", machine()?)))
    }

    /// Whether it may be this directory. On another machine the same directory has other numbers.
    fn may_be(&self, fd: &OwnedFd) -> bool {
        let here = |machine: &String| self.0.split('.').next() == Some(machine);
        !machine().as_ref().is_some_and(here) || Self::of(fd).as_ref() == Some(self)
    }
}

/// What no other machine has, and this one has until it is started again.
fn machine() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = id.trim();
    (!id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
        .then(|| id.to_owned())
}

/// Tells the other ranks where a version is built.
pub(super) fn tell(version: &NewVersion, built: &Dir) -> String {
    let place = url::url(&version.place);
    match Built::of(built.fd()) {
        Some(Built(built)) => format!("{place}{MARK}{built}"),
        None => place,
    }
}

/// Joins the version that another rank has `told` of.
///
/// # Errors
/// [`StorageError::NotJoined`] when it is not there, or another directory has its name.
pub(super) fn join(mine: &Path, attempt: &str, told: Option<&str>) -> Result<(NewVersion, Dir)> {
    let (theirs, built) = told.map_or((None, None), parse);
    // Where the other rank says. Another machine may know that directory by another path: then as the URL says.
    for place in theirs.as_deref().into_iter().chain([mine]) {
        let Some(version) = ResolvedPlace::find(place)?.version(attempt)? else {
            continue;
        };
        match version.join() {
            // What somebody has put there instead is neither written to nor removed.
            Ok(dir) if built.as_ref().is_some_and(|built| !built.may_be(dir.fd())) => {}
            Ok(dir) => return Ok((version, dir)),
            Err(StorageError::NotFound { .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Err(StorageError::NotJoined {
        path: shown_path(mine),
        attempt: attempt.to_owned(),
    })
}

fn parse(told: &str) -> (Option<PathBuf>, Option<Built>) {
    let (place, built) = match told.split_once(MARK) {
        Some((place, built)) => (place, Some(Built(built.to_owned()))),
        None => (told, None),
    };
    (place.strip_prefix("file://").and_then(url::path), built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_directory_of_that_name_is_not_joined() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("a#b");
        let version = ResolvedPlace::find(&place)
            .unwrap()
            .version("one")
            .unwrap()
            .unwrap();
        let built = version.make().unwrap();
        let told = tell(&version, &built);
        let joined = |told: &str| join(&place, "one", Some(told));
        assert!(joined(&told).is_ok());
        // Somebody's directory lies under the hidden name by now.
        fs::rename(&version.built, home.path().join("away")).unwrap();
        fs::create_dir(&version.built).unwrap();
        if machine().is_some() {
            let e = joined(&told).unwrap_err();
            assert!(matches!(e, StorageError::NotJoined { .. }), "{e}");
        }
        // Another machine's numbers say nothing, and a rank need not be told.
        let (url, _) = told.split_once(MARK).unwrap_or((&told, ""));
        assert_eq!(parse(url).0.unwrap().file_name(), place.file_name());
        for told in [url.to_owned(), format!("{url}#0-0.1-2")] {
            assert!(joined(&told).is_ok(), "{told}");
        }
    }
}
