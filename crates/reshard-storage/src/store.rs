use crate::{
    DryTransaction, Durability, Entry, FileBody, Name, PlaceKind, Progress, RecordRead, Recovery,
    Result, Tags, Traffic, Written, is_attempt,
};
use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    ops::Range,
    sync::Arc,
    time::SystemTime,
};

/// The preferences of a store. These numbers are for tuning; they are no limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_setters::Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Hints {
    /// The best size of a single read or write, in bytes.
    pub part_size: u64,
    /// The best number of reads and writes at the same time.
    pub concurrency: usize,
    /// If the gap between two wanted ranges has at most so many bytes, it is better to read it than to skip it.
    pub coalesce_gap: u64,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            part_size: 8 << 20,
            concurrency: 8,
            coalesce_gap: 4 << 10,
        }
    }
}

impl Hints {
    /// Whether a request is dear: the store would rather read 64 KiB that nobody wants than make one more. Then readers look for few files,
    /// and read more with each request.
    pub fn requests_are_dear(&self) -> bool {
        self.coalesce_gap >= 64 << 10
    }
}

/// What to do if the place already holds something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IfExists {
    /// Fail, and change nothing.
    #[default]
    Refuse,
    /// Replace these files, which are the old version. They stay whole until the one step of the commit, and are then removed in this
    /// order. So put last what tells which files are of the old version: then what a killed process leaves can be told. All other files at the
    /// place stay, even those that come during the save. If a new file has the name of one of them, the
    /// place gets the new file. A store that keeps the other one elsewhere says so with
    /// [`NotCarried`](crate::StorageError::NotCarried). Only the rank that commits needs the names.
    Replace(Arc<[Name]>),
}

/// A link to a file or directory, among the files of a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Link {
    /// Its name.
    pub name: Name,
    /// Where it leads, as it is written there.
    pub target: String,
    /// Whether it leads to a file, which is then read under the name of the link. A link to a directory, or to nothing, is not
    /// followed.
    pub followed: bool,
}

/// How far a listing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only the folder itself.
    One,
    /// The folder and all folders below it.
    All,
}

/// The contents of a place, or of a folder in it. Names that [`Name`] refuses are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// Files, sorted by name.
    pub files: Vec<Entry>,
    /// With [`Depth::One`], the folders, sorted. These are directories, or prefixes of names if the store has only names with
    /// slashes. A link to a directory is no folder.
    pub folders: Vec<Name>,
    /// Everything else that takes a name where a file could be, and what it is: a link to nothing or to a directory, a named pipe, a
    /// socket, a device. With [`Depth::All`], directories that hold nothing, too. Only a store with such things lists them.
    pub others: BTreeMap<Name, &'static str>,
}

impl Listing {
    /// What it says of a directory in which nothing lies.
    pub const FOLDER: &'static str = "it is a directory";
    /// Describes a link to a directory among [`others`](Self::others).
    pub const LINKED_FOLDER: &'static str = "it is a link to a directory, which is not followed";

    /// These files, and no folders.
    pub fn of(files: Vec<Entry>) -> Self {
        Self::new(files, Vec::new())
    }

    /// These files and folders.
    pub fn new(mut files: Vec<Entry>, mut folders: Vec<Name>) -> Self {
        files.sort();
        folders.sort();
        Self {
            files,
            folders,
            others: BTreeMap::new(),
        }
    }

    /// The same, with names that are taken by something else than files.
    #[must_use]
    pub fn with_others(self, others: BTreeMap<Name, &'static str>) -> Self {
        Self { others, ..self }
    }

    /// Makes the listing of a folder from all files of a place. It is for stores whose folders are only names with slashes.
    pub fn below(all: Vec<Entry>, folder: Option<&Name>, depth: Depth) -> Self {
        let prefix = folder.map_or_else(String::new, |folder| format!("{folder}/"));
        let (mut files, mut folders) = (Vec::new(), BTreeSet::new());
        for entry in all {
            let Some(rest) = entry.name.as_str().strip_prefix(&*prefix) else {
                continue;
            };
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

    /// Whether something that is no file has this name.
    pub fn has_other(&self, name: &Name) -> bool {
        self.folders.contains(name) || self.others.contains_key(name)
    }

    /// Whether nothing lies there but what attempts have left in a store. That is in nobody's way.
    pub fn is_free(&self) -> bool {
        self.files.is_empty() && self.folders.iter().all(|name| is_attempt(name.as_str()))
    }

    /// Whether nothing lies there.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty()
    }
}

/// What a store knows about a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// Its length.
    pub bytes: u64,
    /// The time of its last change; `None` if the store does not know.
    pub modified: Option<SystemTime>,
}

impl Head {
    /// For a file of so many bytes.
    pub fn new(bytes: u64, modified: Option<SystemTime>) -> Self {
        Self { bytes, modified }
    }
}

/// A place that holds the files of one checkpoint.
///
/// # Contract
/// - A place that does not exist is a place without files.
/// - A committed version is visible as a whole or not at all.
/// - When a future is ready, with success or failure, the store no longer uses anything that it was given.
/// - Implementations pass `testkit::store_contract`.
///
/// Any executor may poll the futures. A store that needs a runtime brings its own, and its futures only wait for tasks there.
///
/// [`StoreExt`](crate::StoreExt) has more functions, which work with every store.
///
/// # Cancellation
/// Every future may be dropped at any time. A running read may then still write into its regions, which are owned, but never
/// elsewhere.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// The place, as a URL that opens it again.
    fn url(&self) -> String;

    /// What tells the place from all others, for a cache. It is more than the [`url`](Self::url) if settings beside the URL say where that leads, such as
    /// an endpoint or an account. It holds no secrets.
    fn identity(&self) -> String {
        self.url()
    }

    /// Its preferences.
    fn hints(&self) -> Hints;

    /// Reads exactly these bytes of a file.
    ///
    /// # Errors
    /// [`NotFound`](crate::StorageError::NotFound); [`Short`](crate::StorageError::Short) when the file ends earlier;
    /// [`Invalid`](crate::StorageError::Invalid) when the range ends before it starts.
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes>;

    /// Reads a file as a whole, if it has at most `max` bytes. `None` if there is no such file. Call it for a small file that may be
    /// missing: a store for which each request takes long needs only one.
    ///
    /// # Errors
    /// [`Longer`](crate::StorageError::Longer), before anything is read; otherwise as [`read`](Self::read).
    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        let Some(head) = self.head(name).await? else {
            return Ok(None);
        };
        if head.bytes > max {
            return Err(crate::StorageError::Longer {
                path: format!("{}/{name}", self.url()),
                size: head.bytes,
                max,
            });
        }
        self.read(name, 0..head.bytes).await.map(Some)
    }

    /// Reads many ranges. Returns them in the order of the call, with statistics. Neighbouring ranges are read together; the gaps
    /// between them count as [`beside`](Traffic::beside).
    ///
    /// # Errors
    /// As [`read`](Self::read), for one of the ranges.
    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, Traffic)> {
        crate::record_read::reads::read_ranges(self, reads).await
    }

    /// Reads the wanted elements of records into their regions. Outside the records it reads only short gaps between small
    /// neighbours. It reads no byte twice.
    ///
    /// # Errors
    /// As [`read`](Self::read). [`Check`](crate::StorageError::Check) if the bytes of a record are wrong; they are in their
    /// regions all the same. [`Region`](crate::StorageError::Region) if a part does not fit its record or its region.
    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        crate::record_read::reads::read_into(self, reads, progress).await
    }

    /// Lists the place, or a folder in it. Names are relative to the place, whichever folder is listed. A folder that does not
    /// exist is empty.
    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing>;

    /// What is known about a file; `None` if nothing has its name.
    ///
    /// # Errors
    /// [`NoFile`](crate::StorageError::NoFile) or [`LinkedDirectory`](crate::StorageError::LinkedDirectory) if something else has its name, in a
    /// store where that is possible. Callers must not take it for an absent file.
    async fn head(&self, name: &Name) -> Result<Option<Head>>;

    /// Removes files. It is no error if a file does not exist.
    async fn remove(&self, names: &[Name]) -> Result<()>;

    /// A store pinned to the current version. Its reader never sees bytes of a version that is committed later. If the pinned
    /// version is replaced or removed, files that are not read yet give [`Replaced`](crate::StorageError::Replaced), or
    /// [`NotFound`](crate::StorageError::NotFound) from a store that can't tell. `None` if the store can't pin, or if nothing is there.
    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// The resolved place. A URL can change its meaning, for example if somebody changes a symbolic link. All reads and writes
    /// through the returned store use one and the same place. `None` if the URL can mean only one place.
    async fn resolved(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// The place that the same URL means as another kind: one file, or the files with a prefix. It does no I/O. `None` if the
    /// store has no such places.
    fn of_kind(&self, _kind: PlaceKind) -> Option<Arc<dyn Store>> {
        None
    }

    /// The version of a file, and of others that the store learns with the same request. Which these are may differ from call to call ([`Tags::among`]). All later reads of these files through this store are of these
    /// versions; if a file was replaced, they give [`Replaced`](crate::StorageError::Replaced). `None` if the store can't promise that. Stores that
    /// are not [`pinned`](Self::pinned) can't.
    ///
    /// # Errors
    /// As [`read`](Self::read), but a missing file is no error.
    async fn tags(&self, _name: &Name) -> Result<Option<Tags>> {
        Ok(None)
    }

    /// The open file, if it is in a file system of this machine. Another store can then link it instead of copying it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    async fn local_file(&self, _name: &Name) -> Result<Option<File>> {
        Ok(None)
    }

    /// The links among the files. The default is empty, because most stores have no links.
    async fn links(&self) -> Result<Vec<Link>> {
        Ok(Vec::new())
    }

    /// Begins a new version of this place. Each version needs its own `attempt`, made of letters, digits, `-` and `_`. One rank
    /// begins it, once. The other ranks that write the same version [`join`](Self::join) it, and must not change `if_exists`.
    ///
    /// # Errors
    /// [`Exists`](crate::StorageError::Exists) if the place holds something and `if_exists` refuses that.
    /// [`Unsupported`](crate::StorageError::Unsupported) if it can't be replaced in one step. Neither leaves anything of the
    /// attempt.
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>>;

    /// Checks what [`begin`](Self::begin) checks, and returns a transaction that records the files of a save without writing them. Nothing
    /// is left at the place. The default begins a version and rolls it back.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        DryTransaction::in_place_of(self.begin(attempt, if_exists).await?).await
    }

    /// Joins a version that another rank has begun, with the `attempt` and the [`Transaction::place`] of that rank. It creates
    /// nothing, and it changes nothing of the version: files that are already written and the `if_exists` of
    /// [`begin`](Self::begin) stay. A joined transaction writes and rolls back; the rank that began the version commits it.
    ///
    /// # Errors
    /// [`NotJoined`](crate::StorageError::NotJoined) if this rank doesn't find the version.
    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>>;

    /// The repair functions of this place. `None` if a crash leaves nothing to repair, or nothing that can be found.
    fn recovery(&self) -> Option<&dyn Recovery> {
        None
    }
}

/// A new version of a place, which nobody can see yet. In a place that keeps versions [side by side](Self::folder) its files can be seen,
/// but no reader looks for them before the commit record names them.
///
/// # Contract
/// If you drop a transaction, nothing is removed, because another rank may be about to commit what this one wrote. After a
/// failure, call [`rollback`](Self::rollback). [`Recovery::leftovers`] lists what a killed process leaves.
#[async_trait]
pub trait Transaction: fmt::Debug + Send + Sync {
    /// Writes files of this rank. Many ranks and calls may write at the same time, but each file name only once. The results have
    /// the order of the arguments, both files and extents, whichever threads wrote them.
    ///
    /// # Errors
    /// [`ExtentLength`](crate::StorageError::ExtentLength), [`Source`](crate::StorageError::Source), or an error of the operating
    /// system. [`Invalid`](crate::StorageError::Invalid) if a name is written twice. Where versions lie side by side,
    /// [`Unsupported`](crate::StorageError::Unsupported) if something else has the name of a file outside of the folder, and
    /// [`Exists`](crate::StorageError::Exists) if another attempt has put the same bytes there since this one began: it may remove them.
    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>>;

    /// Reads exactly these bytes of a file that this rank has written, for a digest of whole files.
    ///
    /// # Errors
    /// [`NotFound`](crate::StorageError::NotFound); [`Short`](crate::StorageError::Short); by default
    /// [`Unsupported`](crate::StorageError::Unsupported).
    async fn read(&self, name: &Name, _range: Range<u64>) -> Result<Bytes> {
        Err(crate::StorageError::unsupported(
            format!("reading {name} before it is committed"),
            "this store can't do it",
        ))
    }

    /// Where it is, so that other ranks can [`join`](Store::join) it even if their URL leads elsewhere.
    fn place(&self) -> Option<String> {
        None
    }

    /// The folder that the data files of this version go into, if the place keeps versions side by side, as object stores do, where
    /// nothing can be renamed. A format names its data files so, and its commit record, which has the same name in all versions,
    /// tells which version counts. `None`: all names are free.
    fn folder(&self) -> Option<Name> {
        None
    }

    /// The one atomic step. One rank calls it once, after all ranks have written. `files` are the files that all ranks have
    /// written. First it checks that each of them is in the transaction with its length ([`Entry::check`]), so that no incomplete
    /// version is committed, even if somebody has changed files meanwhile. Then it writes the commit record, if the format has
    /// one. Then the whole version becomes visible, or nothing changes.
    ///
    /// # Errors
    /// [`Incomplete`](crate::StorageError::Incomplete) if one of `files` is missing, or has another length.
    /// [`Unsupported`](crate::StorageError::Unsupported) if there is no commit record, and the place keeps versions side by side.
    /// [`Exists`](crate::StorageError::Exists) if something came to the place meanwhile and `if_exists` refuses that.
    /// [`Changed`](crate::StorageError::Changed) if the place no longer holds the version to replace, and the store notices it.
    /// After [`NotDurable`](crate::StorageError::NotDurable) and [`NotCarried`](crate::StorageError::NotCarried), and only after
    /// these, the new version is visible in spite of the error.
    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()>;

    /// The files of this version, of all ranks, that are already written, sorted by name. Use it to continue after an interruption.
    async fn written(&self) -> Result<Vec<Entry>>;

    /// Removes what this attempt wrote, on all ranks. Any rank may call it, also several times. It does nothing to a committed
    /// version.
    async fn rollback(&self) -> Result<()>;
}
