use crate::{
    Durability, Entry, FileBody, Name, PlaceKind, Progress, ReadStats, RecordRead, Recovery, Result, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{collections::BTreeSet, fmt, fs::File, ops::Range, sync::Arc, time::SystemTime};

/// What suits a store best. Numbers to tune by, not limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Bytes that a single read or write should have.
    pub part_size: u64,
    /// Reads and writes to have under way at once.
    pub concurrency: usize,
    /// A gap of at most so many bytes between two wanted ranges is better read than skipped.
    pub coalesce_gap: u64,
}

impl Default for Hints {
    fn default() -> Self {
        Self { part_size: 8 << 20, concurrency: 8, coalesce_gap: 4 << 10 }
    }
}

impl Hints {
    /// With another [`part_size`](Self::part_size).
    pub fn with_part_size(self, part_size: u64) -> Self {
        Self { part_size, ..self }
    }

    /// With another [`concurrency`](Self::concurrency).
    pub fn with_concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// With another [`coalesce_gap`](Self::coalesce_gap).
    pub fn with_coalesce_gap(self, coalesce_gap: u64) -> Self {
        Self { coalesce_gap, ..self }
    }
}

/// What to do when the place holds something already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IfExists {
    /// Fail; nothing is touched.
    #[default]
    Refuse,
    /// These files, the old version, are replaced in the one step of committing, and are whole until then. Whatever else
    /// lies there when the new version is committed stays: files of others, also those that came meanwhile. Only the rank
    /// that commits needs the names.
    Replace(Arc<[Name]>),
}

/// A link to a file or directory, among the files of a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its name.
    pub name: Name,
    /// Where it leads, as it is written there.
    pub target: String,
    /// Whether it leads to a file, which is read under its name. What leads to a directory, or to nothing, is not followed.
    pub followed: bool,
}

/// How far a listing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What lies in the folder itself.
    One,
    /// The files of the folders in it, too.
    All,
}

/// What lies in a place, or in a folder of it, as far as it has names that [`Name`] takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// Files, sorted by name.
    pub files: Vec<Entry>,
    /// With [`Depth::One`] the folders, sorted: directories, or what counts as such where there are only names with slashes. A link
    /// to one is none.
    pub folders: Vec<Name>,
}

impl Listing {
    /// These files, and no folders.
    pub fn of(files: Vec<Entry>) -> Self {
        Self::new(files, Vec::new())
    }

    /// These files and folders.
    pub fn new(mut files: Vec<Entry>, mut folders: Vec<Name>) -> Self {
        files.sort();
        folders.sort();
        Self { files, folders }
    }

    /// The part of all files of a place that lies below a folder: for stores whose folders are only names with slashes.
    pub fn below(all: Vec<Entry>, folder: Option<&Name>, depth: Depth) -> Self {
        let prefix = folder.map_or_else(String::new, |folder| format!("{folder}/"));
        let (mut files, mut folders) = (Vec::new(), BTreeSet::new());
        for entry in all {
            let Some(rest) = entry.name.as_str().strip_prefix(&*prefix) else { continue };
            match rest.split_once('/') {
                Some((folder, _)) if depth == Depth::One => {
                    folders.extend(Name::new(format!("{prefix}{folder}")));
                }
                _ => files.push(entry),
            }
        }
        Self::new(files, folders.into_iter().collect())
    }

    /// Names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|e| e.name.as_str())
    }

    /// Whether it has a file of that name.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|n| n == name)
    }

    /// Whether nothing lies there.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty()
    }
}

/// What a store knows of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// Its length.
    pub bytes: u64,
    /// When it last changed; `None` when the store can't tell.
    pub modified: Option<SystemTime>,
}

impl Head {
    /// Of a file of so many bytes.
    pub fn new(bytes: u64, modified: Option<SystemTime>) -> Self {
        Self { bytes, modified }
    }
}

/// A place that holds the files of one checkpoint.
///
/// # Contract
/// A place that does not exist is a place without files. A name is a file or it is not there; what a committed version
/// holds is seen wholly or not at all. When a future is ready, with success or failure, nothing that it was given is in use any
/// more. Implementations pass `testkit::store_contract`.
///
/// Futures may be polled by any executor. A store that needs a runtime brings one: its futures only wait for tasks there.
///
/// What is said of files in more ways than a store has to know stands in [`StoreExt`](crate::StoreExt).
///
/// # Cancellation
/// Every future may be dropped at any time. Bytes that are on their way then still land in their regions, which are owned,
/// and never elsewhere.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// The place, as a URL that opens it again.
    fn url(&self) -> String;

    /// What suits it.
    fn hints(&self) -> Hints;

    /// Exactly these bytes of a file.
    ///
    /// # Errors
    /// [`NotFound`](crate::StorageError::NotFound); [`Short`](crate::StorageError::Short) when the file ends earlier.
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes>;

    /// Many ranges at once, in the order asked, and what was read for them. Ranges that are near each other are read together;
    /// the gaps between them count as [`bytes_between`](ReadStats::bytes_between).
    ///
    /// # Errors
    /// As [`read`](Self::read); the error is that of one of the ranges.
    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, ReadStats)> {
        crate::record_read::reads::read_ranges(self, reads).await
    }

    /// Reads the wanted elements of records into their regions: nothing outside of a record but short gaps between small
    /// neighbours, no byte twice.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Check`](crate::StorageError::Check) when the bytes of a record are wrong, which then
    /// have landed all the same; [`Region`](crate::StorageError::Region) when a part does not fit its record or its region.
    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<ReadStats> {
        crate::record_read::reads::read_into(self, reads, progress).await
    }

    /// What lies in the place, or in a folder of it. Names are those in the place, whichever folder is asked for. A folder that is
    /// not there is empty.
    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing>;

    /// What is known of a file; `None` when there is none.
    async fn head(&self, name: &Name) -> Result<Option<Head>>;

    /// Removes files. One that is not there is no error.
    async fn remove(&self, names: &[Name]) -> Result<()>;

    /// The version that is there now, and stays what it is when another one is committed: a reader of it never sees bytes of
    /// both. When it is replaced, what was not read yet is [`NotFound`](crate::StorageError::NotFound). `None` when the store
    /// can't do that, or nothing is there.
    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// This place by what it really is, when its URL can come to mean another one: a symbolic link that somebody changes. What is
    /// read from the store that is returned, and staged in it, is of one place. `None` when the URL can only mean one.
    async fn resolved(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// The place that the same URL means as another kind: one file, or the files with a prefix. No I/O is done. `None` when the store
    /// has no such places.
    fn of_kind(&self, _kind: PlaceKind) -> Option<Arc<dyn Store>> {
        None
    }

    /// The open file, when it lies in a file system of this machine; a store that copies it may link it instead.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    async fn local_file(&self, _name: &Name) -> Result<Option<File>> {
        Ok(None)
    }

    /// Links among the files. None by default: most stores have no such thing.
    async fn links(&self) -> Result<Vec<Link>> {
        Ok(Vec::new())
    }

    /// Begins a new version of what lies at this place. Each version has another `attempt`: letters, digits, `-` and `_`. Other
    /// ranks that write the same version [`join`](Self::join).
    ///
    /// # Errors
    /// [`Exists`](crate::StorageError::Exists) when the place holds something and `if_exists` refuses that;
    /// [`Unsupported`](crate::StorageError::Unsupported) when it can't be replaced in one step.
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>>;

    /// Joins a version that another rank has begun, under the `attempt` and the [`Transaction::place`] of that rank. Nothing is made.
    /// By default it is begun again, which does for stores whose URL can only mean one place.
    ///
    /// # Errors
    /// [`NotJoined`](crate::StorageError::NotJoined) when this rank doesn't find it.
    async fn join(&self, attempt: &str, _place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.begin(attempt, IfExists::Replace([].into())).await
    }

    /// What repairs this place after a crash. `None` when a crash leaves nothing that has to be repaired, or that can be found.
    fn recovery(&self) -> Option<&dyn Recovery> {
        None
    }
}

/// A version of a place that nobody can see yet.
///
/// # Contract
/// Dropping a transaction removes nothing, because another rank may be about to commit what this one wrote: on failure somebody
/// calls [`rollback`](Self::rollback); what a killed process leaves shows in
/// [`Recovery::leftovers`].
#[async_trait]
pub trait Transaction: fmt::Debug + Send + Sync {
    /// Writes files of this rank. Many ranks and calls may write at once, files of different names. What is returned is in the order
    /// of what was given, files and extents alike, whichever threads wrote them.
    ///
    /// # Errors
    /// [`ExtentLength`](crate::StorageError::ExtentLength), [`Source`](crate::StorageError::Source), or what the operating
    /// system says. Names are given once: writing one again is [`Invalid`](crate::StorageError::Invalid).
    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>>;

    /// Where it is, for other ranks to [`join`](Store::join), when their URL may lead them elsewhere.
    fn place(&self) -> Option<String> {
        None
    }

    /// The one atomic step, called once, by one rank, after all ranks have written: the commit record, if the format has one, is
    /// written last; then all of it becomes visible, or nothing has changed. Before that it is looked whether each of `files`, which
    /// are those that all ranks have written, lies in the transaction with its length ([`Entry::check`]), so that nothing
    /// incomplete is committed, whatever has become of the files meanwhile.
    ///
    /// # Errors
    /// [`Incomplete`](crate::StorageError::Incomplete) when one of `files` is missing, or of another length.
    /// [`Exists`](crate::StorageError::Exists) when the place was filled meanwhile and `if_exists` refuses that;
    /// [`Changed`](crate::StorageError::Changed) when it was filled with something else than what was to be replaced, if the store
    /// can tell. Only after
    /// [`NotDurable`](crate::StorageError::NotDurable) and [`NotCarried`](crate::StorageError::NotCarried) the new version is
    /// visible all the same.
    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()>;

    /// What of this version lies there already, of all ranks, sorted by name: for going on after an interruption.
    async fn written(&self) -> Result<Vec<Entry>>;

    /// Removes what this attempt wrote, that of other ranks too. May be called again, by any rank; does nothing to what is
    /// committed.
    async fn rollback(&self) -> Result<()>;
}
