//! A new version of a directory: built beside it, put into its place by one rename.

use super::{
    dir::{self, Dir, Identity},
    retire::retire,
    root::{Depth, Root},
    site::{Home, Site},
    url::url,
    write::{self, sync_file},
};
use crate::{
    Durability, Entry, FileBody, IfExists, Name, Progress, Result, StorageError, Transaction, Written,
    failpoint, pool,
    trail::{Trace, note},
};
use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode};
use std::{
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

#[derive(Debug)]
pub(super) struct LocalTransaction {
    site: Site,
    built: Dir,
    if_exists: IfExists,
    /// What is replaced, if something is.
    old: Option<Identity>,
    committed: AtomicBool,
}

pub(super) fn remove_leftover(place: &Path, attempt: &str) -> Result<()> {
    match Home::find(place)?.site(attempt)? {
        Some(site) => dir::remove_tree(&site.up, &site.built_name, &site.built),
        None => Ok(()),
    }
}

pub(super) fn finish_replacing(place: &Path, attempt: &str, files: &[Name]) -> Result<()> {
    match Home::find(place)?.site(attempt)? {
        Some(site) => retire(&site, files, Durability::Machine),
        None => Ok(()),
    }
}

impl LocalTransaction {
    pub(super) fn begin(home: &Home, attempt: &str, if_exists: IfExists) -> Result<Self> {
        let site = home.made_site(attempt)?;
        let fail = |e| StorageError::io("list", &site.place, e);
        let mut old = None;
        if let Some(place) = site.standing()?
            && !dir::is_empty(&place).map_err(fail)?
        {
            old = Some(Identity::of(&place).map_err(fail)?);
            if if_exists == IfExists::Refuse {
                return Err(site.exists());
            }
            // Nobody knows the files of what came since, also when nothing was there.
            if home.known.is_some_and(|known| known != old) {
                return Err(site.changed());
            }
            site.check_replaceable(&place)?;
            let built = site.make()?;
            site.probe_exchange(&built).inspect_err(|_| {
                // Another rank may have files there already, and will find the same.
                if let Err(e) = dir::rmdir(&site.up, &site.built_name) {
                    tracing::debug!(path = %site.built.display(), error = %e, "transaction not removed");
                }
            })?;
        }
        let built = site.make()?;
        failpoint::hit("transaction.created");
        Ok(Self { site, built, if_exists, old, committed: AtomicBool::new(false) })
    }

    /// What another rank has begun. `None` when it is not there.
    pub(super) fn join(place: &Path, attempt: &str) -> Result<Option<Self>> {
        let Some(site) = Home::find(place)?.site(attempt)? else { return Ok(None) };
        match site.join() {
            // Nothing is replaced by a rank that joins: the one that has begun it commits.
            Ok(built) => {
                let (if_exists, committed) = (IfExists::Refuse, AtomicBool::new(false));
                Ok(Some(Self { site, built, if_exists, old: None, committed }))
            }
            Err(StorageError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Site {
    fn write_record(&self, built: &Dir, name: &Name, bytes: &[u8], durability: Durability) -> Result<()> {
        let (path, file) = built.create(name, bytes.len() as u64)?;
        file.write_all_at(bytes, 0).map_err(|e| StorageError::io("write", &path, e))?;
        note(|| Trace::Wrote(path.clone()));
        failpoint::hit("commit.record");
        if durability == Durability::Machine {
            sync_file(&file, &path)?;
            built.sync_directories(std::slice::from_ref(name))?;
        }
        failpoint::hit("commit.synced");
        Ok(())
    }

    /// That the directory that is to be renamed is the one that was written to, and that all files lie in it, whole.
    fn check(&self, built: &Dir, files: &[Entry]) -> Result<()> {
        let fail = |e| StorageError::io("look at", &self.built, e);
        let found = Identity::named(&self.up, &self.built_name).map_err(fail)?;
        if found != Some(Identity::of(built.fd()).map_err(fail)?) {
            let what = "it is not the directory any more that was written to".into();
            return Err(StorageError::Incomplete { path: self.built.display().to_string(), what });
        }
        for file in files {
            file.check(self.built.display(), built.len(&file.name)?)?;
        }
        Ok(())
    }

    /// Puts the new version into its place. Returns the files of the version that it replaced, if it did.
    fn put_into_place(
        &self,
        built: &Dir,
        if_exists: IfExists,
        old: Option<Identity>,
    ) -> Result<Option<Arc<[Name]>>> {
        // Who could reach the old directory can reach the new one, and nobody else.
        if let Ok(old) = rustix::fs::statat(&self.up, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            && let Err(e) = rustix::fs::fchmod(built.fd(), Mode::from_raw_mode(old.st_mode))
        {
            tracing::warn!(path = %self.place.display(), error = %e, "the new directory has other permissions");
        }
        // Renaming a directory succeeds only onto nothing or onto an empty directory, in one step.
        if self.put()? {
            return Ok(None);
        }
        let IfExists::Replace(files) = if_exists else { return Err(self.exists()) };
        let now = Identity::named(&self.up, &self.name);
        if now.map_err(|e| StorageError::io("look at", &self.place, e))? != old {
            return Err(self.changed());
        }
        self.ready()?;
        failpoint::hit("commit.ready");
        self.replace(old)?;
        Ok(Some(files))
    }

    fn commit(
        &self,
        built: &Dir,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
        (if_exists, old): (IfExists, Option<Identity>),
    ) -> Result<()> {
        if let Some((name, bytes)) = record {
            self.write_record(built, &name, &bytes, durability)?;
        }
        self.check(built, files)?;
        let replaced = self.put_into_place(built, if_exists, old)?;
        failpoint::hit("commit.renamed");
        let durable = match durability {
            Durability::Machine => self.sync_parent().map_err(|e| match e {
                StorageError::Io { source, .. } => {
                    StorageError::NotDurable { path: self.place.display().to_string(), source }
                }
                other => other,
            }),
            Durability::Process => Ok(()),
        };
        failpoint::hit("commit.parent_synced");
        let Some(files) = replaced else { return durable };
        // What is of others goes over to the new version, whatever else fails.
        match retire(self, &files, durability) {
            Err(e @ StorageError::NotCarried { .. }) => return Err(e),
            // The new version is there, whatever becomes of the old one, which shows among the leftovers.
            Err(e) => {
                tracing::warn!(path = %self.old.display(), error = %e, "the replaced checkpoint was not removed");
            }
            Ok(()) => failpoint::hit("commit.old_removed"),
        }
        durable
    }
}

#[async_trait]
impl Transaction for LocalTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        write::write(self.built.clone(), files, durability, progress).await
    }

    fn place(&self) -> Option<String> {
        Some(url(&self.site.place))
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        if self.committed.load(Ordering::Relaxed) {
            return Err(StorageError::invalid(format!("{} is committed already", self.site.place.display())));
        }
        let (site, built, old) = (self.site.clone(), self.built.clone(), (self.if_exists.clone(), self.old));
        let files = files.to_vec();
        let work = move || site.commit(&built, record, &files, durability, old);
        let outcome = pool::run_one(work).await;
        if matches!(outcome, Ok(()) | Err(StorageError::NotDurable { .. } | StorageError::NotCarried { .. }))
        {
            self.committed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let (built, path) = (self.built.clone(), self.site.built.clone());
        pool::run_one(move || {
            let fd = built.fd().try_clone().map_err(|e| StorageError::io("open", &path, e))?;
            Root::held(path, Some(fd)).list(Depth::All)
        })
        .await
    }

    async fn rollback(&self) -> Result<()> {
        if self.committed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let site = self.site.clone();
        pool::run_one(move || dir::remove_tree(&site.up, &site.built_name, &site.built)).await
    }
}
