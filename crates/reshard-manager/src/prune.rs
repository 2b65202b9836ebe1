//! Removes what saves have left behind.

use crate::versions::Versions;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reshard_megatron::METADATA_JSON;
use reshard_model::{ErrorKind, some};
use reshard_open::{
    Context, ErrorWith, Result,
    attempt::{folder_of, is_of_a_save},
    explained, is_no_folder,
    opened::{OpenOptions, Opened},
    outside::of_killed,
    replace::files_of,
    sha256,
    sidecar::Sidecar,
};
use reshard_storage::{
    Entry, Leftover, Name, PlaceKind, Progress, StorageError, Store, StoreExt, Stores,
    UnfinishedUpload,
};
use reshard_strategy::{
    BackendVersion, Damage, FileRole, Formats, ReadLimits, Registry, StrategyError,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::{Future, IntoFuture},
    io,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

const ACT: &str = "pruning";

/// By default, a save that has changed nothing for so long counts as dead.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// Removes what saves have left in a checkpoint's directory and beside it, or beside the one file that it is: files of an older save that the checkpoint does
/// not use, and the data of unfinished saves. Await the result, or set options on it first.
///
/// - It removes only files whose names the checkpoint's format gives. Files of other programs are listed and stay.
/// - It keeps what a save may still be writing, unless it is older than [`Prune::older_than`]: in the directory, files
///   that changed after the commit of the checkpoint; beside the directory, everything that an unfinished save wrote.
/// - A save that replaced an old version may have died before it removed that version. Then the old version is removed,
///   and files of other programs in it are moved back.
/// - A place that keeps versions side by side, as object stores do, keeps a replaced version until it is pruned, because somebody may read
///   it. The version that the commit record names stays. Of the others those go that are [older](Prune::older_than); their age counts
///   from the next version.
/// - Services keep the parts of uploads that were begun and not finished. Those of files in the place, whichever program began them, are aborted if
///   they were begun long enough ago. If there is no checkpoint, only those of saves are.
/// - A damaged checkpoint is left alone, because seemingly unused files may be all that is left of it. If there is no
///   checkpoint at all, the data of unfinished saves are still removed. In a place that keeps versions side by side these include
///   files outside of their folders, such as `common.pt`. A note in the folder names them. If anything else lies there, nothing is
///   removed, because it may be a checkpoint of a format that this program does not know.
///
/// You may kill it at any moment and call it again: it removes only what nobody reads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("step-1000");
/// # let url = path.display().to_string();
/// # let mut state = reshard::StateDict::new();
/// # state.insert("step", 1000);
/// # reshard::blocking::save(&state, &url)?;
/// # std::fs::write(path.join("__7_0.distcp"), "of an older save")?;
/// # std::fs::File::options().write(true).open(path.join("__7_0.distcp"))?.set_modified(std::time::UNIX_EPOCH)?;
/// let report = reshard::blocking::run(reshard_manager::prune(&url).dry_run(true))?;
/// assert_eq!(report.removed[0].path, "__7_0.distcp"); // it would be
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The place holds something that is no checkpoint, or a damaged one; another save finished meanwhile; a file system is
/// mounted in a leftover; I/O. [`PruneError::rest`] says what was removed before that.
pub fn prune(place: impl AsRef<std::path::Path>) -> Prune {
    Prune {
        url: reshard_open::place_text(place),
        dry_run: false,
        older_than: IDLE,
        open: OpenOptions::default(),
    }
}

/// A prune with its options; made by [`prune`].
#[derive(Debug, derive_setters::Setters)]
#[setters(generate = false)]
#[must_use = "nothing is pruned until this is awaited"]
pub struct Prune {
    url: String,
    /// Whether to remove nothing and only report.
    #[setters(generate)]
    dry_run: bool,
    /// How long a save must have changed nothing before its data are removed. The default is a day. With
    /// [`Duration::ZERO`] they are removed in any case: make sure that no save to this place is running.
    #[setters(generate)]
    older_than: Duration,
    open: OpenOptions,
}

/// What was removed, and what stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// What was removed, or what would be removed without `dry_run`.
    pub removed: Vec<Remains>,
    /// Leftovers that stay, and why.
    pub kept: Vec<(Remains, Kept)>,
    /// Files in the directory that do not belong to the checkpoint.
    pub foreign: Vec<Entry>,
}

/// One line: `removed 3 leftovers (1200 bytes), kept 1; not of the checkpoint: 2 files`.
impl fmt::Display for PruneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.removed.iter().map(|remains| remains.bytes).sum();
        let removed = some(self.removed.len() as u64, "leftover");
        write!(f, "removed {removed} ({bytes} bytes)")?;
        if !self.kept.is_empty() {
            write!(f, ", kept {}", self.kept.len())?;
        }
        match self.foreign.len() {
            0 => Ok(()),
            n => write!(f, "; not of the checkpoint: {}", some(n as u64, "file")),
        }
    }
}

/// The error of a prune, with what was removed before it. Another call goes on.
pub type PruneError = ErrorWith<PruneReport>;

/// What was done, and whether that is all.
type Pruned = (PruneReport, Result<(), StrategyError>);

/// A leftover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remains {
    /// Where it is: a name in the checkpoint's directory, or a path or URL beside this directory.
    pub path: String,
    /// Its kind.
    pub kind: RemainsKind,
    /// Its size in bytes; 0 for an upload.
    pub bytes: u64,
    /// For how long nothing in it has changed, or since when an upload runs, if the store can tell.
    pub age: Option<Duration>,
}

/// The origin of a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RemainsKind {
    /// A file of an older save, in which no item lies.
    File,
    /// Data of a save that was not committed.
    Unfinished,
    /// A version that a save replaced but did not remove.
    Replaced,
    /// A version whose removal was begun and not finished. No other version has replaced it.
    Removed,
    /// A version in a place that keeps versions side by side, which the commit record does not name: it was replaced, or never finished.
    Version,
    /// An upload that was begun and not finished. Its parts take space, and no service says how much.
    Upload,
}

/// Why a leftover stays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// It changed recently, so a save may be running.
    Recent,
    /// The same directory has a rank-local save that is newer than the checkpoint. Nobody can tell which file belongs to
    /// which.
    Disputed,
    /// There is no checkpoint at the place, and this is the last one that it held.
    Last,
    /// It could not be examined, or files in it could not be moved back. The text says why.
    Stuck(String),
}

impl Prune {
    reshard_open::open_options!(open);

    async fn run(self) -> Result<PruneReport, PruneError> {
        let (url, how) = (self.url.clone(), self.open.clone());
        let (report, outcome) = self
            .prune()
            .await
            .unwrap_or_else(|e| (PruneReport::default(), Err(e)));
        match outcome.during(ACT, &url) {
            Ok(()) => Ok(report),
            Err(error) => {
                let error = explained(&how, &url, error).await;
                Err(PruneError::new(error, report))
            }
        }
    }

    async fn prune(mut self) -> Result<Pruned, StrategyError> {
        // Errors of linked strategies and stores come before any look at the place.
        let registry = self.open.strategies()?.into_owned();
        let formats = Formats::of(&registry)?;
        self.open.registry = Some(registry);
        let asked = self.open.store_at(&self.url)?;
        let (place, kind) = place(&asked).await?;
        // If somebody changes a link meanwhile, it must not lead to another place.
        let place = place.resolved().await?.unwrap_or(place);
        // Files are removed from the directory in which they were found, even if another one takes its place.
        let held = place.pinned().await?.unwrap_or_else(|| Arc::clone(&place));
        let records_then = records(&held, kind, &formats).await?;
        let leftovers = left_by_saves(&place).await?;
        let mut plan = Plan::new(self.older_than);
        let uploads = plan.unfinished_uploads(&place).await?;
        // A save of one file copies it from the folder of its attempt to the place itself. If it was killed meanwhile, the folder is there, too.
        let is_of_a_save = |upload: &UnfinishedUpload| match upload.path == place.url() {
            true => !leftovers.is_empty(),
            false => folder_of(&upload.name).is_some(),
        };
        let is_clean = leftovers.is_empty() && !uploads.iter().any(is_of_a_save);
        let files = if is_clean {
            Vec::new()
        } else {
            held.files().await?
        };
        let mut versions = Versions::among(&leftovers, &files);
        let mut is_there = is_clean || files.iter().any(|f| !versions.have(&f.name));
        if is_there {
            // A file that is held is the one in the folder, unless somebody replaces it meanwhile.
            let store = if kind == PlaceKind::File {
                &asked
            } else {
                &held
            };
            match self.sound(store).await {
                Ok(opened) => {
                    // Files with a prefix are in the folder above.
                    let store = match opened.kind {
                        PlaceKind::Prefix => &opened.store,
                        _ => &held,
                    };
                    match (kind, &records_then[..]) {
                        (PlaceKind::File, [file, ..]) => plan.committed = file.modified,
                        _ => plan.files(store, &opened, &versions, &formats).await?,
                    }
                    versions.live = opened
                        .item_files()
                        .iter()
                        .filter_map(folder_of)
                        .map(Into::into)
                        .collect();
                }
                Err(e) => {
                    plan.killed(&held, (&files, &leftovers), &versions, e)
                        .await?;
                    is_there = false;
                }
            }
        }
        for upload in uploads {
            // Without a checkpoint nobody knows whose place it is.
            if is_there || is_of_a_save(&upload) {
                plan.upload(upload);
            }
        }
        self.plan_leftovers(&mut plan, leftovers, (&versions, &formats), is_there)
            .await;
        if self.dry_run {
            return Ok((plan.report(), Ok(())));
        }
        // A save that finished meanwhile has put another directory there, and knows better what it needs.
        let now = place
            .resolved()
            .await?
            .unwrap_or_else(|| Arc::clone(&place));
        if records(&now, kind, &formats).await? != records_then {
            let source = io::Error::new(
                io::ErrorKind::ResourceBusy,
                "somebody has saved to it meanwhile; try again",
            );
            return Err(StorageError::io("prune", &self.url, source).into());
        }
        Ok(plan.carry_out(&held, &place).await)
    }

    /// Plans which leftovers of saves go.
    async fn plan_leftovers(
        &self,
        plan: &mut Plan,
        leftovers: Vec<Leftover>,
        (versions, formats): (&Versions, &Formats),
        is_there: bool,
    ) {
        for left in leftovers {
            match left.replaced {
                _ if versions.live.contains(&left.attempt) => {}
                _ if versions.folders.contains(&left.attempt) => {
                    let next = versions.next(&left);
                    plan.version(left, next);
                }
                false => plan.unfinished(left),
                true if left.removed => match self.replaced(&left, formats).await {
                    Ok((files, _)) => plan.removed(left, files),
                    Err(e) => plan.keep(remains(&left), Kept::Stuck(e.to_string())),
                },
                true if !is_there => plan.keep(remains(&left), Kept::Last),
                true => match self.replaced(&left, formats).await {
                    Ok((files, modified)) => plan.replaced(left, files, modified),
                    Err(e) => plan.keep(remains(&left), Kept::Stuck(e.to_string())),
                },
            }
        }
    }

    /// Opens the checkpoint if a quick check finds no damage.
    async fn sound(&self, store: &Arc<dyn Store>) -> Result<Opened, StrategyError> {
        let opened = self.open.open_store(Arc::clone(store)).await?;
        let found = opened.reader.verify(false, &Progress::default()).await?;
        match opened.common().await {
            // It is whole, but this program can't decode all of it.
            Err(e) if e.kind() == ErrorKind::Unsupported => {}
            common => drop(common?),
        }
        let name = |d: &Damage| d.key.as_ref().map(|k| format!("{k}: ")).unwrap_or_default();
        if let Some(d) = found.damage.into_iter().next() {
            let what = format!(
                "{}{}; nothing of a damaged checkpoint is removed",
                name(&d),
                d.what
            );
            return Err(StrategyError::corrupt(
                d.file.unwrap_or_else(|| self.url.clone()),
                d.offset,
                what,
            ));
        }
        if let Some(d) = found.not_understood.first() {
            let what = format!(
                "pruning a checkpoint that is not understood as a whole ({}{})",
                name(d),
                d.what
            );
            return Err(StrategyError::Unsupported {
                strategy: opened.name.to_string(),
                what,
            });
        }
        match found.unchecked.first() {
            Some(d) => {
                let source = io::Error::other(format!("{}{}", name(d), d.what));
                Err(StorageError::io("check", &self.url, source).into())
            }
            None => Ok(opened),
        }
    }

    /// The files of a replaced version, and when the last of them changed.
    async fn replaced(
        &self,
        left: &Leftover,
        formats: &Formats,
    ) -> Result<(Vec<Name>, Option<SystemTime>), StrategyError> {
        let store = self.open.store_at(&left.path)?;
        let store = store.resolved().await?.unwrap_or(store);
        let files = files_of(&store, &self.open, store.files().await?, formats)
            .await?
            .files;
        let mut modified = None;
        for name in &files {
            modified = modified.max(store.modified(name).await?);
        }
        Ok((files, modified))
    }
}

impl IntoFuture for Prune {
    type Output = Result<PruneReport, PruneError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The place that a URL means: a folder, or the one file that lies there.
async fn place(asked: &Arc<dyn Store>) -> Result<(Arc<dyn Store>, PlaceKind), StrategyError> {
    // If it can't be opened, the error is the one that every reader gives.
    let e = match asked.pinned().await.map_err(StrategyError::from) {
        Ok(_) => return Ok((Arc::clone(asked), PlaceKind::Folder)),
        Err(e) => e,
    };
    match asked.of_kind(PlaceKind::File).filter(|_| is_no_folder(&e)) {
        Some(file) if !file.top().await?.is_empty() => Ok((file, PlaceKind::File)),
        _ => Err(e),
    }
}

async fn left_by_saves(place: &Arc<dyn Store>) -> Result<Vec<Leftover>, StrategyError> {
    let mut all = place.leftovers().await?;
    all.retain(is_of_a_save);
    Ok(all)
}

/// A file that commits a checkpoint, as it was at one time.
#[derive(PartialEq, Eq)]
struct Record {
    file: Entry,
    modified: Option<SystemTime>,
    /// Only if the store gives no times.
    sha256: Option<String>,
}

/// One file is its own record.
async fn records(
    store: &Arc<dyn Store>,
    kind: PlaceKind,
    formats: &Formats,
) -> Result<Vec<Record>, StrategyError> {
    // A wrong sidecar does no harm: at worst one more file is checked.
    let noted = Sidecar::any(store)
        .await
        .map_or_else(Vec::new, |s| s.names());
    let mut out = Vec::new();
    for file in store.top().await?.files {
        if kind == PlaceKind::File
            || is_record(&file.name, &noted, formats)
            || file.name.as_str() == METADATA_JSON
        {
            let modified = store.modified(&file.name).await?;
            let sha256 = if modified.is_none() {
                sha256(store, &file.name, formats).await?
            } else {
                None
            };
            out.push(Record {
                file,
                modified,
                sha256,
            });
        }
    }
    Ok(out)
}

/// Whether a file is a format record, which is written after everything that it describes.
fn is_record(name: &Name, noted: &[String], formats: &Formats) -> bool {
    formats.of_record(name.as_str()).is_some() || noted.iter().any(|n| n == name.as_str())
}

fn remains(left: &Leftover) -> Remains {
    let kind = match left {
        Leftover { removed: true, .. } => RemainsKind::Removed,
        Leftover { replaced: true, .. } => RemainsKind::Replaced,
        _ => RemainsKind::Unfinished,
    };
    remains_of(left, kind)
}

fn remains_of(left: &Leftover, kind: RemainsKind) -> Remains {
    Remains {
        bytes: left.bytes,
        ..remains_at(left.path.clone(), kind, left.modified)
    }
}

fn remains_at(path: String, kind: RemainsKind, since: Option<SystemTime>) -> Remains {
    let age = since.and_then(|m| SystemTime::now().duration_since(m).ok());
    Remains {
        path,
        kind,
        bytes: 0,
        age,
    }
}

/// What to remove, and what to keep.
struct Plan {
    now: SystemTime,
    older_than: Duration,
    /// When the checkpoint was committed.
    committed: Option<SystemTime>,
    /// When the attempts that wrote outside of their folders did that last.
    last: BTreeMap<String, Option<SystemTime>>,
    removals: Vec<(Remains, Removal)>,
    report: PruneReport,
}

enum Removal {
    /// A file of this store, as it was at that time.
    File(Arc<dyn Store>, Name, Option<SystemTime>),
    Unfinished(Leftover),
    Replaced(Leftover, Vec<Name>),
    Upload(UnfinishedUpload),
}

impl Plan {
    fn new(older_than: Duration) -> Self {
        let (now, report) = (SystemTime::now(), PruneReport::default());
        Self {
            now,
            older_than,
            committed: None,
            last: BTreeMap::new(),
            removals: Vec::new(),
            report,
        }
    }

    fn keep(&mut self, what: Remains, why: Kept) {
        self.report.kept.push((what, why));
    }

    fn remove_or_keep(&mut self, what: Remains, removal: Removal, settled: bool) {
        match settled {
            true => self.removals.push((what, removal)),
            false => self.keep(what, Kept::Recent),
        }
    }

    fn age(&self, modified: Option<SystemTime>) -> Option<Duration> {
        // A time in the future counts as new.
        modified.map(|m| self.now.duration_since(m).unwrap_or_default())
    }

    fn is_old(&self, modified: Option<SystemTime>) -> bool {
        self.older_than.is_zero() || self.age(modified).is_some_and(|a| a >= self.older_than)
    }

    /// A file from before the commit belongs to an earlier save. A later file may belong to a running save.
    fn is_settled(&self, modified: Option<SystemTime>) -> bool {
        modified.is_some_and(|m| self.committed.is_some_and(|c| m < c)) || self.is_old(modified)
    }

    async fn files(
        &mut self,
        store: &Arc<dyn Store>,
        opened: &Opened,
        versions: &Versions,
        formats: &Formats,
    ) -> Result<(), StrategyError> {
        let (sidecar, _) = opened.sidecar().await;
        let noted = sidecar.map_or_else(Vec::new, |s| s.names());
        let (mut left, mut disputed) = (Vec::new(), false);
        let mut records = Vec::new();
        for (file, role) in opened.roles().await? {
            // A version goes or stays as a whole.
            if versions.have(&file.name) {
                continue;
            }
            match role {
                FileRole::Part if is_record(&file.name, &noted, formats) => {
                    records.push(store.modified(&file.name).await?);
                }
                FileRole::Leftover | FileRole::Record => {
                    left.push((store.modified(&file.name).await?, role, file));
                }
                FileRole::Foreign => self.report.foreign.push(file),
                _ => {}
            }
        }
        // The earliest time; `None` if one of the times is unknown.
        self.committed = records.into_iter().min().flatten();
        for (modified, role, _) in &left {
            disputed |= *role == FileRole::Record
                && modified.is_none_or(|m| self.committed.is_none_or(|c| m >= c));
        }
        for (modified, _, file) in left {
            let (path, age) = (file.name.to_string(), self.age(modified));
            let what = Remains {
                path,
                kind: RemainsKind::File,
                bytes: file.bytes,
                age,
            };
            match disputed {
                true => self.keep(what, Kept::Disputed),
                false => self.remove_or_keep(
                    what,
                    Removal::File(Arc::clone(store), file.name, modified),
                    self.is_settled(modified),
                ),
            }
        }
        Ok(())
    }

    /// What was uploaded to the place and not finished. If the service does not let anybody look, the report says so.
    async fn unfinished_uploads(
        &mut self,
        place: &Arc<dyn Store>,
    ) -> Result<Vec<UnfinishedUpload>, StrategyError> {
        match place.unfinished_uploads().await {
            Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported) => {
                let what = remains_at(place.url(), RemainsKind::Upload, None);
                self.keep(what, Kept::Stuck(e.to_string()));
                Ok(Vec::new())
            }
            listed => Ok(listed?),
        }
    }

    fn upload(&mut self, upload: UnfinishedUpload) {
        let settled = self.is_old(upload.began);
        let what = remains_at(upload.path.clone(), RemainsKind::Upload, upload.began);
        self.remove_or_keep(what, Removal::Upload(upload), settled);
    }

    /// What killed attempts have left in a place that has no checkpoint, which is what `e` says. All of it goes, or what is
    /// young stays.
    ///
    /// # Errors
    /// `e`, unless the attempts have noted all that lies there: otherwise it may be a checkpoint that this program does not know.
    async fn killed(
        &mut self,
        store: &Arc<dyn Store>,
        (files, leftovers): (&[Entry], &[Leftover]),
        versions: &Versions,
        e: StrategyError,
    ) -> Result<(), StrategyError> {
        if e.kind() != ErrorKind::NotFound || leftovers.is_empty() {
            return Err(e);
        }
        let Some(mut noted) = of_killed(store, files, &versions.folders).await? else {
            return Err(e);
        };
        let (mut old, mut young) = (BTreeMap::new(), BTreeSet::new());
        for left in leftovers {
            let outside = noted.remove(&left.attempt).unwrap_or_default();
            let names = outside.iter().map(|file| file.name.clone());
            let times = stream::iter(names.collect::<Vec<_>>());
            let times = times.map(|name| async move { store.modified(&name).await });
            let times = times.buffered(store.hints().concurrency.max(1));
            let times: Vec<Option<SystemTime>> = times.try_collect().await?;
            // It is as young as the last file that it wrote, wherever that lies.
            let last = match times.contains(&None) {
                true => Some(self.now),
                false => times.iter().copied().max().flatten().max(left.modified),
            };
            let is_old = self.is_old(last);
            self.last.insert(left.attempt.clone(), last);
            for (file, modified) in outside.into_iter().zip(times) {
                match is_old {
                    true => drop(old.insert(file.name.clone(), (file, modified))),
                    false => drop(young.insert(file.name)),
                }
            }
        }
        old.retain(|name, _| !young.contains(name));
        for (name, (file, modified)) in old {
            let what = Remains {
                path: name.to_string(),
                kind: RemainsKind::Unfinished,
                bytes: file.bytes,
                age: self.age(modified),
            };
            let removal = Removal::File(Arc::clone(store), name, modified);
            self.removals.push((what, removal));
        }
        Ok(())
    }

    fn unfinished(&mut self, left: Leftover) {
        let settled = self.is_old(left.modified);
        self.remove_or_keep(remains(&left), Removal::Unfinished(left), settled);
    }

    fn version(&mut self, left: Leftover, next: Option<SystemTime>) {
        let last = self.last.get(&left.attempt).copied().flatten();
        let replaced = next.or(self.committed);
        let settled = self.is_old(left.modified.max(replaced).max(last));
        let what = remains_of(&left, RemainsKind::Version);
        self.remove_or_keep(what, Removal::Unfinished(left), settled);
    }

    fn replaced(&mut self, left: Leftover, files: Vec<Name>, modified: Option<SystemTime>) {
        // It is older than the version that replaced it, unless somebody has changed it since.
        let settled = files.is_empty() || self.is_settled(modified);
        self.remove_or_keep(remains(&left), Removal::Replaced(left, files), settled);
    }

    fn removed(&mut self, left: Leftover, files: Vec<Name>) {
        // Whoever removes it may still be at work.
        let settled = files.is_empty() || self.is_old(left.modified);
        self.remove_or_keep(remains(&left), Removal::Replaced(left, files), settled);
    }

    fn report(mut self) -> PruneReport {
        self.report.removed = self.removals.into_iter().map(|(what, _)| what).collect();
        self.report
    }

    /// If a removal fails, the rest is not tried, and the report says what is gone by then.
    async fn carry_out(mut self, held: &Arc<dyn Store>, place: &Arc<dyn Store>) -> Pruned {
        let now: BTreeSet<Leftover> = match left_by_saves(place).await {
            Ok(now) => now.into_iter().collect(),
            Err(e) => return (self.report, Err(e)),
        };
        for (what, removal) in std::mem::take(&mut self.removals) {
            match remove(removal, &now, held, place).await {
                Ok(true) => self.report.removed.push(what),
                Ok(false) => self.keep(what, Kept::Recent),
                Err(e @ StorageError::NotCarried { .. }) => {
                    self.keep(what, Kept::Stuck(e.to_string()))
                }
                Err(e) => return (self.report, Err(e.into())),
            }
        }
        (self.report, Ok(()))
    }
}

/// Removes one leftover. `false` if it changed since the check, so somebody is working on it.
async fn remove(
    removal: Removal,
    now: &BTreeSet<Leftover>,
    held: &Arc<dyn Store>,
    place: &Arc<dyn Store>,
) -> Result<bool, StorageError> {
    match removal {
        Removal::File(store, name, then) if store.modified(&name).await? == then => {
            store.remove(&[name]).await?
        }
        Removal::Unfinished(left) if now.contains(&left) => {
            // If there is no folder, it may be a save of files with a prefix, which has put some of them in their place already. They are
            // links to those of the leftover, so nobody else's are taken for them.
            let is_folder = !held.files().await?.is_empty();
            match place.of_kind(PlaceKind::Prefix).filter(|_| !is_folder) {
                Some(files) => files.remove_leftover(&left).await?,
                None => place.remove_leftover(&left).await?,
            }
        }
        Removal::Replaced(left, files) if now.contains(&left) => {
            place.finish_replacing(&left, &files).await?;
        }
        Removal::Upload(upload) => place.abort_upload(&upload).await?,
        _ => return Ok(false),
    }
    Ok(true)
}
