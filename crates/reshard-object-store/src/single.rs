//! A checkpoint that is one object.
//!
//! A new version is uploaded into the folder of its attempt, below the name of the object, by whichever rank has it. The commit copies it
//! to its place on the server, in one step.

use crate::{
    fault,
    place::ObjectStorePlace,
    transaction::{Begun, ObjectTransaction, TRIES},
    upload::{self, is_same, no_condition},
};
use async_trait::async_trait;
use bytes::Bytes;
use object_store::{CopyMode, ObjectMeta, path::Path};
use reshard_storage::{
    Durability, Entry, FileBody, IfExists, Length, Name, PartWriter, Progress, Recovery, Result,
    StorageError, Store, Transaction, Written,
};
use std::{ops::Range, sync::Arc};

/// One object of a bucket, by the folder of the same URL. Attempts have their folders in it.
#[derive(Clone, Debug)]
pub(crate) struct SingleObject {
    below: ObjectStorePlace,
}

impl SingleObject {
    pub(crate) fn new(below: ObjectStorePlace) -> Self {
        Self { below }
    }

    fn path(&self) -> Result<Path> {
        let path = self.below.folder(None)?;
        path.ok_or_else(|| self.unsupported("its URL names a bucket"))
    }

    async fn now(&self) -> Result<Option<ObjectMeta>> {
        let client = &self.below.client;
        let now = client.head(self.path()?, None).await?;
        now.map_err(|e| client.error("look at", self.below.url_text(), e))
    }

    fn unsupported(&self, why: impl Into<String>) -> StorageError {
        let what = format!("writing a checkpoint at {}", self.below.url_text());
        StorageError::unsupported(what, why)
    }
}

#[async_trait]
impl PartWriter for SingleObject {
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        self.below.can("writing to")?;
        let old = self.now().await?;
        if old.is_some() && if_exists == IfExists::Refuse {
            let path = self.below.url_text().into();
            return Err(StorageError::Exists { path });
        }
        if old.as_ref().is_some_and(|old| tag(old).is_none()) {
            return Err(self.unsupported(
                "the service gives no tags to objects, so a change of the old one could not be noticed; save to another place",
            ));
        }
        let staged = ObjectTransaction::new(&self.below, attempt, Some(Begun::nothing()))?;
        Ok(Arc::new(SingleTransaction {
            place: self.clone(),
            staged,
            old: Some(old),
        }))
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.below.can("writing to")?;
        if place != Some(self.below.url_text()) {
            return Err(StorageError::NotJoined {
                path: self.below.url_text().into(),
                attempt: attempt.into(),
            });
        }
        Ok(Arc::new(SingleTransaction {
            place: self.clone(),
            staged: ObjectTransaction::new(&self.below, attempt, None)?,
            old: None,
        }))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        self.below.recovery()
    }
}

/// What no other version of an object has.
fn tag(of: &ObjectMeta) -> Option<&str> {
    of.e_tag.as_deref().or(of.version.as_deref())
}

/// A new version of one object.
#[derive(Debug)]
struct SingleTransaction {
    place: SingleObject,
    staged: ObjectTransaction,
    /// What was there when the version began. `None` on ranks that have joined.
    old: Option<Option<ObjectMeta>>,
}

impl SingleTransaction {
    /// Where the new version lies until it is committed.
    fn staged_name(&self) -> Result<Name> {
        let folder = self.staged.folder();
        let folder = folder.map_or_else(String::new, |folder| format!("{folder}/"));
        Name::new(format!("{folder}object"))
    }

    fn several(&self, files: usize) -> StorageError {
        self.place.unsupported(format!(
            "it is a single file, but the format writes {files} files; save to a folder"
        ))
    }

    fn can_be_copied(&self, bytes: u64) -> Result<()> {
        if self.place.below.client.can_copy(bytes) {
            return Ok(());
        }
        Err(self.place.unsupported(
            "S3 copies at most 5 GiB at once, and a single file is put into its place by a copy; save to a folder, with smaller files",
        ))
    }

    /// Copies a new file to its place where the service has no conditions. It is whole, so nothing mixes; but of two that are copied in the same moment
    /// only one stays. The outer error leaves open what came of it.
    async fn put_unconditionally(&self, staged: &Path, bytes: u64) -> Result<Result<()>> {
        let (place, client) = (&self.place, &self.place.below.client);
        let url = place.below.url_text();
        let path = place.path()?;
        let mut tries = TRIES;
        // Whether an earlier try may still be carried out.
        let mut open = false;
        loop {
            match place.now().await {
                Ok(Some(_)) if !open => {
                    return Ok(Err(StorageError::Exists { path: url.into() }));
                }
                Err(e) if !open => return Ok(Err(e)),
                Ok(_) | Err(_) => {}
            }
            tries -= 1;
            let mode = CopyMode::Overwrite;
            let copied = client.copy(staged.clone(), path.clone(), mode).await?;
            let done = copied.is_ok() || is_same(client, staged, &path, bytes).await? == Some(true);
            let e = match copied {
                Err(e) if !done => e,
                _ => {
                    tracing::warn!(url, "{}", upload::IS_UNCONDITIONAL);
                    return Ok(Ok(()));
                }
            };
            open |= !fault::is_certain(&e);
            if !open {
                return Ok(Err(client.error("write", url, e)));
            }
            if tries == 0 {
                let action = "learn whether the version is committed by the copy to";
                return Err(client.error(action, url, e));
            }
        }
    }

    /// Copies the new version to its place, in one step, until it is known what came of it. The outer error leaves that open.
    async fn put(&self, old: Option<&ObjectMeta>, staged: &Path, bytes: u64) -> Result<Result<()>> {
        let (place, client) = (&self.place, &self.place.below.client);
        let url = place.below.url_text();
        let path = place.path()?;
        let conflict = || match old {
            None => StorageError::Exists { path: url.into() },
            Some(_) => StorageError::Changed { path: url.into() },
        };
        let mode = match old {
            None => CopyMode::Create,
            Some(_) => CopyMode::Overwrite,
        };
        let mut tries = TRIES;
        // Whether an earlier try may still be carried out. Then no later answer says that the old version stays.
        let mut open = false;
        loop {
            // No service copies over an object on a condition. So a change is noticed just before, and not within the copy itself.
            if let Some(old) = old {
                let now = place.now().await;
                let is_old = |now: &Option<ObjectMeta>| now.as_ref().and_then(tag) == tag(old);
                match now {
                    Ok(now) if is_old(&now) => {}
                    Ok(_) if !open => return Ok(Err(conflict())),
                    Err(e) if !open => return Ok(Err(e)),
                    // It may be what an earlier try has made of it.
                    Ok(_) | Err(_) => {
                        if let Some(true) = is_same(client, staged, &path, bytes).await? {
                            return Ok(Ok(()));
                        }
                    }
                }
            }
            tries -= 1;
            let copied = client.copy(staged.clone(), path.clone(), mode).await?;
            let Err(e) = copied else {
                return Ok(Ok(()));
            };
            open |= !fault::is_refused(&e) && !fault::is_certain(&e);

            // The answer may be lost, and what was asked once more may be refused because of that.
            match is_same(client, staged, &path, bytes).await? {
                Some(true) => return Ok(Ok(())),
                Some(false) if fault::is_refused(&e) => return Ok(Err(conflict())),
                _ if !open && old.is_none() && fault::is_unsupported(&e) => {
                    return self.put_unconditionally(staged, bytes).await;
                }
                _ if !open && fault::is_unsupported(&e) => return Ok(Err(no_condition(url, &e))),
                _ if !open && fault::is_certain(&e) => {
                    return Ok(Err(client.error("write", url, e)));
                }
                Some(false) | None => {}
            }
            if tries == 0 {
                let action = "learn whether the version is committed by the copy to";
                return Err(client.error(action, url, e));
            }
        }
    }
}

#[async_trait]
impl Transaction for SingleTransaction {
    reshard_storage::forward! { staged: place written rollback }

    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let count = files.len();
        let mut files = files.into_iter();
        let (file, None) = (files.next(), files.next()) else {
            return Err(self.several(count));
        };
        let Some(file) = file else {
            return Ok(Vec::new());
        };
        if let Some(Length::Exact(bytes)) = file.length() {
            self.can_be_copied(bytes)?;
        }
        let name = file.name.clone();
        let file = FileBody {
            name: self.staged_name()?,
            ..file
        };
        let mut written = self.staged.write(vec![file], durability, progress).await?;
        for written in &mut written {
            written.name = name.clone();
        }
        Ok(written)
    }

    async fn read(&self, _: &Name, range: Range<u64>) -> Result<Bytes> {
        self.staged.read(&self.staged_name()?, range).await
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        _: Durability,
    ) -> Result<()> {
        let Some(old) = &self.old else {
            let what = "only the rank that began a version commits it";
            return Err(StorageError::invalid(what));
        };
        if let Some((name, _)) = record {
            return Err(self.place.unsupported(format!(
                "it is a single file, but the format also writes {name}; save to a folder"
            )));
        }
        let [file] = files else {
            return Err(self.several(files.len()));
        };
        self.can_be_copied(file.bytes)?;
        let staged_name = self.staged_name()?;
        let staged = self.place.below.path(&staged_name)?;
        let client = &self.place.below.client;
        let there = client.head(staged.clone(), None).await?;
        let there =
            there.map_err(|e| client.error("look at", self.place.below.url_of(&staged_name), e))?;
        file.check(self.place.below.url_text(), there.map(|meta| meta.size))?;
        // From here on a request may be carried out that nobody waits for any more.
        self.staged.leave_open();
        let ended = self.put(old.as_ref(), &staged, file.bytes).await?;
        self.staged.is_decided();
        ended?;
        if let Err(e) = self.staged.rollback().await {
            tracing::warn!(error = %e, url = self.place.below.url_text(), "a copy was not removed; `reshard prune` does it");
        }
        Ok(())
    }
}
