//! Removing what saves have left behind.

use crate::{
    Result,
    attempt::is_of_a_save,
    control::sha256,
    error::Context,
    formats::Formats,
    opened::{HowToOpen, Opened},
    replace::files_of,
    sidecar::Sidecar,
};
use reshard_megatron::METADATA_JSON;
use reshard_storage::{Entry, Leftover, Name, Progress, StorageError, Store, StoreExt, Stores};
use reshard_strategy::{BackendVersion, Damage, FileRole, ReadLimits, Registry, StrategyError};
use std::{
    future::{Future, IntoFuture},
    io,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

const ACT: &str = "pruning";

/// A save that has changed nothing for so long is not at work any more, unless you say otherwise.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// Removes what saves have left at a place and beside it: files of an older save in which no item of the checkpoint lies, and
/// what saves wrote that were never finished. Await it, or set options first.
///
/// - Only what the checkpoint's format calls its own goes; files of others are listed and stay.
/// - What a save may still be writing stays: in the directory, files that changed after the checkpoint was committed; beside
///   it, all that an unfinished save wrote; each unless it is older than [`Prune::older_than`].
/// - A version that was replaced by a save that died before it had tidied up is removed, and the files of others in it are put
///   where they were.
/// - A damaged checkpoint is not touched, since what nobody needs may be what is left of it. Where nothing lies, what
///   unfinished saves left beside the place goes all the same.
///
/// It may be killed at any moment, and called again: what it removes nobody reads.
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
/// let report = reshard::blocking::run(reshard::prune(&url).dry_run(true))?;
/// assert_eq!(report.removed[0].path, "__7_0.distcp"); // it would be
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What lies there is no checkpoint, or damaged; somebody saved meanwhile; I/O.
pub fn prune(url: &str) -> Prune<'_> {
    Prune { url, dry_run: false, older_than: IDLE, how: HowToOpen::default() }
}

/// A pruning that is being set up; made by [`prune`].
#[derive(Debug)]
#[must_use = "nothing is pruned until this is awaited"]
pub struct Prune<'a> {
    url: &'a str,
    dry_run: bool,
    older_than: Duration,
    how: HowToOpen,
}

/// What was removed, and what stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// What was removed, or would be if it were no dry run.
    pub removed: Vec<Remains>,
    /// What is left over and stays, and why.
    pub kept: Vec<(Remains, Kept)>,
    /// Files in the directory that are not of the checkpoint.
    pub foreign: Vec<Entry>,
}

/// Something that is left over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remains {
    /// Where it lies: a name in the checkpoint's directory, or a path or URL beside it.
    pub path: String,
    /// Of which kind.
    pub kind: RemainsKind,
    /// Its bytes.
    pub bytes: u64,
    /// For how long nothing in it has changed, if the store can tell.
    pub age: Option<Duration>,
}

/// Where something comes from that is left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemainsKind {
    /// A file of an older save, in which no item lies.
    File,
    /// What a save wrote that was not committed.
    Unfinished,
    /// The version that a save replaced, and could not remove any more.
    Replaced,
}

/// Why something that is left over stays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// It changed lately; a save may be at work.
    Recent,
    /// A rank-local save that came later than the checkpoint lies in the same directory; nobody can tell what is whose.
    Disputed,
    /// No checkpoint lies at the place: this is what it held last.
    Last,
    /// What could not be put back where it was, and why.
    Stuck(String),
}

impl<'a> Prune<'a> {
    /// Whether to remove nothing, and only tell.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// For how long a save must have changed nothing before what it wrote is removed; a day by default. With
    /// [`Duration::ZERO`] it goes in any case: be sure that no save to this place is at work.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// The format, where it is not to be told by the files.
    pub fn format(mut self, format: BackendVersion) -> Self {
        self.how.format = Some(format);
        self
    }

    /// Strategies to find the checkpoint's in.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.how.registry = Some(registry);
        self
    }

    /// How much the checkpoint may ask for; see there.
    pub fn limits(mut self, limits: ReadLimits) -> Self {
        self.how.limits = limits;
        self
    }

    /// Stores to find the URL's in.
    pub fn stores(mut self, stores: Stores) -> Self {
        self.how.stores = Some(stores);
        self
    }

    async fn run(self) -> Result<PruneReport> {
        let url = self.url;
        self.prune().await.during(ACT, url)
    }

    async fn prune(mut self) -> Result<PruneReport, StrategyError> {
        // What is wrong with the linked ones is told before anything is looked at.
        let registry = match self.how.registry.take() {
            Some(r) => r,
            None => Registry::linked()?,
        };
        let formats = Formats::of(&registry)?;
        self.how.registry = Some(registry);
        let place = self.how.store(self.url)?;
        // What can't be opened is told as by every reader.
        drop(place.pinned().await?);
        // A link that is changed meanwhile must not lead to another place.
        let place = place.resolved().await?.unwrap_or(place);
        // What is found is removed from the directory in which it was found, whatever comes to its place.
        let held = place.pinned().await?.unwrap_or_else(|| Arc::clone(&place));
        let records_then = records(&held, &formats).await?;
        let leftovers = left_by_saves(&place).await?;
        let mut plan = Plan::new(self.older_than);
        let is_there = leftovers.is_empty() || !held.files().await?.is_empty();
        if is_there {
            let opened = self.sound(&held).await?;
            plan.files(&held, opened.roles().await?, &formats).await?;
        }
        for left in leftovers {
            match left.replaced {
                false => plan.unfinished(left),
                true if !is_there => plan.keep(remains(&left), Kept::Last),
                true => match self.replaced(&left, &formats).await {
                    Ok((files, modified)) => plan.replaced(left, files, modified),
                    Err(e) => plan.keep(remains(&left), Kept::Stuck(e.to_string())),
                },
            }
        }
        if self.dry_run {
            return Ok(plan.report());
        }
        // A save that is done meanwhile knows better what it needs. What it has put there is another directory.
        let now = place.resolved().await?.unwrap_or_else(|| Arc::clone(&place));
        if records(&now, &formats).await? != records_then {
            let source = io::Error::new(io::ErrorKind::ResourceBusy, "somebody saved to it meanwhile");
            return Err(StorageError::io("prune", self.url, source).into());
        }
        plan.carry_out(&held, &place).await
    }

    /// Opens what is not damaged, as far as a quick look tells.
    async fn sound(&self, store: &Arc<dyn Store>) -> Result<Opened, StrategyError> {
        let opened = self.how.open_store(Arc::clone(store)).await?;
        let found = opened.reader.verify(false, &Progress::default()).await?;
        match opened.common().await {
            // Whole, and more than this program decodes.
            Err(e) if e.kind() == reshard_model::ErrorKind::Unsupported => {}
            common => drop(common?),
        }
        let name = |d: &Damage| d.key.as_ref().map(|k| format!("{k}: ")).unwrap_or_default();
        if let Some(d) = found.damage.into_iter().next() {
            let what = format!("{}{}; nothing of a damaged checkpoint is removed", name(&d), d.what);
            return Err(StrategyError::corrupt(d.file.unwrap_or_else(|| self.url.into()), d.offset, what));
        }
        if let Some(d) = found.not_understood.first() {
            let what = format!("pruning a checkpoint of which not all is understood ({}{})", name(d), d.what);
            return Err(StrategyError::Unsupported { strategy: opened.name.to_string(), what });
        }
        match found.unchecked.first() {
            Some(d) => {
                let source = io::Error::other(format!("{}{}", name(d), d.what));
                Err(StorageError::io("check", self.url, source).into())
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
        let store = self.how.store(&left.path)?;
        let store = store.resolved().await?.unwrap_or(store);
        let files = files_of(&store, &self.how, store.files().await?, formats).await?.files;
        let mut modified = None;
        for name in &files {
            modified = modified.max(store.modified(name).await?);
        }
        Ok((files, modified))
    }
}

impl<'a> IntoFuture for Prune<'a> {
    type Output = Result<PruneReport>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
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
    /// Where the store tells no times.
    sha256: Option<String>,
}

async fn records(store: &Arc<dyn Store>, formats: &Formats) -> Result<Vec<Record>, StrategyError> {
    // Whether the sidecar is right doesn't matter: at worst a file more is looked at.
    let commit = Sidecar::any(store).await.map(|s| s.commit.file);
    let mut out = Vec::new();
    for file in store.top().await?.files {
        if is_record(&file.name, commit.as_deref(), formats) || file.name.as_str() == METADATA_JSON {
            let modified = store.modified(&file.name).await?;
            let sha256 = if modified.is_none() { sha256(store, &file.name, formats).await? } else { None };
            out.push(Record { file, modified, sha256 });
        }
    }
    Ok(out)
}

/// Whether a file is written last, when all that it tells of is.
fn is_record(name: &Name, commit: Option<&str>, formats: &Formats) -> bool {
    formats.of_record(name.as_str()).is_some() || commit == Some(name.as_str())
}

fn remains(left: &Leftover) -> Remains {
    let kind = if left.replaced { RemainsKind::Replaced } else { RemainsKind::Unfinished };
    let age = left.modified.and_then(|m| SystemTime::now().duration_since(m).ok());
    Remains { path: left.path.clone(), kind, bytes: left.bytes, age }
}

/// What is to go, and what stays.
struct Plan {
    now: SystemTime,
    older_than: Duration,
    /// When the checkpoint was committed.
    committed: Option<SystemTime>,
    removals: Vec<(Remains, Removal)>,
    report: PruneReport,
}

enum Removal {
    File(Name, Option<SystemTime>),
    Unfinished(Leftover),
    Replaced(Leftover, Vec<Name>),
}

impl Plan {
    fn new(older_than: Duration) -> Self {
        let (now, report) = (SystemTime::now(), PruneReport::default());
        Self { now, older_than, committed: None, removals: Vec::new(), report }
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
        // What is from the future is new.
        modified.map(|m| self.now.duration_since(m).unwrap_or_default())
    }

    fn is_old(&self, modified: Option<SystemTime>) -> bool {
        self.older_than.is_zero() || self.age(modified).is_some_and(|a| a >= self.older_than)
    }

    /// What was there before the checkpoint was committed is of an earlier save, and what is later may be of one at work.
    fn is_settled(&self, modified: Option<SystemTime>) -> bool {
        modified.is_some_and(|m| self.committed.is_some_and(|c| m < c)) || self.is_old(modified)
    }

    async fn files(
        &mut self,
        store: &Arc<dyn Store>,
        roles: Vec<(Entry, FileRole)>,
        formats: &Formats,
    ) -> Result<(), StrategyError> {
        let commit = Sidecar::read(store, formats).await.0.map(|s| s.commit.file);
        let (mut left, mut disputed) = (Vec::new(), false);
        let mut records = Vec::new();
        for (file, role) in roles {
            match role {
                FileRole::Part if is_record(&file.name, commit.as_deref(), formats) => {
                    records.push(store.modified(&file.name).await?);
                }
                FileRole::Leftover | FileRole::Record => {
                    left.push((store.modified(&file.name).await?, role, file));
                }
                FileRole::Foreign => self.report.foreign.push(file),
                _ => {}
            }
        }
        // The first of them, and none when the time of one is not known.
        self.committed = records.into_iter().min().flatten();
        for (modified, role, _) in &left {
            disputed |=
                *role == FileRole::Record && modified.is_none_or(|m| self.committed.is_none_or(|c| m >= c));
        }
        for (modified, _, file) in left {
            let (path, age) = (file.name.to_string(), self.age(modified));
            let what = Remains { path, kind: RemainsKind::File, bytes: file.bytes, age };
            match disputed {
                true => self.keep(what, Kept::Disputed),
                false => {
                    self.remove_or_keep(what, Removal::File(file.name, modified), self.is_settled(modified))
                }
            }
        }
        Ok(())
    }

    fn unfinished(&mut self, left: Leftover) {
        let settled = self.is_old(left.modified);
        self.remove_or_keep(remains(&left), Removal::Unfinished(left), settled);
    }

    fn replaced(&mut self, left: Leftover, files: Vec<Name>, modified: Option<SystemTime>) {
        // It is older than what replaced it, unless somebody has changed it since.
        let settled = files.is_empty() || self.is_settled(modified);
        self.remove_or_keep(remains(&left), Removal::Replaced(left, files), settled);
    }

    fn report(mut self) -> PruneReport {
        self.report.removed = self.removals.into_iter().map(|(what, _)| what).collect();
        self.report
    }

    async fn carry_out(
        mut self,
        held: &Arc<dyn Store>,
        place: &Arc<dyn Store>,
    ) -> Result<PruneReport, StrategyError> {
        let now = left_by_saves(place).await?;
        for (what, removal) in std::mem::take(&mut self.removals) {
            let outcome = match removal {
                // What changed since it was looked at is somebody's who is at work.
                Removal::File(name, then) if held.modified(&name).await? == then => {
                    held.remove(&[name]).await
                }
                Removal::Unfinished(left) if now.contains(&left) => {
                    place.remove_leftover(&left.attempt).await
                }
                Removal::Replaced(left, files) if now.contains(&left) => {
                    place.finish_replacing(&left.attempt, &files).await
                }
                _ => {
                    self.keep(what, Kept::Recent);
                    continue;
                }
            };
            match outcome {
                Ok(()) => self.report.removed.push(what),
                Err(e @ StorageError::NotCarried { .. }) => self.keep(what, Kept::Stuck(e.to_string())),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.report)
    }
}
