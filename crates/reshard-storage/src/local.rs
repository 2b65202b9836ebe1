//! Local directories.

mod begun;
mod commit;
mod dir;
mod during;
mod file;
mod files;
mod leftover;
mod mount;
mod part;
mod read;
mod removal;
mod remove;
mod retire;
mod root;
mod sibling;
mod transaction;
mod url;
mod version;
mod write;

use crate::{
    Depth, Head, Hints, IfExists, Leftover, Link, Listing, Name, PartWriter as _, PlaceKind,
    Progress, RecordRead, Recovery, Removal, Result, StorageError, Store, Traffic, Transaction,
    local::during::During as _, pool, without_secrets,
};
use async_trait::async_trait;
use bytes::Bytes;
use file::Input;
use root::Root;
use std::{fs::File, ops::Range, path::Path, sync::Arc};
use version::ResolvedPlace;

/// A local directory, on any mounted file system.
///
/// A new version is built in a hidden directory beside it, `.{name}.{attempt}.tmp`. If there is nothing at the place, or an
/// empty directory, one `rename` puts it into place. Otherwise one exchange with the old version does. A crash at any instant
/// leaves the old version or the new one. If there is something to replace and the file system can't exchange directories,
/// nothing is written.
///
/// After the exchange the old version is `.{name}.{attempt}.{new}-{old}.old`, where `new` and `old` are the inode numbers of the
/// two directories, in hexadecimal. Files in it that do not belong to the checkpoint are renamed into the new version. Then the
/// files of the old version are removed. A crash in between leaves that directory, and
/// [`finish_replacing`](Recovery::finish_replacing) does the rest. Just before the exchange the new version has that name. A
/// directory with another inode, which somebody put at the place just before a crash, is no leftover.
///
/// A save removes only directories that its own attempt has made. If the exchange took out another directory than the old
/// version, this directory goes back. If somebody renames it in between, it stays as `.{name}.{attempt}.out`, and the error says
/// where everything is.
///
/// A version that is removed gets the name `.{name}.{attempt}.0-{old}.old` by one rename. Then its files are removed, and files of
/// others go back to the place. A crash in between leaves that directory, and `finish_replacing` does the rest.
///
/// If the place is a symbolic link, the link stays and its target is written. A save resolves the target once and holds the
/// directory above it open, so changes of links or directories meanwhile have no effect.
///
/// In the directory, a link to a file is read as that file, wherever it is. A link to a directory is never entered. If a link is
/// removed or replaced, its target stays.
///
/// All I/O runs on threads that reshard starts, so any executor may poll the futures.
#[derive(Clone, Debug)]
pub struct LocalStore {
    root: Root,
    /// What the place really is, once that was found out for good.
    resolved: Option<Arc<ResolvedPlace>>,
}

impl LocalStore {
    /// Opens a path or a `file://` URL. In a URL, `%20` and similar codes are decoded. The directory need not exist.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] when it is no local path.
    pub fn open(url: &str) -> Result<Self> {
        match url.strip_prefix("file://") {
            Some(rest) => Self::at(url::path(rest).ok_or_else(|| {
                StorageError::invalid(format!(
                    "{}: a file URL has an absolute path: file:///dir/name",
                    without_secrets(url)
                ))
            })?),
            None => Self::at(url),
        }
    }

    /// Opens the directory at a path. A relative path starts at the current working directory.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] when the path is empty.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.as_os_str().is_empty() {
            return Err(StorageError::invalid("the path of a checkpoint is empty"));
        }
        let place = std::path::absolute(path).during("find", path)?;
        Ok(Self {
            root: Root::new(place),
            resolved: None,
        })
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
        Hints {
            part_size: 8 << 20,
            concurrency: pool::width(),
            coalesce_gap: read::GAP,
        }
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let (root, name) = (self.root.clone(), name.clone());
        if range.start > range.end {
            return Err(StorageError::invalid(format!(
                "{name}: range {}..{} ends before it starts",
                range.start, range.end
            )));
        }
        let is_short = range.end - range.start <= read::SHORT;
        let task = move || Input::open(&root, &name)?.read_bytes(&range);
        pool::run_one_if_long(is_short, task).await
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, Traffic)> {
        read::read_ranges(self.root.clone(), reads).await
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        read::read_into(self.root.clone(), reads, progress).await
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let (root, below) = (self.root.clone(), below.cloned());
        let is_short = depth == Depth::One;
        pool::run_one_if_long(is_short, move || root.list(below.as_ref(), depth)).await
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        let (root, name) = (self.root.clone(), name.clone());
        pool::run_one_if_long(true, move || root.head(&name)).await
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let (root, names) = (self.root.clone(), names.to_vec());
        pool::run_one(move || root.remove(&names)).await
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        let root = self.root.clone();
        let held = pool::run_one_if_long(true, move || root.hold()).await?;
        Ok(held.map(|root| {
            Arc::new(Self {
                root,
                resolved: self.resolved.clone(),
            }) as _
        }))
    }

    async fn resolved(&self) -> Result<Option<Arc<dyn Store>>> {
        let place = self.path().to_path_buf();
        let found = pool::run_one(move || {
            let mut resolved = ResolvedPlace::find(&place)?;
            let root = Root::held(resolved.place.clone(), resolved.open()?);
            Ok(Self {
                root,
                resolved: Some(Arc::new(resolved)),
            })
        });
        Ok(Some(Arc::new(found.await?)))
    }

    fn of_kind(&self, kind: PlaceKind) -> Option<Arc<dyn Store>> {
        match kind {
            PlaceKind::Folder => Some(Arc::new(self.clone())),
            _ => part::place(self.path(), kind).map(|part| Arc::new(part) as _),
        }
    }

    async fn local_file(&self, name: &Name) -> Result<Option<File>> {
        let (root, name) = (self.root.clone(), name.clone());
        pool::run_one_if_long(true, move || root.open_file(&name).map(Some)).await
    }

    async fn links(&self) -> Result<Vec<Link>> {
        let root = self.root.clone();
        pool::run_one(move || root.links()).await
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        part::folder(self).begin(attempt, if_exists).await
    }

    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        part::folder(self).begin_dry_run(attempt, if_exists).await
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        part::folder(self).join(attempt, place).await
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        Some(self)
    }
}

#[async_trait]
impl Recovery for LocalStore {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let place = self.path().to_path_buf();
        pool::run_one(move || leftover::leftovers(&place)).await
    }

    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        let (place, left) = (self.path().to_path_buf(), left.clone());
        pool::run_one(move || transaction::remove_leftover(&place, &left)).await
    }

    async fn finish_replacing(&self, left: &Leftover, files: &[Name]) -> Result<()> {
        let (place, left, files) = (self.path().to_path_buf(), left.clone(), files.to_vec());
        pool::run_one(move || transaction::finish_replacing(&place, &left, &files)).await
    }

    fn removal(&self) -> Removal {
        Removal::Rename
    }

    async fn remove_version(&self, attempt: &str, _: Option<&Name>, files: &[Name]) -> Result<()> {
        let (place, resolved) = (self.path().to_path_buf(), self.resolved.clone());
        let (attempt, files) = (attempt.to_owned(), files.to_vec());
        pool::run_one(move || match resolved {
            Some(resolved) => removal::remove_version(&resolved, &attempt, &files),
            None => removal::remove_version(&ResolvedPlace::find(&place)?, &attempt, &files),
        })
        .await
    }
}
