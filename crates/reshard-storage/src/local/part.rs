//! One file, or files with a common prefix, as a place. They lie in a folder of others, which is never replaced.
//!
//! A version is built in a hidden directory, as that of a folder is. One file is committed by one rename or exchange of it.
//! Files with a prefix become visible by the record: the other files are linked into the folder before it.

use super::{
    LocalStore, dir::Identity, files::withdraw, leftover, remove, root::Root, sibling,
    transaction::LocalTransaction, url::url, version::ResolvedPlace,
};
use crate::{
    DryTransaction, IfExists, Leftover, Name, PartStore, PartWriter, PlaceKind, Recovery, Result,
    StorageError, Transaction, local::during::During as _, pool,
};
use async_trait::async_trait;
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Writes one file, files with a prefix, or a folder, by the path that names it.
#[derive(Clone, Debug)]
struct LocalPart {
    path: PathBuf,
    kind: PlaceKind,
    /// What the place really is, once that was found out for good, and what lies there.
    resolved: Option<Arc<ResolvedPlace>>,
}

impl LocalPart {
    /// The place that was resolved before, or else what this path is now.
    fn resolved_place(&self) -> Result<Arc<ResolvedPlace>> {
        match &self.resolved {
            Some(known) => Ok(Arc::clone(known)),
            None => ResolvedPlace::find(&self.path).map(Arc::new),
        }
    }
}

/// Writes the whole folder.
pub(super) fn folder(store: &LocalStore) -> impl PartWriter + use<> {
    LocalPart {
        path: store.path().to_path_buf(),
        kind: PlaceKind::Folder,
        resolved: store.resolved.clone(),
    }
}

/// One file or files with a prefix as a place. `None` when the path ends in no name that a file can have.
pub(super) fn place(path: &Path, kind: PlaceKind) -> Option<PartStore> {
    let (parent, name) = (path.parent()?, Name::new(path.file_name()?.to_str()?).ok()?);
    let folder = Arc::new(LocalStore {
        root: Root::new(parent.to_path_buf()),
        resolved: None,
    });
    let part = match kind {
        PlaceKind::Folder => return None,
        PlaceKind::File => PartStore::file(url(path), folder, name),
        PlaceKind::Prefix => PartStore::prefix(url(path), folder, name.as_str()),
    };
    Some(part.with_writer(LocalPart {
        path: path.to_path_buf(),
        kind,
        resolved: None,
    }))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl PartWriter for LocalPart {
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let (me, attempt) = (self.clone(), attempt.to_owned());
        let begin = move || {
            let resolved = me.resolved_place()?;
            LocalTransaction::begin(&resolved, &attempt, me.kind, if_exists)
        };
        Ok(Arc::new(pool::run_one(begin).await?))
    }

    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        let (me, attempt) = (self.clone(), attempt.to_owned());
        let check = move || {
            let resolved = me.resolved_place()?;
            LocalTransaction::check(&resolved, &attempt, me.kind, &if_exists)
        };
        pool::run_one(check).await?;
        Ok(Arc::new(DryTransaction::in_directory()))
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        let (mine, kind, attempt) = (self.path.clone(), self.kind, attempt.to_owned());
        let told = place.map(str::to_owned);
        let join = move || LocalTransaction::join(&mine, &attempt, kind, told.as_deref());
        Ok(Arc::new(pool::run_one(join).await?))
    }

    async fn pinned(&self, part: &PartStore) -> Result<Option<PartStore>> {
        // What has a prefix is never replaced.
        if self.kind != PlaceKind::File {
            return Ok(None);
        }
        let path = self.path.clone();
        let held = pool::run_one(move || {
            let (Some(parent), Some(name)) =
                (path.parent(), path.file_name().and_then(OsStr::to_str))
            else {
                return Ok(None);
            };
            Root::new(parent.to_path_buf()).hold_file(Name::new(name)?)
        });
        let Some(root) = held.await? else {
            return Ok(None);
        };
        let folder = Arc::new(LocalStore {
            root,
            resolved: None,
        });
        Ok(Some(part.of(folder)))
    }

    async fn resolved(&self, part: &PartStore) -> Result<Option<PartStore>> {
        let place = self.path.clone();
        let resolved = pool::run_one(move || {
            let mut resolved = ResolvedPlace::find(&place)?;
            let found = match &resolved.up {
                Some(up) => Identity::named(up, &resolved.name).during("look at", &place)?,
                None => None,
            };
            resolved.known = Some(found);
            Ok(resolved)
        });
        Ok(Some(part.clone().with_writer(Self {
            resolved: Some(Arc::new(resolved.await?)),
            ..self.clone()
        })))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        Some(self)
    }
}

#[async_trait]
impl Recovery for LocalPart {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let (place, kind) = (self.path.clone(), self.kind);
        let find = move || {
            let mut found = leftover::leftovers(&place)?;
            // The exchange puts the replaced file there, which may be old. Whether the attempt still runs, its directory tells.
            if kind == PlaceKind::File {
                found.iter_mut().for_each(leftover::as_its_directory);
            }
            Ok(found)
        };
        pool::run_one(find).await
    }

    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        let (place, kind, attempt) = (self.path.clone(), self.kind, left.attempt.clone());
        pool::run_one(move || {
            let Some(version) = ResolvedPlace::find(&place)?.version(&attempt)? else {
                return Ok(());
            };
            match version.join() {
                Err(StorageError::NotFound { .. }) => return Ok(()),
                Ok(built) if kind == PlaceKind::Prefix => withdraw(&version, &built)?,
                other => drop(other?),
            }
            remove::remove_tree(&version.up, &version.built_name, &version.built)
        })
        .await
    }

    async fn finish_replacing(&self, left: &Leftover, _: &[Name]) -> Result<()> {
        // What was exchanged lies in the attempt's directory, and goes with it.
        sibling::check_attempt(&left.attempt)
    }

    async fn remove_version(&self, _: &str, _: Option<&Name>, _: &[Name]) -> Result<()> {
        Err(StorageError::unsupported(
            format!("removing {}", self.path.display()),
            "only a folder is taken away in one step; remove the files yourself",
        ))
    }
}
