//! What attempts have left beside a place, for those who clear it away.

use super::{
    sibling::{Sibling, State, siblings},
    url::{self, url},
    version::ResolvedPlace,
};
use crate::{Leftover, Result, local::during::During as _};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// What attempts at this place have left beside it.
pub(super) fn leftovers(place: &Path) -> Result<Vec<Leftover>> {
    let resolved = ResolvedPlace::find(place)?;
    let Some(up) = &resolved.up else {
        return Ok(Vec::new());
    };
    let found = siblings(up, &resolved.parent, &resolved.name).during("list", &resolved.parent)?;
    let leftover = |s: Sibling| {
        let path = resolved.parent.join(&s.name);
        let (bytes, modified) = extent_of(&path);
        // Whatever it is called, it can be opened by what is said here.
        let text = path.to_str().map_or_else(|| url(&path), str::to_owned);
        let left = Leftover::new(s.attempt, text).holding(bytes, modified);
        match s.state {
            State::Replaced => left.replaced(),
            State::Removed => left.removed(),
            State::Built | State::Ready => left,
        }
    };
    let mut out: Vec<_> = found.into_iter().map(leftover).collect();
    out.sort();
    Ok(out)
}

fn path_of(left: &Leftover) -> Option<PathBuf> {
    match left.path.strip_prefix("file://") {
        Some(rest) => url::path(rest),
        None => Some(left.path.clone().into()),
    }
}

/// The name that a leftover has beside its place.
pub(super) fn name_of(left: &Leftover) -> Option<OsString> {
    path_of(left)?.file_name().map(OsStr::to_owned)
}

/// It changed when its directory did, too. Nobody knows when, if that can't be told.
pub(super) fn as_its_directory(left: &mut Leftover) {
    let directory = path_of(left).and_then(|path| fs::metadata(path).ok()?.modified().ok());
    left.modified = left.modified.zip(directory).map(|(a, b)| a.max(b));
}

/// Bytes of all files below a directory, and when one of them last changed. If not all of it can be looked at, for example because it
/// is nested too deep for a path, nobody knows when: a save may be writing there.
fn extent_of(dir: &Path) -> (u64, Option<SystemTime>) {
    let (mut bytes, mut last, mut all_seen) = (0u64, None, true);
    // Somebody may be removing it.
    let mut failed = |e: io::Error| all_seen &= e.kind() == io::ErrorKind::NotFound;
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        let entries = fs::read_dir(dir).map_err(&mut failed);
        for entry in entries.into_iter().flatten() {
            match entry.and_then(|e| Ok((e.metadata()?, e))) {
                Ok((m, entry)) if m.is_dir() => waiting.push(entry.path()),
                Ok((m, _)) => {
                    bytes = bytes.saturating_add(m.len());
                    last = last.max(m.modified().ok());
                }
                Err(e) => failed(e),
            }
        }
    }
    // Removing files changes their directory: only where there are none it is asked.
    let last = last.or_else(|| fs::metadata(dir).ok()?.modified().ok());
    (bytes, last.filter(|_| all_seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StorageError;
    use crate::local::{
        dir::{self, tests::nest},
        remove::remove_tree,
    };
    use std::{
        os::unix::fs::{MetadataExt, symlink},
        time::Duration,
    };

    fn number(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn the_age_of_what_lies_too_deep_to_be_looked_at_is_unknown() {
        let home = tempfile::tempdir().unwrap();
        let left = home.path().join(".x.a.tmp");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("old"), "12345").unwrap();
        assert!(extent_of(&left).1.is_some());
        // No path is so long.
        nest(&left, 3_000, "d", "new");
        assert_eq!(extent_of(&left), (5, None));
        let up = dir::hold(home.path()).unwrap();
        remove_tree(&up, OsStr::new(".x.a.tmp"), &left).unwrap();
        assert_eq!(extent_of(&left), (0, None));
    }

    #[test]
    fn leftovers_are_directories_with_their_bytes_and_the_time_of_their_last_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(dir.path()).unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (file, bytes, seconds) in [
            (".x.a.tmp/d/f", 5, 100),
            (".x.a.tmp/d/g", 6, 300),
            (".x.a.tmp/h", 7, 200),
            ("b/f", 1, 50),
        ] {
            let path = home.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, vec![0; bytes]).unwrap();
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(at(seconds))
                .unwrap();
        }
        let old = home.join(format!(".x.b.1-{:x}.old", number(&home.join("b"))));
        fs::rename(home.join("b"), old).unwrap();
        fs::create_dir(home.join(".x.c.tmp")).unwrap();
        fs::File::open(home.join(".x.c.tmp"))
            .unwrap()
            .set_modified(at(70))
            .unwrap();
        // Of none of these.
        fs::create_dir(home.join(".x.d.out")).unwrap();
        fs::write(home.join(".x.e.tmp"), "a file").unwrap();
        symlink(".x.a.tmp", home.join(".x.f.tmp")).unwrap();
        let left = leftovers(&home.join("x")).unwrap();
        let told: Vec<_> = left
            .iter()
            .map(|l| (&*l.attempt, l.replaced, l.bytes, l.modified.unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("a", false, 18, at(300)),
                ("b", true, 1, at(50)),
                ("c", false, 0, at(70))
            ]
        );
        assert_eq!(left[0].path, home.join(".x.a.tmp").to_str().unwrap());
        assert!(leftovers(&home.join("none/x")).unwrap().is_empty());
        let e = leftovers(&home.join(".x.e.tmp/x")).unwrap_err();
        assert!(matches!(&e, StorageError::Io { .. }), "{e}");
    }
}
