//! A new version of a directory: built beside it, put into its place by one rename.

use super::write::{self, create, sync_directory, sync_file};
use crate::{
    Durability, FileBody, IfExists, Leftover, Name, Progress, Result, Stage, StorageError, Written,
    failpoint, pool,
};
use async_trait::async_trait;
use bytes::Bytes;
use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};
use std::{
    fs, io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Where a version is built: a hidden sibling of the place, so that a rename puts it there.
#[derive(Clone, Debug)]
struct Site {
    place: PathBuf,
    /// The directory that names the place.
    parent: PathBuf,
    /// Where the new version is built.
    built: PathBuf,
}

#[derive(Debug)]
pub(super) struct LocalStage {
    site: Site,
    if_exists: IfExists,
    published: AtomicBool,
}

/// What a place really is: symbolic links to it are followed, also to a directory that does not exist yet, so that the
/// link stays and what it points to is replaced.
fn resolve(place: &Path) -> Result<(PathBuf, PathBuf, String)> {
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
                let name = at.file_name().and_then(|n| n.to_str()).map(str::to_owned);
                return match (at.parent(), name) {
                    (Some(parent), Some(name)) => Ok((at.clone(), parent.to_path_buf(), name)),
                    (None, _) => Err(unsupported("it is the root directory")),
                    _ => Err(unsupported("its last part is `..` or is not UTF-8")),
                };
            }
        }
    }
    Err(unsupported("too many symbolic links"))
}

fn built(parent: &Path, name: &str, attempt: &str) -> PathBuf {
    parent.join(format!(".{name}.{attempt}.tmp"))
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
        let attempt = found
            .to_str()
            .and_then(|f| f.strip_prefix('.')?.strip_prefix(&name)?.strip_prefix('.')?.strip_suffix(".tmp"));
        if let Some(attempt) = attempt.filter(|a| is_attempt(a)) {
            out.push(Leftover::new(attempt, entry.path().display().to_string()));
        }
    }
    out.sort();
    Ok(out)
}

pub(super) fn remove_leftover(place: &Path, attempt: &str) -> Result<()> {
    check_attempt(attempt)?;
    let (_, parent, name) = resolve(place)?;
    remove_tree(&built(&parent, &name, attempt))
}

/// Removes a directory with all that is in it. One that is not there is no error.
fn remove_tree(path: &Path) -> Result<()> {
    // Another rank may remove it too, or still be adding a file.
    let mut tries = 0;
    loop {
        match fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(_) if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) => {
                return Ok(());
            }
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty)
                    && tries < 100 =>
            {
                tries += 1;
            }
            Err(e) => return Err(StorageError::io("remove", path, e)),
        }
    }
}

/// Makes a directory and those above it that are missing, for good.
fn make_directories(path: &Path) -> Result<()> {
    let fail = |e| StorageError::io("create", path, e);
    match fs::create_dir(path) {
        Ok(()) => path.parent().map_or(Ok(()), sync_directory),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make_directories(path.parent().ok_or_else(|| fail(e))?)?;
            make_directories(path)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(fail(e)),
    }
}

fn is_empty(path: &Path) -> Result<bool> {
    let fail = |e| StorageError::io("list", path, e);
    Ok(fs::read_dir(path).map_err(fail)?.next().is_none())
}

impl LocalStage {
    pub(super) fn begin(place: &Path, attempt: &str, if_exists: IfExists) -> Result<Self> {
        check_attempt(attempt)?;
        let (place, parent, name) = resolve(place)?;
        let site = Site { built: built(&parent, &name, attempt), place, parent };
        match fs::metadata(&site.place) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => make_directories(&site.parent)?,
            Err(e) => return Err(StorageError::io("look at", &site.place, e)),
            Ok(meta) if !meta.is_dir() => return Err(site.unsupported("there is a file, not a directory")),
            Ok(meta) => {
                let parent =
                    fs::metadata(&site.parent).map_err(|e| StorageError::io("look at", &site.parent, e))?;
                if parent.dev() != meta.dev() {
                    return Err(site.unsupported(MOUNT));
                }
                if !is_empty(&site.place)? {
                    if if_exists == IfExists::Refuse {
                        return Err(site.exists());
                    }
                    site.make()?;
                    site.probe_exchange().inspect_err(|_| {
                        // Another rank may have files there already, and will find the same.
                        if let Err(e) = fs::remove_dir(&site.built) {
                            tracing::debug!(path = %site.built.display(), error = %e, "stage not removed");
                        }
                    })?;
                }
            }
        }
        site.make()?;
        failpoint::hit("stage.created");
        Ok(Self { site, if_exists, published: AtomicBool::new(false) })
    }
}

const MOUNT: &str =
    "it is the root of a mounted file system, which can't be renamed; choose a directory inside of it";

impl Site {
    fn exists(&self) -> StorageError {
        StorageError::Exists { path: self.place.display().to_string() }
    }

    fn unsupported(&self, why: impl Into<String>) -> StorageError {
        let what = format!("writing a checkpoint at {}", self.place.display());
        StorageError::Unsupported { what, why: why.into() }
    }

    /// Makes the directory where the version is built, unless another rank has.
    fn make(&self) -> Result<()> {
        match fs::create_dir(&self.built) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(|e| StorageError::io("create", &self.built, e)),
        }
    }

    /// Finds out whether the file system can exchange two directories, before much is written in vain.
    fn probe_exchange(&self) -> Result<()> {
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

    /// Puts the new version into its place. Says whether an old one lies where the new one was built.
    fn put(&self, if_exists: IfExists) -> Result<bool> {
        // Who could reach the old directory can reach the new one, and nobody else.
        if let Ok(old) = fs::metadata(&self.place)
            && let Err(e) = fs::set_permissions(&self.built, old.permissions())
        {
            tracing::warn!(path = %self.place.display(), error = %e, "the new directory has other permissions");
        }
        // Renaming a directory succeeds only onto nothing or onto an empty directory, in one step.
        match rustix::fs::rename(&self.built, &self.place) {
            Ok(()) => Ok(false),
            Err(Errno::NOTEMPTY | Errno::EXIST) if if_exists == IfExists::Refuse => Err(self.exists()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                exchange(&self.built, &self.place).map_err(|e| self.not_exchanged(e))?;
                Ok(true)
            }
            Err(Errno::BUSY | Errno::XDEV) => Err(self.unsupported(MOUNT)),
            Err(Errno::NOTDIR) => Err(self.unsupported("there is a file, not a directory")),
            Err(e) => Err(StorageError::io("rename the new version to", &self.place, e)),
        }
    }

    fn write_last(&self, name: &Name, bytes: &[u8], durability: Durability) -> Result<()> {
        let (path, file) = create(&self.built, name, bytes.len() as u64)?;
        file.write_all_at(bytes, 0).map_err(|e| StorageError::io("write", &path, e))?;
        failpoint::hit("publish.record");
        if durability == Durability::Machine {
            sync_file(&file, &path)?;
            write::sync_directories(&self.built, std::slice::from_ref(name))?;
        }
        failpoint::hit("publish.synced");
        Ok(())
    }

    fn publish(&self, name: &Name, bytes: &[u8], durability: Durability, if_exists: IfExists) -> Result<()> {
        self.write_last(name, bytes, durability)?;
        let replaced = self.put(if_exists)?;
        failpoint::hit("publish.renamed");
        if durability == Durability::Machine {
            sync_directory(&self.parent).map_err(|e| match e {
                StorageError::Io { source, .. } => {
                    StorageError::NotDurable { path: self.place.display().to_string(), source }
                }
                other => other,
            })?;
        }
        failpoint::hit("publish.parent_synced");
        if replaced {
            // The new version is there, whatever becomes of the old one, which shows among the leftovers.
            if let Err(e) = remove_tree(&self.built) {
                tracing::warn!(path = %self.built.display(), error = %e, "the replaced checkpoint was not removed");
            }
            failpoint::hit("publish.old_removed");
        }
        Ok(())
    }
}

fn exchange(a: &Path, b: &Path) -> Result<(), Errno> {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)
}

#[async_trait]
impl Stage for LocalStage {
    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        write::write(self.site.built.clone(), files, durability, progress).await
    }

    async fn publish(&self, (name, bytes): (Name, Bytes), durability: Durability) -> Result<()> {
        if self.published.load(Ordering::Relaxed) {
            return Err(StorageError::invalid(format!("{} is published already", self.site.place.display())));
        }
        let (site, if_exists) = (self.site.clone(), self.if_exists);
        let outcome = pool::run_one(move || site.publish(&name, &bytes, durability, if_exists)).await;
        if matches!(outcome, Ok(()) | Err(StorageError::NotDurable { .. })) {
            self.published.store(true, Ordering::Relaxed);
        }
        outcome
    }

    async fn abandon(&self) -> Result<()> {
        if self.published.load(Ordering::Relaxed) {
            return Ok(());
        }
        let built = self.site.built.clone();
        pool::run_one(move || remove_tree(&built)).await
    }
}
