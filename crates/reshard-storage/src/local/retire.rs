//! What becomes of a replaced version: what others had put there goes over to the new one, its own files are removed.

use super::{
    dir::{self, Identity, names, open, rmdir, unlink},
    mount::is_mount,
    sibling::Aside,
    version::NewVersion,
};
use crate::shown_path;
use crate::{Durability, Name, Result, StorageError, failpoint, local::during::During as _};
use rustix::{
    fs::{FileType, Mode, RawMode, RenameFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, OsStr},
    mem,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    vec,
};

/// How far somebody else has come with an old version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retired {
    /// Nobody has begun.
    Not,
    /// Whoever began may have been killed when some of its files were removed already.
    InPart,
}

/// Moves all that is not among `files` from the old version, at `aside`, to the new one, at the place; then removes `files` in
/// their order. While something of others is with the old version, that is whole, and can be told from it.
///
/// Both are the directories that are open, whatever their names mean by now.
pub(super) fn retire(
    version: &NewVersion,
    aside: &Aside,
    (old, new): (&OwnedFd, &OwnedFd),
    files: &[Name],
    durability: Durability,
    before: Retired,
) -> Result<()> {
    let mut carry = Carry {
        files: files.iter().map(Name::as_str).collect(),
        longest: files
            .iter()
            .map(|f| f.as_str().len())
            .max()
            .unwrap_or_default(),
        before,
        moved: false,
        stuck: Vec::new(),
    };
    carry.all(old, new);
    // What is mounted there is somebody else's, whatever it is called: nothing is removed around it.
    let mounted = carry.stuck.iter().any(|(_, e)| *e == Errno::BUSY);
    if carry.moved && durability == Durability::Machine {
        dir::sync(new, &version.place)?;
    }
    failpoint::hit("commit.carried");
    let files = if mounted { &[] } else { files };
    let removed = remove_all(old, files);
    if let Some((first, e)) = carry.stuck.first() {
        return Err(StorageError::NotCarried {
            path: shown_path(&version.place),
            kept: shown_path(&aside.path),
            count: carry.stuck.len(),
            first: shown_path(first),
            source: (*e).into(),
        });
    }
    removed
        .and_then(|()| dir::bears(&version.up, &aside.name, old))
        .and_then(|same| match same {
            true => rmdir(&version.up, &aside.name),
            false => Ok(()),
        })
        .during("remove", &aside.path)
}

/// Removes files in their order, and the directories that become empty. A process that is killed meanwhile leaves the last of the
/// files, and at most one chain of empty directories.
pub(super) fn remove_all(old: &OwnedFd, files: &[Name]) -> Result<(), Errno> {
    for (at, name) in files.iter().enumerate() {
        failpoint::hit("commit.removing");
        unlink(old, name)?;
        let here = name.folder();
        if here != files.get(at + 1).map_or("", Name::folder) {
            failpoint::hit("commit.removing");
            remove_empty(old, Path::new(here))?;
        }
    }
    Ok(())
}

/// Removes a directory if it is empty, and then those above it.
fn remove_empty(old: &OwnedFd, folder: &Path) -> Result<(), Errno> {
    let above = folder.ancestors().filter(|p| !p.as_os_str().is_empty());
    above.into_iter().try_for_each(|p| rmdir(old, p))
}

/// So many directories of a chain are looked at. No checkpoint has deeper ones.
const DEEPEST_CHAIN: usize = 256;

/// A directory with nothing in it but one directory, and so on down to an empty one: all of them, from the outermost on. This is
/// what is left of directories whose files are removed. `None` if there is something else in it.
fn empty_chain(old: &OwnedFd, name: &CStr) -> Result<Option<Vec<PathBuf>>, Errno> {
    let mut path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    let (mut here, mut chain) = (open(old, name)?, vec![path.clone()]);
    while chain.len() <= DEEPEST_CHAIN {
        let within = names(&here)?;
        let [only] = &within[..] else {
            return Ok(within.is_empty().then_some(chain));
        };
        here = match open(&here, only.as_c_str()) {
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(None),
            other => other?,
        };
        path.push(OsStr::from_bytes(only.to_bytes()));
        chain.push(path.clone());
    }
    Ok(None)
}

/// So many pairs of directories stay open above the one that is at work. What lies deeper is found again by `..`, so that
/// descriptors don't grow with the depth.
const OPEN: usize = 16;

/// A directory of the old version, and the one of the new version that it is merged into.
struct Pair {
    old: OwnedFd,
    new: OwnedFd,
}

impl Pair {
    fn identities(&self) -> Result<[Identity; 2], Errno> {
        Ok([Identity::of(&self.old)?, Identity::of(&self.new)?])
    }

    /// The pair that it lies in, which was this one.
    fn above(&self, known: [Identity; 2]) -> Result<Self, Errno> {
        let above = Self {
            old: open(&self.old, c"..")?,
            new: open(&self.new, c"..")?,
        };
        // Somebody may have moved one of them meanwhile.
        if above.identities()? == known {
            Ok(above)
        } else {
            Err(Errno::STALE)
        }
    }
}

/// A pair that is at work, with the names that are still to be looked at.
struct Level {
    pair: Pair,
    names: vec::IntoIter<CString>,
}

impl Level {
    fn of(pair: Pair) -> Result<Self, Errno> {
        let names = names(&pair.old)?.into_iter();
        Ok(Self { pair, names })
    }
}

/// A pair that waits for one in it.
struct Waiting {
    /// `None` when it was closed.
    pair: Option<Pair>,
    known: [Identity; 2],
    names: vec::IntoIter<CString>,
}

/// Moves what is of others, link for link: no link is followed.
struct Carry<'a> {
    files: BTreeSet<&'a str>,
    /// Bytes of the longest name of them.
    longest: usize,
    before: Retired,
    moved: bool,
    stuck: Vec<(PathBuf, Errno)>,
}

impl Carry<'_> {
    fn all(&mut self, old: &OwnedFd, new: &OwnedFd) {
        let dup = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 0);
        let top = dup(old).and_then(|old| {
            Level::of(Pair {
                old,
                new: dup(new)?,
            })
        });
        let mut here = match top {
            Ok(level) => level,
            Err(e) => return self.stuck.push((PathBuf::new(), e)),
        };
        // Where `here` lies in the old version.
        let mut path = PathBuf::new();
        let mut above: Vec<Waiting> = Vec::new();
        loop {
            if let Some(name) = here.names.next() {
                path.push(OsStr::from_bytes(name.to_bytes()));
                match self
                    .one(&here.pair, &name, &path)
                    .and_then(|found| Self::descend(found, &here.pair))
                {
                    Ok(None) => {}
                    Ok(Some((below, known))) => {
                        let Level { pair, names } = mem::replace(&mut here, below);
                        let pair = (above.len() < OPEN).then_some(pair);
                        above.push(Waiting { pair, known, names });
                        continue;
                    }
                    Err(e) => self.stuck.push((path.clone(), e)),
                }
                path.pop();
                continue;
            }
            let Some(Waiting { pair, known, names }) = above.pop() else {
                return;
            };
            match pair.map_or_else(|| here.pair.above(known), Ok) {
                Ok(pair) => {
                    let done = path.file_name().map_or(Ok(()), |name| {
                        rmdir(&pair.old, name)?;
                        rmdir(&pair.new, name)
                    });
                    if let Err(e) = done {
                        self.stuck.push((path.clone(), e));
                    }
                    path.pop();
                    here = Level { pair, names };
                }
                // The way back is lost down to those that are open; what lies between stays where it is.
                Err(e) => {
                    path.pop();
                    self.stuck.push((path.clone(), e));
                    above.truncate(OPEN);
                    path = path.iter().take(OPEN).collect();
                    here.names = Vec::new().into_iter();
                }
            }
        }
    }

    fn descend(found: Option<Pair>, here: &Pair) -> Result<Option<(Level, [Identity; 2])>, Errno> {
        found
            .map(|pair| Ok((Level::of(pair)?, here.identities()?)))
            .transpose()
    }

    /// Moves one of a pair's names. Returns what is to be merged instead, a part of it at a time.
    fn one(&mut self, pair: &Pair, name: &CStr, path: &Path) -> Result<Option<Pair>, Errno> {
        let Pair { old, new } = pair;
        let Some(stat) = dir::stat_of(old, name)? else {
            return Ok(None);
        };
        if is_mount(old, name)? {
            return Err(Errno::BUSY);
        }
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        // In a deep nest most paths are longer than any of the files.
        let text = if path.as_os_str().len() <= self.longest {
            path.to_str()
        } else {
            None
        };
        if !is_dir && text.is_some_and(|t| self.files.contains(t)) {
            return Ok(None);
        }
        if is_dir && text.is_some_and(|t| self.holds_files(t)) {
            return merged(pair, name, stat.st_mode).map(Some);
        }
        if is_dir
            && self.before == Retired::InPart
            && let Some(chain) = empty_chain(old, name)?
        {
            // Its files are gone. Of an empty directory nobody misses anything.
            chain.iter().rev().try_for_each(|p| rmdir(old, p))?;
            return Ok(None);
        }
        match rustix::fs::renameat_with(old, name, new, name, RenameFlags::NOREPLACE) {
            Ok(()) => {
                self.moved = true;
                Ok(None)
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::EXIST) if is_dir => merged(pair, name, stat.st_mode).map(Some),
            Err(e) => Err(e),
        }
    }

    /// Whether some of the old version's own files lie in a directory.
    fn holds_files(&self, dir: &str) -> bool {
        let first = format!("{dir}/");
        self.files
            .range(&*first..)
            .next()
            .is_some_and(|f| f.starts_with(&first))
    }
}

/// A directory of which a part is moved, and its like in the new version.
fn merged(pair: &Pair, name: &CStr, mode: RawMode) -> Result<Pair, Errno> {
    let old = open(&pair.old, name)?;
    match rustix::fs::mkdirat(&pair.new, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    Ok(Pair {
        old,
        new: open(&pair.new, name)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{
        dir::tests::{nest, with_few_files},
        version::ResolvedPlace,
    };
    use std::fs;

    fn old_and_new() -> (tempfile::TempDir, NewVersion, Aside, [OwnedFd; 2]) {
        let home = tempfile::tempdir().unwrap();
        let version = ResolvedPlace::find(&home.path().join("x"))
            .unwrap()
            .version("a")
            .unwrap()
            .unwrap();
        let names = ["old", "x"];
        names
            .into_iter()
            .for_each(|d| fs::create_dir(version.place.with_file_name(d)).unwrap());
        let [old, new] = names.map(|d| open(&version.up, d).unwrap());
        let aside = version.aside(Some(&new), &old).unwrap();
        fs::rename(version.place.with_file_name("old"), &aside.path).unwrap();
        (home, version, aside, [old, new])
    }

    #[test]
    fn nests_of_any_depth_are_merged() {
        with_few_files(
            "local::retire::tests::nests_of_any_depth_are_merged",
            any_depth,
        );
    }

    fn any_depth() {
        let (_home, version, aside, [old, new]) = old_and_new();
        nest(&version.place, 3_000, "d", "theirs");
        nest(&aside.path, 3_000, "d", "mine");
        fs::write(aside.path.join("d/d/own"), "").unwrap();
        fs::write(aside.path.join("z"), "").unwrap();
        // In the middle, below those that stay open.
        nest(&aside.path.join(["d"; 40].join("/")), 1, "e", "more");
        retire(
            &version,
            &aside,
            (&old, &new),
            &[Name::new("d/d/own").unwrap()],
            Durability::Process,
            Retired::Not,
        )
        .unwrap();
        assert!(!aside.path.exists());
        assert!(version.place.join("z").exists());
        assert!(
            version
                .place
                .join(["d"; 40].join("/"))
                .join("e/more")
                .exists()
        );
        let mut bottom = open(&new, "d").unwrap();
        while let Ok(below) = open(&bottom, "d") {
            bottom = below;
        }
        let mut found = names(&bottom).unwrap();
        found.sort();
        assert_eq!(found, [c"mine", c"theirs"].map(CString::from));
        crate::local::remove::remove_tree(&version.up, &version.name, &version.place).unwrap();
    }

    #[test]
    fn empty_directories_are_carried_unless_a_removal_may_have_made_them() {
        for before in [Retired::Not, Retired::InPart] {
            let (_home, version, aside, [old, new]) = old_and_new();
            for dir in ["own/c", "gone/c/0", "empty", "theirs/deep"] {
                fs::create_dir_all(aside.path.join(dir)).unwrap();
            }
            for file in ["own/c/0", "theirs/deep/file"] {
                fs::write(aside.path.join(file), "").unwrap();
            }
            let files = [Name::new("own/c/0").unwrap()];
            retire(
                &version,
                &aside,
                (&old, &new),
                &files,
                Durability::Process,
                before,
            )
            .unwrap();
            assert!(!aside.path.exists());
            assert!(version.place.join("theirs/deep/file").exists());
            assert!(!version.place.join("own").exists());
            for dir in ["gone", "empty"] {
                let carried = version.place.join(dir).exists();
                assert_eq!(carried, before == Retired::Not, "{dir}");
            }
        }
    }

    #[test]
    fn files_are_removed_in_their_order_and_folders_with_the_last_of_them() {
        let (_home, version, aside, [old, new]) = old_and_new();
        fs::create_dir_all(aside.path.join("b/c")).unwrap();
        let files = ["b/c/1", "b/c/0", "b/d", "a"].map(|f| Name::new(f).unwrap());
        for file in &files {
            fs::write(aside.path.join(file.as_str()), "").unwrap();
        }
        // What can't be removed as a file ends the removal, so that what follows is still there.
        fs::remove_file(aside.path.join("b/d")).unwrap();
        fs::create_dir(aside.path.join("b/d")).unwrap();
        fs::write(aside.path.join("b/d/theirs"), "").unwrap();
        assert!(remove_all(&old, &files).is_err());
        assert!(!aside.path.join("b/c").exists() && aside.path.join("a").exists());
        drop((version, new));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn no_file_is_removed_through_a_mount_in_the_old_version() {
        use crate::local::mount::tests::{bind, unbind, with_mount};
        with_mount(
            "local::retire::tests::no_file_is_removed_through_a_mount_in_the_old_version",
            |home| {
                let (_home, version, aside, [old, new]) = old_and_new();
                fs::create_dir(aside.path.join("m")).unwrap();
                fs::write(aside.path.join("own"), "").unwrap();
                bind(&home.join("from"), &aside.path.join("m"));
                let files = ["own", "m/gold", "m/sub/gold"].map(|f| Name::new(f).unwrap());
                let e = retire(
                    &version,
                    &aside,
                    (&old, &new),
                    &files,
                    Durability::Process,
                    Retired::Not,
                )
                .unwrap_err();
                assert!(
                    matches!(&e, StorageError::NotCarried { first, count: 1, .. } if first == "m"),
                    "{e}"
                );
                assert!(aside.path.join("own").exists() && !version.place.join("m").exists());
                // The temporary directory is removed through mounts.
                unbind(&aside.path.join("m"));
            },
        );
    }

    #[test]
    fn the_way_back_from_a_directory_that_was_moved_is_not_taken() {
        let (_home, version, aside, [old, new]) = old_and_new();
        nest(&aside.path, 2, "d", "f");
        let top = Pair { old, new };
        nest(&version.place, 2, "d", "g");
        let below = merged(&top, c"d", 0o700).unwrap();
        assert!(below.above(top.identities().unwrap()).is_ok());
        fs::rename(aside.path.join("d"), version.place.join("away")).unwrap();
        assert_eq!(
            below.above(top.identities().unwrap()).err(),
            Some(Errno::STALE)
        );
    }

    #[test]
    fn what_is_of_others_goes_to_the_version_that_was_built_whatever_lies_at_the_place() {
        let (home, version, aside, [old, new]) = old_and_new();
        for file in ["mine", "data"] {
            fs::write(aside.path.join(file), "").unwrap();
        }
        let [park, gone] = ["park", "gone"].map(|d| home.path().join(d));
        fs::rename(&version.place, &park).unwrap();
        fs::create_dir(&version.place).unwrap();
        // Neither is the old one any more what bears its name.
        fs::rename(&aside.path, &gone).unwrap();
        fs::create_dir(&aside.path).unwrap();
        retire(
            &version,
            &aside,
            (&old, &new),
            &[Name::new("data").unwrap()],
            Durability::Process,
            Retired::Not,
        )
        .unwrap();
        assert!(park.join("mine").exists());
        assert!(aside.path.exists() && fs::read_dir(&gone).unwrap().next().is_none());
        assert!(fs::read_dir(&version.place).unwrap().next().is_none());
    }
}
