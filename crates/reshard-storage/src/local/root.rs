//! The directory of a store: by its path, or held open, so that it stays the same one when another takes its place.

use crate::{Entry, Name, Result, StorageError};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    ffi::CStr,
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

#[derive(Clone, Debug)]
pub(super) struct Root {
    path: PathBuf,
    held: Option<Arc<OwnedFd>>,
}

/// Which files are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Those in the directory itself.
    Top,
    /// Those in subdirectories too.
    All,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, held: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same directory, held open. `None` when there is none.
    pub(super) fn hold(&self) -> Result<Option<Self>> {
        let Some(fd) = self.open()? else { return Ok(None) };
        Ok(Some(Self { path: self.path.clone(), held: Some(Arc::new(fd)) }))
    }

    /// Opens the directory. `None` when there is none.
    fn open(&self) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outcome = match &self.held {
            Some(fd) => rustix::fs::openat(fd, ".", flags, Mode::empty()),
            None => rustix::fs::open(&self.path, flags, Mode::empty()),
        };
        match outcome {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some).map_err(|e| StorageError::io("open", &self.path, e)),
        }
    }

    /// Where a file lies, for messages.
    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.as_str())
    }

    /// Where a file lies, for the system.
    fn locate(&self, name: &Name) -> (BorrowedFd<'_>, PathBuf) {
        match &self.held {
            Some(fd) => (fd.as_fd(), name.as_str().into()),
            None => (CWD, self.path_of(name)),
        }
    }

    pub(super) fn open_file(&self, name: &Name) -> Result<File> {
        let (at, path) = self.locate(name);
        // A named pipe in a hostile checkpoint must not block us.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::openat(at, path, flags, Mode::empty());
        opened.map(File::from).map_err(|e| StorageError::io("open", self.path_of(name), e))
    }

    /// Length of a file; `None` when there is none.
    pub(super) fn len(&self, name: &Name) -> Result<Option<u64>> {
        let (at, path) = self.locate(name);
        match rustix::fs::statat(at, path, AtFlags::empty()) {
            Ok(stat) => Ok(file_len(&stat)),
            Err(e) if is_absent(e) => Ok(None),
            Err(e) => Err(StorageError::io("look at", self.path_of(name), e)),
        }
    }

    /// Removes files; no link is followed on the way.
    pub(super) fn remove(&self, names: &[Name]) -> Result<()> {
        let Some(root) = self.open()? else { return Ok(()) };
        names.iter().try_for_each(|name| {
            unlink(&root, name).map_err(|e| StorageError::io("remove", self.path_of(name), e))
        })
    }

    /// When a file last changed; `None` when there is none.
    pub(super) fn modified(&self, name: &Name) -> Result<Option<SystemTime>> {
        let (at, path) = self.locate(name);
        match rustix::fs::statat(at, path, AtFlags::empty()) {
            Ok(stat) => Ok(file_len(&stat).and_then(|_| changed(&stat))),
            Err(e) if is_absent(e) => Ok(None),
            Err(e) => Err(StorageError::io("look at", self.path_of(name), e)),
        }
    }

    /// Files below, sorted.
    pub(super) fn list(&self, depth: Depth) -> Result<Vec<Entry>> {
        let fail = |e| StorageError::io("list", &self.path, e);
        let Some(root) = self.open()? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        // Directories that are still to be looked at: what stands before the names in them.
        let mut waiting = vec![String::new()];
        while let Some(prefix) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let here = if prefix.is_empty() { "." } else { prefix.trim_end_matches('/') };
            let dir = match rustix::fs::openat(&root, here, flags, Mode::empty()) {
                // It was removed meanwhile.
                Err(e) if is_absent(e) && !prefix.is_empty() => continue,
                other => other.map_err(fail)?,
            };
            for entry in Dir::read_from(&dir).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let Some(file) = utf8(entry.file_name()) else { continue };
                let stat = match rustix::fs::statat(&dir, file, AtFlags::SYMLINK_NOFOLLOW) {
                    // What a link points to counts, unless that is a directory: those may lead in circles.
                    Ok(s) if FileType::from_raw_mode(s.st_mode) == FileType::Symlink => {
                        rustix::fs::statat(&dir, file, AtFlags::empty()).map(|s| (s, false))
                    }
                    other => other.map(|s| (s, true)),
                };
                let (stat, walk) = match stat {
                    Err(e) if is_absent(e) || e == Errno::LOOP => continue,
                    other => other.map_err(fail)?,
                };
                let name = format!("{prefix}{file}");
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    if walk && depth == Depth::All {
                        waiting.push(name + "/");
                    }
                } else if let (Some(bytes), Ok(name)) = (file_len(&stat), Name::new(name)) {
                    out.push(Entry { name, bytes });
                }
            }
        }
        out.sort();
        Ok(out)
    }
}

/// Removes a file below an open directory, if it is there. The directories on the way must be ones, not links to them.
pub(super) fn unlink(root: &OwnedFd, name: &Name) -> Result<(), Errno> {
    let (dirs, file) = name.as_str().rsplit_once('/').map_or((None, name.as_str()), |(d, f)| (Some(d), f));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut held: Option<OwnedFd> = None;
    let mut walk = || {
        for part in dirs.into_iter().flat_map(|d| d.split('/')) {
            held = Some(rustix::fs::openat(held.as_ref().unwrap_or(root), part, flags, Mode::empty())?);
        }
        rustix::fs::unlinkat(held.as_ref().unwrap_or(root), file, AtFlags::empty())
    };
    match walk() {
        Err(e) if is_absent(e) => Ok(()),
        other => other,
    }
}

fn utf8(name: &CStr) -> Option<&str> {
    name.to_str().ok().filter(|n| *n != "." && *n != "..")
}

fn file_len(stat: &Stat) -> Option<u64> {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    u64::try_from(stat.st_size).ok().filter(|_| is_file)
}

/// `None` before 1970.
fn changed(stat: &Stat) -> Option<SystemTime> {
    let (secs, nanos) = (u64::try_from(stat.st_mtime).ok()?, u32::try_from(stat.st_mtime_nsec).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(secs, nanos))
}

/// A part of the path that is a file makes the rest absent.
fn is_absent(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NOTDIR)
}
