//! What a crash leaves beside a place, and how to clean it up.

use crate::{Name, Result, StorageError, Store};
use async_trait::async_trait;
use std::time::SystemTime;

/// What a dead attempt has left beside the place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Leftover {
    /// The attempt's id.
    pub attempt: String,
    /// Where it lies: a path or a URL.
    pub path: String,
    /// Whether it is the version that the attempt replaced, which may contain files of other programs. Otherwise it contains only
    /// what the attempt wrote.
    pub replaced: bool,
    /// Whether it is a version whose [removal](Recovery::remove_version) was not finished, and which no other version has replaced. Then it is also
    /// [`replaced`](Self::replaced).
    pub removed: bool,
    /// Bytes of its files.
    pub bytes: u64,
    /// When one of its files last changed; `None` when the store can't tell.
    pub modified: Option<SystemTime>,
}

impl Leftover {
    /// A leftover at `path`, which `attempt` wrote.
    pub fn new(attempt: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            attempt: attempt.into(),
            path: path.into(),
            replaced: false,
            removed: false,
            bytes: 0,
            modified: None,
        }
    }

    /// Sets its contents.
    pub fn holding(mut self, bytes: u64, modified: Option<SystemTime>) -> Self {
        self.bytes = bytes;
        self.modified = modified;
        self
    }

    /// Marks it as the version that the attempt replaced.
    pub fn replaced(mut self) -> Self {
        self.replaced = true;
        self
    }

    /// Marks it as a version whose removal was not finished.
    pub fn removed(self) -> Self {
        Self {
            removed: true,
            ..self.replaced()
        }
    }
}

/// An upload of a file that was begun and not finished. Services keep what has arrived of it, and no listing of files shows that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct UnfinishedUpload {
    /// The file that it would have become: its name in the place. If it would be the one file that the place may be, its name in the folder above.
    pub name: Name,
    /// Tells it from other uploads of this file.
    pub id: String,
    /// The file as a URL. It is that of the place, if the file would be the place.
    pub path: String,
    /// When it was begun; `None` when the store can't tell.
    pub began: Option<SystemTime>,
}

impl UnfinishedUpload {
    /// An upload of the file `name`, which lies at `path`.
    pub fn new(name: Name, id: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            name,
            id: id.into(),
            path: path.into(),
            began: None,
        }
    }

    /// Sets when it was begun.
    pub fn begun(self, began: Option<SystemTime>) -> Self {
        Self { began, ..self }
    }
}

/// [`Recovery::remove_version`] for stores that remove the commit record first.
///
/// # Errors
/// [`Unsupported`](StorageError::Unsupported) if there is no record; what [`Store::remove`] says.
pub async fn remove_by_record(
    store: &(impl Store + ?Sized),
    record: Option<&Name>,
    files: &[Name],
) -> Result<()> {
    let Some(record) = record else {
        return Err(StorageError::unsupported(
            format!("removing {}", store.url()),
            "no one file completes a checkpoint of its format, and nothing can be renamed there, so a crash could leave a part that looks whole; \
             remove its files yourself",
        ));
    };
    store.remove(std::slice::from_ref(record)).await?;
    let Some((last, others)) = files.split_last() else {
        return Ok(());
    };
    store.remove(others).await?;
    store.remove(std::slice::from_ref(last)).await
}

/// How a store removes a version, so that nobody takes what is left of it for a whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Removal {
    /// It can't.
    No,
    /// It renames the version, and then removes its files.
    Rename,
    /// It removes the commit record, and then the other files.
    Record,
}

/// Repairs a place after attempts have died, and removes a version. It is for stores that build a version before it replaces another one.
#[async_trait]
pub trait Recovery: Send + Sync {
    /// What uncommitted attempts have left beside this place. This includes attempts that are still running. It does not include
    /// anything that may belong to somebody else.
    async fn leftovers(&self) -> Result<Vec<Leftover>>;

    /// Removes a leftover that [`leftovers`](Self::leftovers) has told, unless it is a replaced version. Finds it by its path, so
    /// the work does not grow with the number of leftovers. `Ok` if it is gone.
    ///
    /// # Errors
    /// Before anything is removed: [`Unsupported`](crate::StorageError::Unsupported), if a file system is mounted in it.
    async fn remove_leftover(&self, left: &Leftover) -> Result<()>;

    /// Finishes the work of an attempt that replaced or removed a version and died ([`Leftover::replaced`]). Moves all files of the old version but
    /// these back to the place, then removes these in this order. Empty directories go too, because their files may have been
    /// removed. `Ok` if nothing is left, and also in stores that never leave anything.
    ///
    /// # Errors
    /// [`NotCarried`](crate::StorageError::NotCarried) names what stays where it is, because its name is taken or the
    /// system refuses. Before anything is moved or removed: [`Unsupported`](crate::StorageError::Unsupported), if a file
    /// system is mounted in it.
    async fn finish_replacing(&self, _left: &Leftover, _files: &[Name]) -> Result<()> {
        Ok(())
    }

    /// How [`remove_version`](Self::remove_version) does its work here.
    fn removal(&self) -> Removal {
        Removal::No
    }

    /// Removes the version at the place: in one step nobody finds it there any more. Then these files of it are removed, in this order. So
    /// put last what tells whose they are: then what a killed process leaves among the [`leftovers`](Self::leftovers) can be told.
    /// All other files stay at the place. `Ok` if nothing lies there. The `attempt` is as in [`Store::begin`](crate::Store::begin).
    ///
    /// `record` is the commit record, without which nobody finds the version, if its format has one. A store that [can't rename](Removal::Record) needs
    /// it, and removes it before all others. Of the others only the last one has its place in the order there.
    ///
    /// # Errors
    /// Before anything changes: [`Unsupported`](crate::StorageError::Unsupported), if the store can't do it in one step (the default), if it needs a record and there is none, if
    /// another version has come to the place since it was resolved, or if a file system is mounted in it. Otherwise as
    /// [`finish_replacing`](Self::finish_replacing): nobody finds the version at the place any more.
    async fn remove_version(
        &self,
        _attempt: &str,
        _record: Option<&Name>,
        _files: &[Name],
    ) -> Result<()> {
        Err(StorageError::unsupported(
            "removing a checkpoint",
            "this store can't take all its files away in one step, so that a crash could leave a part of it",
        ))
    }

    /// The uploads of files in this place, in folders below it, and of the one file that its URL may mean, that were begun and not finished, whichever
    /// program began them. This includes
    /// uploads that are still running. If there are very many, it may be the first of them. By default there are none.
    ///
    /// # Errors
    /// [`Unsupported`](crate::StorageError::Unsupported), if the service can't list them.
    async fn unfinished_uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        Ok(Vec::new())
    }

    /// Ends an upload that [`unfinished_uploads`](Self::unfinished_uploads) has told, and removes what has arrived of it. `Ok` if it is gone.
    async fn abort_upload(&self, _upload: &UnfinishedUpload) -> Result<()> {
        Ok(())
    }
}
