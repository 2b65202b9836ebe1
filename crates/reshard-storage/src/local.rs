//! Local directories.

mod file;
mod read;
mod retire;
mod root;
mod site;
mod stage;
mod url;
mod write;

use crate::{
    Entry, Gather, Hints, IfExists, Leftover, Name, Progress, ReadStats, Result, Stage, StorageError, Store,
    pool,
};
use async_trait::async_trait;
use bytes::Bytes;
use file::Input;
use root::{Depth, Root};
use std::{ops::Range, path::Path, sync::Arc, time::SystemTime};

/// A local directory, and what any mounted file system makes look like one.
///
/// A new version is built in a hidden directory beside it, `.{name}.{attempt}.tmp`, and put into place by one `rename`
/// onto nothing or an empty directory, or by an exchange with the old version in one step. A crash at any instant leaves the
/// old version or the new one. A file system that can't exchange is not written to when there is something to replace.
///
/// After the exchange the old version lies in `.{name}.{attempt}.old`. What is not of the checkpoint in it is renamed into the
/// new version's directory, then the old version's files are removed. A crash between leaves that directory, and
/// [`finish_replacing`](Store::finish_replacing) does the rest.
///
/// A symbolic link to the directory stays; what it points to is written. All I/O runs on threads of the process that
/// reshard starts, so futures may be polled by any executor.
#[derive(Clone, Debug)]
pub struct LocalStore {
    root: Root,
}

impl LocalStore {
    /// Opens a path or a `file://` URL, in which `%20` and the like are decoded. The directory need not exist.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] when it is no local path.
    pub fn open(url: &str) -> Result<Self> {
        match url.strip_prefix("file://") {
            Some(rest) => Self::at(url::path(rest).ok_or_else(|| {
                StorageError::invalid(format!("{url}: a file URL has an absolute path: file:///dir/name"))
            })?),
            None => Self::at(url),
        }
    }

    /// The directory at a path. Relative paths start at the working directory of now.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] when the path is empty.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.as_os_str().is_empty() {
            return Err(StorageError::invalid("the path of a checkpoint is empty"));
        }
        let place = std::path::absolute(path).map_err(|e| StorageError::io("find", path, e))?;
        Ok(Self { root: Root::new(place) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.root.path()
    }
}

#[async_trait]
impl Store for LocalStore {
    fn url(&self) -> String {
        url::url(self.path())
    }

    fn hints(&self) -> Hints {
        Hints { part_size: 8 << 20, concurrency: pool::width(), coalesce_gap: read::GAP }
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let (root, name) = (self.root.clone(), name.clone());
        if range.start > range.end {
            return Err(StorageError::invalid(format!(
                "{name}: range {}..{} ends before it starts",
                range.start, range.end
            )));
        }
        pool::run_one(move || Input::open(&root, &name)?.read_bytes(&range)).await
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, ReadStats)> {
        read::read_ranges(self.root.clone(), reads).await
    }

    async fn gather(&self, gathers: Vec<Gather>, progress: Progress) -> Result<ReadStats> {
        read::gather(self.root.clone(), gathers, progress).await
    }

    async fn list(&self) -> Result<Vec<Entry>> {
        let root = self.root.clone();
        pool::run_one(move || root.list(Depth::All)).await
    }

    async fn top(&self) -> Result<Vec<Entry>> {
        let root = self.root.clone();
        pool::run_one(move || root.list(Depth::Top)).await
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let (root, names) = (self.root.clone(), names.to_vec());
        pool::run_one(move || root.remove(&names)).await
    }

    async fn modified(&self, name: &Name) -> Result<Option<SystemTime>> {
        let (root, name) = (self.root.clone(), name.clone());
        pool::run_one(move || root.modified(&name)).await
    }

    async fn len(&self, name: &Name) -> Result<Option<u64>> {
        let (root, name) = (self.root.clone(), name.clone());
        pool::run_one(move || root.len(&name)).await
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        let root = self.root.clone();
        let held = pool::run_one(move || root.hold()).await?;
        Ok(held.map(|root| Arc::new(Self { root }) as _))
    }

    async fn stage(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Stage>> {
        let (place, attempt) = (self.path().to_path_buf(), attempt.to_owned());
        let stage = pool::run_one(move || stage::LocalStage::begin(&place, &attempt, if_exists)).await?;
        Ok(Arc::new(stage))
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let place = self.path().to_path_buf();
        pool::run_one(move || site::leftovers(&place)).await
    }

    async fn remove_leftover(&self, attempt: &str) -> Result<()> {
        let (place, attempt) = (self.path().to_path_buf(), attempt.to_owned());
        pool::run_one(move || stage::remove_leftover(&place, &attempt)).await
    }

    async fn finish_replacing(&self, attempt: &str, files: &[Name]) -> Result<()> {
        let (place, attempt, files) = (self.path().to_path_buf(), attempt.to_owned(), files.to_vec());
        pool::run_one(move || stage::finish_replacing(&place, &attempt, &files)).await
    }
}
