//! What becomes of a replaced version: what others had put there goes over to the new one, its own files are removed.

use super::{
    dir::{self, names, open, rmdir, unlink},
    site::Site,
};
use crate::{Durability, Name, Result, StorageError, failpoint};
use rustix::{
    fs::{AtFlags, FileType, Mode, RawMode, RenameFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, OsStr},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// Moves all that is not among `files` from the old version, at `site.old`, to the new one, at the place; then removes `files`.
/// In this order: while something of others is with the old version, that is whole, and can be told from it.
pub(super) fn retire(site: &Site, files: &[Name], durability: Durability) -> Result<()> {
    let old = match open(&site.up, &site.old_name) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(|e| StorageError::io("open", &site.old, e))?,
    };
    let new = open(&site.up, &site.name).map_err(|e| StorageError::io("open", &site.place, e))?;
    let mut carry =
        Carry { files: files.iter().map(Name::as_str).collect(), moved: false, stuck: Vec::new() };
    carry.all(&old, &new, Path::new(""));
    if carry.moved && durability == Durability::Machine {
        dir::sync(&new, &site.place)?;
    }
    failpoint::hit("commit.carried");
    let removed = files.iter().try_for_each(|name| unlink(&old, name)).and_then(|()| {
        let parents = files.iter().flat_map(|n| Path::new(n.as_str()).ancestors().skip(1));
        // Longer ones first: a directory is removed after those in it.
        let parents: BTreeSet<&Path> = parents.filter(|p| !p.as_os_str().is_empty()).collect();
        parents.into_iter().rev().try_for_each(|p| rmdir(&old, p))
    });
    if let Some((first, e)) = carry.stuck.first() {
        return Err(StorageError::NotCarried {
            path: site.place.display().to_string(),
            kept: site.old.display().to_string(),
            count: carry.stuck.len(),
            first: first.display().to_string(),
            source: (*e).into(),
        });
    }
    removed
        .and_then(|()| rmdir(&site.up, &site.old_name))
        .map_err(|e| StorageError::io("remove", &site.old, e))
}

/// Moves what is of others, link for link: no link is followed.
struct Carry<'a> {
    files: BTreeSet<&'a str>,
    moved: bool,
    stuck: Vec<(PathBuf, Errno)>,
}

impl Carry<'_> {
    /// Everything in one directory, which lies at `path` in the old version.
    fn all(&mut self, old: &OwnedFd, new: &OwnedFd, path: &Path) {
        match names(old) {
            Ok(names) => names.iter().for_each(|name| {
                let path = path.join(OsStr::from_bytes(name.to_bytes()));
                if let Err(e) = self.one(old, new, name, &path) {
                    self.stuck.push((path, e));
                }
            }),
            Err(e) => self.stuck.push((path.into(), e)),
        }
    }

    fn one(&mut self, old: &OwnedFd, new: &OwnedFd, name: &CStr, path: &Path) -> Result<(), Errno> {
        let stat = match rustix::fs::statat(old, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let text = path.to_str();
        if !is_dir && text.is_some_and(|t| self.files.contains(t)) {
            return Ok(());
        }
        if is_dir && text.is_some_and(|t| self.holds_files(t)) {
            return self.merge(old, new, name, path, stat.st_mode);
        }
        match rustix::fs::renameat_with(old, name, new, name, RenameFlags::NOREPLACE) {
            Ok(()) => {
                self.moved = true;
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(Errno::EXIST) if is_dir => self.merge(old, new, name, path, stat.st_mode),
            Err(e) => Err(e),
        }
    }

    /// Whether some of the old version's own files lie in a directory.
    fn holds_files(&self, dir: &str) -> bool {
        let first = format!("{dir}/");
        self.files.range(&*first..).next().is_some_and(|f| f.starts_with(&first))
    }

    /// A directory of which a part is moved.
    fn merge(
        &mut self,
        old: &OwnedFd,
        new: &OwnedFd,
        name: &CStr,
        path: &Path,
        mode: RawMode,
    ) -> Result<(), Errno> {
        let from = open(old, name)?;
        match rustix::fs::mkdirat(new, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        self.all(&from, &open(new, name)?, path);
        let name = Path::new(OsStr::from_bytes(name.to_bytes()));
        rmdir(old, name)?;
        rmdir(new, name)
    }
}
