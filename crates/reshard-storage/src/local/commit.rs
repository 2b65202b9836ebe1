//! How a version is committed, and a directory is put into its place by one rename.

use super::{
    dir::{self, Dir, Identity},
    retire::{Retired, retire},
    sibling::Aside,
    version::{NewVersion, ResolvedPlace},
    write::sync_file,
};
use crate::shown_path;
use crate::{
    Durability, Entry, IfExists, Name, Result, StorageError,
    action_log::{Action, note},
    failpoint,
    local::during::During as _,
};
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode};
use std::{
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::Arc,
};

/// A version that was replaced, where it lies now, and its files.
type Replaced = (Arc<OwnedFd>, Aside, Arc<[Name]>);

/// The directory that the version replaces; `None` if the place is empty.
pub(super) fn to_replace(
    resolved: &ResolvedPlace,
    version: &NewVersion,
    if_exists: &IfExists,
) -> Result<Option<OwnedFd>> {
    let place = match version.standing()? {
        Some(place) if !dir::is_empty(&place).during("list", &version.place)? => place,
        _ => return Ok(None),
    };
    let found = Some(Identity::of(&place).during("list", &version.place)?);
    if *if_exists == IfExists::Refuse {
        return Err(version.exists());
    }
    // Nobody knows the files of what came since, also when nothing was there.
    if resolved.known.is_some_and(|known| known != found) {
        return Err(version.changed());
    }
    version.check_replaceable(&place)?;
    Ok(Some(place))
}

/// Writes the commit record of a version.
pub(super) fn write_record(
    built: &Dir,
    name: &Name,
    bytes: &[u8],
    durability: Durability,
) -> Result<()> {
    let (path, file) = built.create(name, bytes.len() as u64)?;
    file.write_all_at(bytes, 0).during("write", &path)?;
    note(|| Action::Wrote(path.clone()));
    failpoint::hit("commit.record");
    if durability == Durability::Machine {
        sync_file(&file, &path)?;
        built.sync_directories(std::slice::from_ref(name))?;
    }
    failpoint::hit("commit.synced");
    Ok(())
}

/// That the directory that is to be renamed is the one that was written to, and that all files lie in it, whole.
pub(super) fn check(version: &NewVersion, built: &Dir, files: &[Entry]) -> Result<()> {
    if !dir::bears(&version.up, &version.built_name, built.fd())
        .during("look at", &version.built)?
    {
        return Err(version.not_built(&version.built));
    }
    for file in files {
        file.check(version.built.display(), built.len(&file.name)?)?;
    }
    Ok(())
}

/// The name of the new version is on the disk after this; that it is not is no failure to commit.
pub(super) fn make_durable(version: &NewVersion, durability: Durability) -> Result<()> {
    match durability {
        Durability::Machine => version.sync_parent().map_err(|e| match e {
            StorageError::Io { source, .. } => StorageError::NotDurable {
                path: shown_path(&version.place),
                source,
            },
            other => other,
        }),
        Durability::Process => Ok(()),
    }
}

impl NewVersion {
    /// Puts the new version into its place. Returns what it replaced, if it did.
    fn put_into_place(
        &self,
        built: &Dir,
        if_exists: IfExists,
        old: Option<Arc<OwnedFd>>,
    ) -> Result<Option<Replaced>> {
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
        let IfExists::Replace(files) = if_exists else {
            return Err(self.exists());
        };
        let Some(old) = old else {
            return Err(self.changed());
        };
        let same = dir::bears(&self.up, &self.name, &old);
        if !same.during("look at", &self.place)? {
            return Err(self.changed());
        }
        let aside = self.aside(Some(built.fd()), &old)?;
        self.ready(&aside)?;
        failpoint::hit("commit.ready");
        self.replace(built.fd(), &old, &aside)?;
        Ok(Some((old, aside, files)))
    }

    pub(super) fn commit(
        &self,
        built: &Dir,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
        (if_exists, old): (IfExists, Option<Arc<OwnedFd>>),
    ) -> Result<()> {
        if let Some((name, bytes)) = record {
            write_record(built, &name, &bytes, durability)?;
        }
        check(self, built, files)?;
        let replaced = self.put_into_place(built, if_exists, old)?;
        failpoint::hit("commit.renamed");
        let durable = make_durable(self, durability);
        failpoint::hit("commit.parent_synced");
        let Some((old, aside, files)) = replaced else {
            return durable;
        };
        // What is of others goes over to the new version, whatever else fails.
        let both = (&*old, built.fd());
        match retire(self, &aside, both, &files, durability, Retired::Not) {
            Err(e @ StorageError::NotCarried { .. }) => return Err(e),
            // The new version is there, whatever becomes of the old one, which shows among the leftovers.
            Err(e) => {
                tracing::warn!(path = %aside.path.display(), error = %e, "the replaced checkpoint was not removed");
            }
            Ok(()) => failpoint::hit("commit.old_removed"),
        }
        durable
    }
}
