use crate::{
    Durability, Entry, FileBody, Gather, Hints, IfExists, Name, Progress, ReadStats, Result, Stage,
    StorageError, Store, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A local directory.
#[derive(Clone, Debug)]
pub struct LocalStore {
    place: PathBuf,
}

impl LocalStore {
    /// Opens a path or a `file://` URL. The directory need not exist; nothing is touched.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] when it is no local path.
    pub fn open(url: &str) -> Result<Self> {
        Self::at(url.strip_prefix("file://").unwrap_or(url))
    }

    /// The directory at a path.
    ///
    /// # Errors
    /// When the path is empty.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self {
            place: std::path::absolute(path.as_ref())
                .map_err(|e| StorageError::io("find", path.as_ref(), e))?,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.place
    }
}

fn todo<T>() -> Result<T> {
    Err(StorageError::invalid("not yet"))
}

#[async_trait]
impl Store for LocalStore {
    fn url(&self) -> String {
        format!("file://{}", self.place.display())
    }
    fn hints(&self) -> Hints {
        Hints::default()
    }
    async fn read(&self, _: &Name, _: Range<u64>) -> Result<Bytes> {
        todo()
    }
    async fn gather(&self, _: Vec<Gather>, _: Progress) -> Result<ReadStats> {
        todo()
    }
    async fn list(&self) -> Result<Vec<Entry>> {
        todo()
    }
    async fn remove(&self, _: &[Name]) -> Result<()> {
        todo()
    }
    async fn len(&self, _: &Name) -> Result<Option<u64>> {
        todo()
    }
    async fn stage(&self, _: &str, _: IfExists) -> Result<Arc<dyn Stage>> {
        Ok(Arc::new(LocalStage))
    }
}

#[derive(Debug)]
struct LocalStage;

#[async_trait]
impl Stage for LocalStage {
    async fn write(&self, _: Vec<FileBody>, _: Durability, _: Progress) -> Result<Vec<Written>> {
        todo()
    }
    async fn publish(&self, _: (Name, Bytes), _: Durability) -> Result<()> {
        todo()
    }
    async fn abandon(&self) -> Result<()> {
        todo()
    }
}
