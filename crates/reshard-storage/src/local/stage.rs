//! A new version of a directory: built beside it, put into its place by one rename.

use super::{
    retire::retire,
    site::Site,
    write::{self, create, sync_directory, sync_file},
};
use crate::{
    Durability, FileBody, IfExists, Name, Progress, Result, Stage, StorageError, Written, failpoint, pool,
    trail::{Trace, note},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    fs, io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

#[derive(Debug)]
pub(super) struct LocalStage {
    site: Site,
    if_exists: IfExists,
    published: AtomicBool,
}

pub(super) fn remove_leftover(place: &Path, attempt: &str) -> Result<()> {
    remove_tree(&Site::new(place, attempt)?.built)
}

pub(super) fn finish_replacing(place: &Path, attempt: &str, files: &[Name]) -> Result<()> {
    retire(&Site::new(place, attempt)?, files, Durability::Machine)
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
        Ok(()) => {
            note(|| Trace::Made(path.into()));
            path.parent().map_or(Ok(()), sync_directory)
        }
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
        let site = Site::new(place, attempt)?;
        match fs::metadata(&site.place) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => make_directories(&site.parent)?,
            Err(e) => return Err(StorageError::io("look at", &site.place, e)),
            Ok(meta) if !meta.is_dir() => return Err(site.unsupported("there is a file, not a directory")),
            Ok(_) => {
                site.check_no_mount()?;
                if !is_empty(&site.place)? {
                    if if_exists == IfExists::Refuse {
                        return Err(site.exists());
                    }
                    site.check_replaceable()?;
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

impl Site {
    fn write_last(&self, name: &Name, bytes: &[u8], durability: Durability) -> Result<()> {
        let (path, file) = create(&self.built, name, bytes.len() as u64)?;
        file.write_all_at(bytes, 0).map_err(|e| StorageError::io("write", &path, e))?;
        note(|| Trace::Wrote(path.clone()));
        failpoint::hit("publish.record");
        if durability == Durability::Machine {
            sync_file(&file, &path)?;
            write::sync_directories(&self.built, std::slice::from_ref(name))?;
        }
        failpoint::hit("publish.synced");
        Ok(())
    }

    /// Puts the new version into its place. Returns the files of the version that it replaced, if it did.
    fn put_into_place(&self, if_exists: IfExists) -> Result<Option<Arc<[Name]>>> {
        // Who could reach the old directory can reach the new one, and nobody else.
        if let Ok(old) = fs::metadata(&self.place)
            && let Err(e) = fs::set_permissions(&self.built, old.permissions())
        {
            tracing::warn!(path = %self.place.display(), error = %e, "the new directory has other permissions");
        }
        // Renaming a directory succeeds only onto nothing or onto an empty directory, in one step.
        if self.put()? {
            return Ok(None);
        }
        let IfExists::Replace(files) = if_exists else { return Err(self.exists()) };
        self.ready()?;
        failpoint::hit("publish.ready");
        self.replace()?;
        Ok(Some(files))
    }

    fn publish(&self, name: &Name, bytes: &[u8], durability: Durability, if_exists: IfExists) -> Result<()> {
        self.write_last(name, bytes, durability)?;
        let replaced = self.put_into_place(if_exists)?;
        failpoint::hit("publish.renamed");
        let durable = match durability {
            Durability::Machine => sync_directory(&self.parent).map_err(|e| match e {
                StorageError::Io { source, .. } => {
                    StorageError::NotDurable { path: self.place.display().to_string(), source }
                }
                other => other,
            }),
            Durability::Process => Ok(()),
        };
        failpoint::hit("publish.parent_synced");
        let Some(files) = replaced else { return durable };
        // What is of others goes over to the new version, whatever else fails.
        match retire(self, &files, durability) {
            Err(e @ StorageError::NotCarried { .. }) => return Err(e),
            // The new version is there, whatever becomes of the old one, which shows among the leftovers.
            Err(e) => {
                tracing::warn!(path = %self.old.display(), error = %e, "the replaced checkpoint was not removed");
            }
            Ok(()) => failpoint::hit("publish.old_removed"),
        }
        durable
    }
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
        let (site, if_exists) = (self.site.clone(), self.if_exists.clone());
        let outcome = pool::run_one(move || site.publish(&name, &bytes, durability, if_exists)).await;
        if matches!(outcome, Ok(()) | Err(StorageError::NotDurable { .. } | StorageError::NotCarried { .. }))
        {
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
