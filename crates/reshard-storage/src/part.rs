use crate::{
    Among, Depth, DryTransaction, Entry, Head, Hints, IfExists, Link, Listing, Name, Progress,
    RecordRead, Recovery, Result, StorageError, Store, StoreExt, Tagged, Tags, Traffic,
    Transaction,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{fmt, fs::File, ops::Range, sync::Arc};

/// Which part of a folder a place is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceKind {
    /// All of it.
    #[default]
    Folder,
    /// One file, which the URL names, such as `model.safetensors`. In the place it has the same name as in its folder.
    File,
    /// The files whose names are the last part of the URL and an ending. In the place a file has the ending as its name: `ckpt-1.index` is
    /// `.index` in the place `ckpt-1`. The ending is the last dot and the text after it, or the last two such parts if the last one is
    /// `.json`. So each file belongs to exactly one prefix: `ckpt-1.5.index` belongs to `ckpt-1.5`, and not to `ckpt-1`.
    Prefix,
}

/// Splits the name of a file into its prefix and its ending; see [`PlaceKind::Prefix`]. `None` for a name without an ending.
fn split_ending(name: &str) -> Option<(&str, &str)> {
    let last = name.rfind('.')?;
    // A record of what a format has no place for has a name of its own before `.json`.
    let at = match &name[last..] {
        ".json" => name[..last].rfind('.')?,
        _ => last,
    };
    Some(name.split_at(at))
}

/// Whether a file of a place with a prefix can have this name.
pub(crate) fn is_ending(name: &str) -> bool {
    !name.contains('/') && split_ending(name) == Some(("", name))
}

/// What a store adds to a [`PartStore`] that it can write. The methods are those of [`Store`] and [`Store::recovery`].
#[async_trait]
pub trait PartWriter: fmt::Debug + Send + Sync {
    /// As [`Store::begin`].
    ///
    /// # Errors
    /// As there.
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>>;

    /// As [`Store::begin_dry_run`].
    ///
    /// # Errors
    /// As there.
    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        DryTransaction::in_place_of(self.begin(attempt, if_exists).await?).await
    }

    /// As [`Store::join`].
    ///
    /// # Errors
    /// As there.
    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>>;

    /// As [`Store::pinned`], of the part that it writes.
    ///
    /// # Errors
    /// As there.
    async fn pinned(&self, _part: &PartStore) -> Result<Option<PartStore>> {
        // A folder that is held has other files when one of them is replaced.
        Ok(None)
    }

    /// As [`Store::resolved`], of the part that it writes.
    ///
    /// # Errors
    /// As there.
    async fn resolved(&self, _part: &PartStore) -> Result<Option<PartStore>> {
        Ok(None)
    }

    /// As [`Store::recovery`].
    fn recovery(&self) -> Option<&dyn Recovery>;
}

/// Finds the files of a folder whose names begin with a prefix, without a look at the others. A store that can do it gives it to a [`PartStore`],
/// which picks those of its place.
#[async_trait]
pub trait PrefixLister: fmt::Debug + Send + Sync {
    /// The files of the folder itself whose names begin with `prefix`, with their names in the folder.
    ///
    /// # Errors
    /// As [`Store::list`].
    async fn list_prefix(&self, prefix: &str) -> Result<Vec<Entry>>;
}

/// A part of a folder as a place of its own. Stores with such places use it.
///
/// You can write through it if its store has given it a [`PartWriter`].
#[derive(Clone, Debug)]
pub struct PartStore {
    url: String,
    folder: Arc<dyn Store>,
    /// One file, or the prefix of several.
    part: Result<Name, Box<str>>,
    writer: Option<Arc<dyn PartWriter>>,
    lister: Option<Arc<dyn PrefixLister>>,
}

impl PartStore {
    /// One file of a folder. `url` opens it again.
    pub fn file(url: impl Into<String>, folder: Arc<dyn Store>, name: Name) -> Self {
        Self::new(url.into(), folder, Ok(name))
    }

    /// The files with a prefix directly in a folder; see [`PlaceKind::Prefix`]. `url` opens them again.
    pub fn prefix(
        url: impl Into<String>,
        folder: Arc<dyn Store>,
        prefix: impl Into<Box<str>>,
    ) -> Self {
        Self::new(url.into(), folder, Err(prefix.into()))
    }

    fn new(url: String, folder: Arc<dyn Store>, part: Result<Name, Box<str>>) -> Self {
        Self {
            url,
            folder,
            part,
            writer: None,
            lister: None,
        }
    }

    /// The same part, which can be written by this.
    #[must_use]
    pub fn with_writer(mut self, writer: impl PartWriter + 'static) -> Self {
        self.writer = Some(Arc::new(writer));
        self
    }

    /// The same part, whose files with a prefix are found by this. Without it all of the folder is listed.
    #[must_use]
    pub fn with_lister(mut self, lister: impl PrefixLister + 'static) -> Self {
        self.lister = Some(Arc::new(lister));
        self
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
            Err(_) if !is_ending(name.as_str()) => None,
            Err(prefix) => Name::new(format!("{prefix}{name}")).ok(),
        }
    }

    /// The name in this place of a file of the folder. `None` if the file does not belong to this place.
    fn inner(&self, name: &Name) -> Option<Name> {
        match &self.part {
            Ok(file) => (name == file).then(|| name.clone()),
            Err(prefix) => {
                let (own, ending) = split_ending(name.as_str())?;
                Name::new(ending).ok().filter(|_| own == &**prefix)
            }
        }
    }

    fn writer(&self) -> Result<&dyn PartWriter> {
        self.writer.as_deref().ok_or_else(|| StorageError::unsupported(format!("writing a checkpoint at {}", self.url), match self.kind() {
                PlaceKind::Prefix => {
                    "its store does not write files with a common prefix; save to a local directory, or into a folder, as with the setting \
                     in_folder of tensor_bundle"
                }
                _ => "its store does not write a single file; save to a folder",
            }))
    }

    fn there(&self, name: &Name) -> Result<Name> {
        self.outer(name).ok_or_else(|| StorageError::NotFound {
            path: format!("{name} of {}", self.url),
        })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for PartStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn identity(&self) -> String {
        let kind = self.kind();
        format!("{kind:?} {} in {}", self.url, self.folder.identity())
    }

    fn hints(&self) -> Hints {
        self.folder.hints()
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.folder.read(&self.there(name)?, range).await
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        match self.outer(name) {
            Some(name) => self.folder.read_all(&name, max).await,
            None => Ok(None),
        }
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
                // A folder of that name is a place of another kind.
                files = self.folder.present([name.clone()].into()).await?;
            }
            Err(prefix) => {
                let all = match &self.lister {
                    Some(lister) => lister.list_prefix(prefix).await?,
                    None => self.folder.list(None, Depth::One).await?.files,
                };
                files.extend(all.into_iter().filter_map(|e| {
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
        let pinned = match &self.writer {
            Some(writer) => writer.pinned(self).await?,
            None => None,
        };
        Ok(pinned.map(|part| Arc::new(part) as _))
    }

    async fn resolved(&self) -> Result<Option<Arc<dyn Store>>> {
        let resolved = match &self.writer {
            Some(writer) => writer.resolved(self).await?,
            None => None,
        };
        Ok(resolved.map(|part| Arc::new(part) as _))
    }

    fn of_kind(&self, kind: PlaceKind) -> Option<Arc<dyn Store>> {
        let is_mine = self.writer.is_some() && kind == self.kind();
        is_mine.then(|| Arc::new(self.clone()) as _)
    }

    async fn tags(&self, name: &Name) -> Result<Option<Tags>> {
        let Some(outer) = self.outer(name) else {
            return Ok(Some(Tags::new(Vec::new(), Among::File)));
        };
        let Some(tags) = self.folder.tags(&outer).await? else {
            return Ok(None);
        };
        let named = |t: Tagged| {
            Some(Tagged {
                name: self.inner(&t.name)?,
                ..t
            })
        };
        let files = tags.files.into_iter().filter_map(named).collect();
        Ok(Some(Tags::new(files, tags.among)))
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

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        match &self.writer {
            Some(writer) => writer.join(attempt, place).await,
            None => Err(StorageError::NotJoined {
                path: self.url(),
                attempt: attempt.to_owned(),
            }),
        }
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        self.writer()?.begin(attempt, if_exists).await
    }

    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        self.writer()?.begin_dry_run(attempt, if_exists).await
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        self.writer.as_ref()?.recovery()
    }
}
