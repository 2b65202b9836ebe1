use crate::{
    Depth, Entry, Head, Hints, IfExists, Link, Listing, Name, Progress, RecordRead, Result,
    StorageError, Store, Traffic, Transaction,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{fs::File, ops::Range, sync::Arc};

/// Which part of a folder a place is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceKind {
    /// All of it.
    #[default]
    Folder,
    /// One file, which the URL names, such as `model.safetensors`. In the place it has the same name as in its folder.
    File,
    /// The files whose names begin with the last part of the URL. In the place a file has the rest as its name: `ckpt-1.index` is
    /// `.index` in the place `ckpt-1`.
    Prefix,
}

/// A part of a folder as a place of its own, for reading. Stores with such places use it.
///
/// You can't write through it. A store that can write a part wraps it, and implements its own [`begin`](Store::begin).
#[derive(Clone, Debug)]
pub struct PartStore {
    url: String,
    folder: Arc<dyn Store>,
    /// One file, or what names begin with.
    part: Result<Name, Box<str>>,
}

impl PartStore {
    /// One file of a folder. `url` opens it again.
    pub fn file(url: impl Into<String>, folder: Arc<dyn Store>, name: Name) -> Self {
        Self {
            url: url.into(),
            folder,
            part: Ok(name),
        }
    }

    /// The files of a folder itself whose names begin so. `url` opens them again.
    pub fn prefix(
        url: impl Into<String>,
        folder: Arc<dyn Store>,
        prefix: impl Into<Box<str>>,
    ) -> Self {
        Self {
            url: url.into(),
            folder,
            part: Err(prefix.into()),
        }
    }

    /// What of its folder it is.
    pub fn kind(&self) -> PlaceKind {
        if self.part.is_ok() {
            PlaceKind::File
        } else {
            PlaceKind::Prefix
        }
    }

    /// The same part of another folder.
    #[must_use]
    pub fn of(&self, folder: Arc<dyn Store>) -> Self {
        Self {
            folder,
            ..self.clone()
        }
    }

    /// The name in the folder of a file of this place. `None` if no file of this place can have such a name.
    pub fn outer(&self, name: &Name) -> Option<Name> {
        match &self.part {
            Ok(file) => (name == file).then(|| name.clone()),
            Err(_) if name.as_str().contains('/') => None,
            Err(prefix) => Name::new(format!("{prefix}{name}")).ok(),
        }
    }

    /// The name in this place of a file of the folder. `None` if the file does not belong to this place.
    fn inner(&self, name: &Name) -> Option<Name> {
        match &self.part {
            Ok(file) => (name == file).then(|| name.clone()),
            Err(prefix) => Name::new(name.as_str().strip_prefix(&**prefix)?).ok(),
        }
    }

    fn there(&self, name: &Name) -> Result<Name> {
        self.outer(name).ok_or_else(|| StorageError::NotFound {
            path: format!("{name} of {}", self.url),
        })
    }
}

#[async_trait]
impl Store for PartStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn hints(&self) -> Hints {
        self.folder.hints()
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.folder.read(&self.there(name)?, range).await
    }

    async fn read_ranges(
        &self,
        mut reads: Vec<(Name, Range<u64>)>,
    ) -> Result<(Vec<Bytes>, Traffic)> {
        for (name, _) in &mut reads {
            *name = self.there(name)?;
        }
        self.folder.read_ranges(reads).await
    }

    async fn read_into(&self, mut reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        for read in &mut reads {
            read.name = self.there(&read.name)?;
        }
        self.folder.read_into(reads, progress).await
    }

    async fn list(&self, below: Option<&Name>, _: Depth) -> Result<Listing> {
        let mut files = Vec::new();
        match &self.part {
            // It has no folders.
            _ if below.is_some() => {}
            Ok(name) => {
                let head = self.folder.head(name).await?;
                files.extend(head.map(|head| Entry {
                    name: name.clone(),
                    bytes: head.bytes,
                }));
            }
            Err(_) => {
                let all = self.folder.list(None, Depth::One).await?.files.into_iter();
                files.extend(all.filter_map(|e| {
                    Some(Entry {
                        name: self.inner(&e.name)?,
                        ..e
                    })
                }));
            }
        }
        Ok(Listing::of(files))
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        match self.outer(name) {
            Some(name) => self.folder.head(&name).await,
            None => Ok(None),
        }
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let names: Vec<Name> = names.iter().filter_map(|name| self.outer(name)).collect();
        self.folder.remove(&names).await
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        // A folder that is held has other files when one of them is replaced.
        Ok(None)
    }

    async fn local_file(&self, name: &Name) -> Result<Option<File>> {
        self.folder.local_file(&self.there(name)?).await
    }

    async fn links(&self) -> Result<Vec<Link>> {
        let all = self.folder.links().await?.into_iter();
        Ok(all
            .filter_map(|link| {
                Some(Link {
                    name: self.inner(&link.name)?,
                    ..link
                })
            })
            .collect())
    }

    async fn join(&self, attempt: &str, _: Option<&str>) -> Result<Arc<dyn Transaction>> {
        Err(StorageError::NotJoined {
            path: self.url(),
            attempt: attempt.to_owned(),
        })
    }

    async fn begin(&self, _: &str, _: IfExists) -> Result<Arc<dyn Transaction>> {
        let what = match self.kind() {
            PlaceKind::Prefix => "files with a common prefix",
            _ => "a single file",
        };
        Err(StorageError::Unsupported {
            what: format!("writing a checkpoint at {}", self.url),
            why: format!("its store does not write {what}; save to a directory"),
        })
    }
}
