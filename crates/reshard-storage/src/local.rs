//! Local directories.

mod file;
mod read;
mod stage;
mod url;
mod write;

use crate::{
    Entry, Gather, Hints, IfExists, Leftover, Name, Progress, ReadStats, Result, Stage, StorageError, Store,
    pool,
};
use async_trait::async_trait;
use bytes::Bytes;
use file::{Input, path_of};
use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A local directory, and what any mounted file system makes look like one.
///
/// A new version is built in a hidden directory beside it, `.{name}.{attempt}.tmp`, and put into place by one `rename`
/// onto nothing or an empty directory, or by an exchange with the old version in one step, which then is removed. A crash at
/// any instant leaves the old version or the new one. A file system that can't exchange is not written to when there is
/// something to replace.
///
/// A symbolic link to the directory stays; what it points to is written. All I/O runs on threads of the process that
/// reshard starts, so futures may be polled by any executor.
#[derive(Clone, Debug)]
pub struct LocalStore {
    place: PathBuf,
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
        Ok(Self { place })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.place
    }
}

#[async_trait]
impl Store for LocalStore {
    fn url(&self) -> String {
        url::url(&self.place)
    }

    fn hints(&self) -> Hints {
        Hints { part_size: 8 << 20, concurrency: pool::width(), coalesce_gap: read::GAP }
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let (place, name) = (self.place.clone(), name.clone());
        if range.start > range.end {
            return Err(StorageError::invalid(format!(
                "{name}: range {}..{} ends before it starts",
                range.start, range.end
            )));
        }
        pool::run_one(move || Input::open(&place, &name)?.read_bytes(&range)).await
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<Vec<Bytes>> {
        read::read_ranges(self.place.clone(), reads).await
    }

    async fn gather(&self, gathers: Vec<Gather>, progress: Progress) -> Result<ReadStats> {
        read::gather(self.place.clone(), gathers, progress).await
    }

    async fn list(&self) -> Result<Vec<Entry>> {
        let place = self.place.clone();
        pool::run_one(move || list(&place)).await
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let paths: Vec<PathBuf> = names.iter().map(|n| path_of(&self.place, n)).collect();
        pool::run_one(move || paths.iter().try_for_each(|p| remove(p))).await
    }

    async fn len(&self, name: &Name) -> Result<Option<u64>> {
        let path = path_of(&self.place, name);
        pool::run_one(move || match fs::metadata(&path) {
            Ok(meta) => Ok(meta.is_file().then_some(meta.len())),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(StorageError::io("look at", path, e)),
        })
        .await
    }

    async fn stage(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Stage>> {
        let (place, attempt) = (self.place.clone(), attempt.to_owned());
        let stage = pool::run_one(move || stage::LocalStage::begin(&place, &attempt, if_exists)).await?;
        Ok(Arc::new(stage))
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let place = self.place.clone();
        pool::run_one(move || stage::leftovers(&place)).await
    }

    async fn remove_leftover(&self, attempt: &str) -> Result<()> {
        let (place, attempt) = (self.place.clone(), attempt.to_owned());
        pool::run_one(move || stage::remove_leftover(&place, &attempt)).await
    }
}

/// A part of the path that is a file makes the rest absent.
fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if !is_absent(&e) => Err(StorageError::io("remove", path, e)),
        _ => Ok(()),
    }
}

fn list(place: &Path) -> Result<Vec<Entry>> {
    let mut out = Vec::new();
    // Directories that are still to be looked at, with what stands before the names in them.
    let mut todo = vec![(place.to_path_buf(), String::new())];
    while let Some((dir, prefix)) = todo.pop() {
        let fail = |e| StorageError::io("list", &dir, e);
        let entries = match fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && prefix.is_empty() => return Ok(out),
            other => other.map_err(fail)?,
        };
        for entry in entries {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{name}");
            // Directories behind links are not walked, for they may lead in circles.
            if entry.file_type().map_err(fail)?.is_dir() {
                todo.push((entry.path(), name + "/"));
                continue;
            }
            let meta = match fs::metadata(entry.path()) {
                // It was removed meanwhile, or is a link to nothing.
                Err(e) if is_absent(&e) => continue,
                other => other.map_err(fail)?,
            };
            if let (true, Ok(name)) = (meta.is_file(), Name::new(name)) {
                out.push(Entry { name, bytes: meta.len() });
            }
        }
    }
    out.sort();
    Ok(out)
}
