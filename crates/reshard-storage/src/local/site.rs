//! Where a version is built and put: a place, the directory that names it, and hidden siblings of the place.

use super::url::url;
use crate::{
    Leftover, Result, StorageError,
    trail::{Trace, note},
};
use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

const MOUNT: &str =
    "it is the root of a mounted file system, which can't be renamed; choose a directory inside of it";

/// A place, and one attempt to fill it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) place: PathBuf,
    /// The directory that names the place.
    pub(super) parent: PathBuf,
    /// Where the new version is built: holds nothing but what this attempt writes.
    pub(super) built: PathBuf,
    /// Where the new version waits for the exchange with the old one, and the old one lies after it.
    pub(super) old: PathBuf,
}

/// What a place really is: symbolic links to it are followed, also to a directory that does not exist yet, so that the
/// link stays and what it points to is replaced.
fn resolve(place: &Path) -> Result<(PathBuf, PathBuf, OsString)> {
    let unsupported = |why: &str| StorageError::Unsupported {
        what: format!("writing a checkpoint at {}", place.display()),
        why: why.into(),
    };
    let mut at = place.to_path_buf();
    for _ in 0..40 {
        match fs::read_link(&at) {
            Ok(target) => {
                let base = at.parent().unwrap_or(Path::new("/"));
                at = base.join(target);
            }
            Err(_) => {
                // `..` and the like are spelled out where that is possible.
                let at = fs::canonicalize(&at).unwrap_or(at);
                return match (at.parent(), at.file_name()) {
                    (Some(parent), Some(name)) => Ok((at.clone(), parent.to_path_buf(), name.to_owned())),
                    (None, _) => Err(unsupported("it is the root directory")),
                    _ => Err(unsupported("its last part is `..`")),
                };
            }
        }
    }
    Err(unsupported("too many symbolic links"))
}

fn is_attempt(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn check_attempt(attempt: &str) -> Result<()> {
    if is_attempt(attempt) && attempt.len() <= 64 {
        return Ok(());
    }
    let what = format!("{attempt:?} can't be an attempt's id: 1 to 64 letters, digits, `-` and `_` can");
    Err(StorageError::invalid(what))
}

/// The hidden sibling of a place in which an attempt works.
fn sibling(name: &OsStr, attempt: &str, kind: &str) -> OsString {
    let mut out = OsString::from(".");
    out.push(name);
    out.push(format!(".{attempt}.{kind}"));
    out
}

/// Which attempt a sibling is of, and its kind.
fn attempt_of<'f>(found: &'f OsStr, name: &OsStr) -> Option<(&'f str, &'f str)> {
    let rest = found.as_bytes().strip_prefix(b".")?.strip_prefix(name.as_bytes())?.strip_prefix(b".")?;
    str::from_utf8(rest).ok()?.rsplit_once('.').filter(|(attempt, _)| is_attempt(attempt))
}

/// What attempts at this place have left beside it.
pub(super) fn leftovers(place: &Path) -> Result<Vec<Leftover>> {
    let (_, parent, name) = resolve(place)?;
    let mut out = Vec::new();
    let fail = |e| StorageError::io("list", &parent, e);
    let entries = match fs::read_dir(&parent) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(out),
        other => other.map_err(fail)?,
    };
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let found = entry.file_name();
        let Some((attempt, kind)) = attempt_of(&found, &name) else { continue };
        // A link of such a name is not ours.
        if !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let path = entry.path();
        let (bytes, modified) = extent_of(&path);
        // Whatever it is called, it can be opened by what is said here.
        let text = path.to_str().map_or_else(|| url(&path), str::to_owned);
        let left = Leftover::new(attempt, text).holding(bytes, modified);
        match kind {
            "tmp" => out.push(left),
            "old" => out.push(left.replaced()),
            _ => {}
        }
    }
    out.sort();
    Ok(out)
}

/// Bytes of all files below a directory, and when one of them last changed. Somebody may be removing them.
fn extent_of(dir: &Path) -> (u64, Option<SystemTime>) {
    let (mut bytes, mut last) = (0u64, None);
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(m) if m.is_dir() => waiting.push(entry.path()),
                Ok(m) => {
                    bytes = bytes.saturating_add(m.len());
                    last = last.max(m.modified().ok());
                }
                Err(_) => {}
            }
        }
    }
    // Removing files changes their directory: only where there are none it is asked.
    (bytes, last.or_else(|| fs::metadata(dir).ok()?.modified().ok()))
}

/// Exchanges two directories in one step.
fn exchange(a: &Path, b: &Path) -> Result<(), Errno> {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)
}

/// Whether a directory is the root of a mounted file system. Bind mounts have the device of what is around them; the kernel
/// knows them all the same.
fn is_mount(path: &Path, parent: &Path) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
        if let Ok(s) = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
            && s.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        {
            return Ok(s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
        }
    }
    Ok(fs::symlink_metadata(path)?.dev() != fs::symlink_metadata(parent)?.dev())
}

impl Site {
    pub(super) fn new(place: &Path, attempt: &str) -> Result<Self> {
        check_attempt(attempt)?;
        let (place, parent, name) = resolve(place)?;
        let [built, old] = ["tmp", "old"].map(|kind| parent.join(sibling(&name, attempt, kind)));
        Ok(Self { place, parent, built, old })
    }

    pub(super) fn exists(&self) -> StorageError {
        StorageError::Exists { path: self.place.display().to_string() }
    }

    pub(super) fn unsupported(&self, why: impl Into<String>) -> StorageError {
        let what = format!("writing a checkpoint at {}", self.place.display());
        StorageError::Unsupported { what, why: why.into() }
    }

    /// That the place, which exists, can be renamed.
    pub(super) fn check_no_mount(&self) -> Result<()> {
        match is_mount(&self.place, &self.parent) {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.unsupported(MOUNT)),
            Err(e) => Err(StorageError::io("look at", &self.place, e)),
        }
    }

    /// That the place, which holds something, is one to be replaced, and that what is not the checkpoint's can be moved over
    /// to the new one. What can't be undone is refused before anything is written.
    pub(super) fn check_replaceable(&self) -> Result<()> {
        let home = std::env::home_dir().and_then(|h| fs::canonicalize(h).ok());
        if home.is_some_and(|h| h.starts_with(&self.place)) {
            return Err(self.unsupported(
                "your home directory is it or lies in it, and nothing that holds more than a checkpoint is replaced",
            ));
        }
        let fail = |e| StorageError::io("list", &self.place, e);
        for entry in fs::read_dir(&self.place).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let (path, name) = (entry.path(), entry.file_name().display().to_string());
            if is_mount(&path, &self.place).unwrap_or(false) {
                return Err(self.unsupported(format!(
                    "{name} in it is the root of a mounted file system, which can't be moved to the new version; unmount it, \
                     or save to a new place"
                )));
            }
            // A directory that gets another parent is written to.
            if rustix::fs::access(&path, rustix::fs::Access::WRITE_OK) == Err(Errno::ACCESS) {
                return Err(self.unsupported(format!(
                    "you have no right to move the directory {name} in it to the new version; get it, move {name} away, or \
                     save to a new place"
                )));
            }
        }
        Ok(())
    }

    /// Makes the directory where the version is built, unless another rank has.
    pub(super) fn make(&self) -> Result<()> {
        match fs::create_dir(&self.built) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(|e| StorageError::io("create", &self.built, e)),
        }
    }

    /// Finds out whether the file system can exchange two directories, before much is written in vain.
    pub(super) fn probe_exchange(&self) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let [a, b] = ["a", "b"].map(|s| self.built.join(format!(".probe-{}-{n}-{s}", std::process::id())));
        let io = |e| StorageError::io("create", &self.built, e);
        fs::create_dir(&a).map_err(io)?;
        fs::create_dir(&b).map_err(io)?;
        let outcome = exchange(&a, &b);
        for d in [&a, &b] {
            fs::remove_dir(d).map_err(|e| StorageError::io("remove", d, e))?;
        }
        outcome.map_err(|e| self.not_exchanged(e))
    }

    fn not_exchanged(&self, e: Errno) -> StorageError {
        match e {
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => StorageError::Unsupported {
                what: format!("replacing {}", self.place.display()),
                why: "its file system can't exchange two directories in one step, so a crash could leave neither the old \
                      nor the new checkpoint; save to a new place and remove the old one yourself"
                    .into(),
            },
            Errno::BUSY | Errno::XDEV => self.unsupported(MOUNT),
            e => StorageError::io("exchange with the new version", &self.place, e),
        }
    }

    /// Puts the new version where nothing lies, or an empty directory. `false` when something lies there.
    pub(super) fn put(&self) -> Result<bool> {
        match rustix::fs::rename(&self.built, &self.place) {
            Ok(()) => {
                note(|| Trace::Renamed(self.built.clone(), self.place.clone()));
                Ok(true)
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(Errno::BUSY | Errno::XDEV) => Err(self.unsupported(MOUNT)),
            Err(Errno::NOTDIR) => Err(self.unsupported("there is a file, not a directory")),
            Err(e) => Err(StorageError::io("rename the new version to", &self.place, e)),
        }
    }

    /// Gives the new version the name that the old one is to get: what bears it may hold files of others, and is never
    /// removed as a whole.
    pub(super) fn ready(&self) -> Result<()> {
        rustix::fs::rename(&self.built, &self.old).map_err(|e| StorageError::io("rename", &self.built, e))
    }

    /// Puts the new version, which is [`ready`](Self::ready), where the old one lies.
    pub(super) fn replace(&self) -> Result<()> {
        exchange(&self.old, &self.place).map_err(|e| {
            // As it was before, so that it is removed with what the attempt has written.
            if let Err(e) = rustix::fs::rename(&self.old, &self.built) {
                tracing::warn!(path = %self.old.display(), error = %e, "a version that was not published is left over");
            }
            self.not_exchanged(e)
        })?;
        note(|| Trace::Renamed(self.old.clone(), self.place.clone()));
        Ok(())
    }
}
