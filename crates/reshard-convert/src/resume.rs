//! A conversion that goes on where an interrupted one has ended.
//!
//! While a conversion writes, it keeps a journal of the files that are finished, among the files of its attempt. The next conversion of the same source with
//! the same options takes these files over: on a local disk it links them, in an object store it goes on in the folder of that attempt.

mod claim;
mod content;
mod identity;
mod journal;
mod live;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use bytes::Bytes;
use claim::CLAIM;
use content::{is_alike, is_intact};
use futures::{StreamExt as _, stream};
use identity::{digest, source_identity};
use journal::{Files, Finished, Identity, MOST, MOST_OF_ALL, PREFIX, from_json, to_json};
use live::{Live, check_open};
use reshard::{
    Checkpoint,
    storage::{
        Depth, Durability, Entry, FileBody, IfExists, Leftover, Name, Progress, Result,
        StorageError, Store, StoreExt as _, Stores, Transaction, Written, is_attempt,
    },
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// The journal is continued after so many bytes of finished files.
const GROUP: u64 = 64 << 20;

/// Files of so many bytes are written by one call. What a call has not finished, nobody can take over, and several run at once.
const CALL: u64 = 8 << 20;

/// What was found finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Resumed {
    /// The number of files that an interrupted conversion had finished, and that were not written again.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Whether a conversion keeps a journal, and goes on where another one has ended.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// All options that change what is written.
    pub(crate) options: String,
    pub(crate) looks: bool,
    pub(crate) every: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            options: String::new(),
            looks: false,
            every: GROUP,
        }
    }
}

/// The destination, with a journal of what is finished in it. `None` if nobody could ever go on: nothing tells whether the source is still the same.
pub(crate) async fn place(
    source: &Checkpoint,
    dst: &str,
    stores: &Stores,
    journal: &Journal,
) -> Result<Option<ResumableStore>> {
    let refused = |why: String| StorageError::Unsupported {
        what: format!("resuming the conversion to {dst}"),
        why,
    };
    if journal.looks && journal.options.is_empty() {
        return Err(refused(
            "nothing tells its options from those of another one; give them to `Convert::journal`"
                .into(),
        ));
    }
    let Some(found) = source_identity(source).await? else {
        let why = format!(
            "{} gives neither tags nor times of its files, so nobody can tell whether they have changed since; convert without resuming",
            source.url()
        );
        return match journal.looks {
            true => Err(refused(why)),
            false => Ok(None),
        };
    };
    let state = State {
        dst: dst.into(),
        stores: stores.clone(),
        identity: Identity {
            source: found.digest,
            inodes: found.inodes,
            options: digest(&journal.options),
        },
        newest: found.newest,
        live: match journal.looks {
            true => Some(Live::of(dst, stores).await),
            false => None,
        },
        every: journal.every,
        count: AtomicU64::new(1),
        ..State::default()
    };
    Ok(Some(ResumableStore {
        inner: stores.open(dst)?,
        state: Arc::new(state),
    }))
}

/// What an interrupted attempt has left.
#[derive(Debug)]
struct Found {
    left: Leftover,
    files: Files,
    /// Where its files can be read, and linked, if it is not continued in its own folder.
    place: Option<Arc<dyn Store>>,
}

/// What all ranks share.
#[derive(Debug, Default)]
struct State {
    /// Opens the place.
    dst: String,
    stores: Stores,
    identity: Identity,
    /// The file of the source whose status changed last, for messages.
    newest: Option<Name>,
    /// What must not be continued; `None` if nobody looks for what an interrupted conversion has left.
    live: Option<Live>,
    /// The journal is continued when so many bytes are finished.
    every: u64,
    found: OnceLock<Option<Found>>,
    /// Finished files that no journal names yet.
    pending: Mutex<Files>,
    /// Names of journals, within the place.
    journals: Mutex<BTreeSet<Name>>,
    count: AtomicU64,
    resumed: Mutex<Resumed>,
    /// What this process calls itself where it has taken over an attempt.
    claimed_by: OnceLock<String>,
    /// Where the files of the attempt can be removed; `None` if they can't be found, and then there is no journal.
    kept_in: OnceLock<Option<Arc<dyn Store>>>,
}

impl State {
    /// Explains why an attempt can't be continued.
    fn difference(&self, theirs: &Identity, left: &Leftover) -> String {
        if theirs.options != self.identity.options {
            return format!("{} is of a conversion with other options", left.path);
        }
        let changed = format!("the source has changed since {} began", left.path);
        if theirs.source != self.identity.source {
            return changed;
        }
        let newest = self.newest.as_ref();
        let newest = newest.map_or_else(String::new, |n| format!(" ({n} changed last)"));
        format!(
            "{changed}: its files have the same lengths and modification times, but other inodes or change times (ctime){newest}; they were replaced \
             or written to, unless it was a hard link or a chmod, which also change the ctime"
        )
    }
}

/// A place whose next version may be what an interrupted conversion has begun.
#[derive(Clone, Debug)]
pub(crate) struct ResumableStore {
    inner: Arc<dyn Store>,
    state: Arc<State>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ResumableStore {
    /// What was not written again.
    pub(crate) fn resumed(&self) -> Resumed {
        *lock(&self.state.resumed)
    }

    fn transaction(&self, inner: Arc<dyn Transaction>) -> Arc<dyn Transaction> {
        Arc::new(ResumableTransaction {
            inner,
            store: self.clone(),
        })
    }

    /// The interrupted attempt that is continued. Its journals must be of this conversion.
    async fn look(&self) -> Result<Option<Found>> {
        let Some(live) = &self.state.live else {
            return Ok(None);
        };
        let mut others = None;
        let mut best: Option<Found> = None;
        for left in self.inner.leftovers().await? {
            if left.replaced || !is_attempt(&left.attempt) {
                continue;
            }
            let beside = left.path != format!("{}/{}", self.inner.url(), left.attempt);
            let place = beside
                .then(|| self.state.stores.open(&left.path))
                .transpose()?;
            if !beside && live.may_have(&left.attempt) {
                continue;
            }
            // One place that stands for all URLs.
            if place.as_ref().is_some_and(|p| p.url() == self.inner.url()) {
                continue;
            }
            let (files, wrong) = self.read(&left, place.as_ref()).await?;
            others = others.or(wrong);
            let bytes = |files: &Files| files.values().map(|f| f.bytes).sum::<u64>();
            if files.is_empty()
                || best
                    .as_ref()
                    .is_some_and(|b| bytes(&b.files) >= bytes(&files))
            {
                continue;
            }
            best = Some(Found { left, files, place });
        }
        match (best, others) {
            (None, Some(why)) => Err(StorageError::Unsupported {
                what: format!("resuming the conversion to {}", self.inner.url()),
                why: format!(
                    "{why}; convert without resuming, and `reshard prune` removes what was left"
                ),
            }),
            (found, _) => Ok(found),
        }
    }

    /// The finished files of an attempt that are there with their lengths, and why those of its journals can't be used.
    async fn read(
        &self,
        left: &Leftover,
        place: Option<&Arc<dyn Store>>,
    ) -> Result<(Files, Option<String>)> {
        let folder = Name::new(&*left.attempt)?;
        let (store, below) = match place {
            Some(place) => (place, None),
            None => (&self.inner, Some(&folder)),
        };
        let there = store.list(below, Depth::All).await?.files;
        let bare = |name: &Name| inside(name, below).to_owned();
        let mine = &self.state.identity;
        let (mut files, mut wrong, mut room) = (Files::new(), None, MOST_OF_ALL);
        for entry in &there {
            if !bare(&entry.name).starts_with(PREFIX) {
                continue;
            }
            // One that is cut, is too long or was not written by this program says nothing.
            let bytes = match store.read_all(&entry.name, MOST.min(room)).await {
                Err(StorageError::Longer { .. }) => None,
                read => read?,
            };
            room -= bytes
                .as_ref()
                .map_or(0, |bytes| bytes.len() as u64)
                .min(room);
            match bytes.and_then(|bytes| from_json(&bytes)) {
                None => {}
                Some((theirs, named)) if theirs == *mine => files.extend(named),
                Some((theirs, _)) => wrong = Some(self.state.difference(&theirs, left)),
            }
        }
        keep_those(&mut files, &there, below);
        Ok((files, wrong))
    }

    /// The place from which the journals of an attempt are removed, as long as it is not committed.
    async fn kept_in(
        &self,
        begun: &dyn Transaction,
        attempt: &str,
    ) -> Result<Option<Arc<dyn Store>>> {
        if begun.folder().is_some() {
            return Ok(Some(Arc::clone(&self.inner)));
        }
        let mine = |left: &Leftover| left.attempt == attempt && !left.replaced;
        let Some(left) = self.inner.leftovers().await?.into_iter().find(mine) else {
            return Ok(None);
        };
        let place = self.state.stores.open(&left.path)?;
        // One place that stands for all URLs.
        Ok((place.url() != self.inner.url()).then_some(place))
    }

    /// Goes on with an attempt, and tells whoever began it.
    ///
    /// Files that no journal names are written over, and not removed before: whoever began the attempt may still run, and be about to commit them. This
    /// conversion gives them the same bytes, so what readers see then is whole at any time.
    async fn take_over(
        &self,
        found: &mut Found,
        by: &str,
        transaction: &dyn Transaction,
    ) -> Result<()> {
        let folder = Name::new(&*found.left.attempt)?;
        // Whoever began it looks for the claim before it commits. So the claim comes first, and then the look whether it has committed.
        claim::put(transaction, &folder, by).await?;
        drop(self.state.claimed_by.set(by.to_owned()));
        let (dst, stores) = (&self.state.dst, &self.state.stores);
        check_open(&found.left.attempt, dst, stores).await?;
        let there = self.inner.list(Some(&folder), Depth::All).await?.files;
        // Until the claim was there, somebody may have removed some.
        keep_those(&mut found.files, &there, Some(&folder));
        for entry in there {
            let bare = inside(&entry.name, Some(&folder));
            if let Some(number) = bare.strip_prefix(PREFIX) {
                // Its number is not given to another one.
                let next = number.parse().map_or(1, |n: u64| n.saturating_add(1));
                self.state.count.fetch_max(next, Ordering::Relaxed);
                lock(&self.state.journals).insert(entry.name);
            }
        }
        Ok(())
    }
}

/// Forgets finished files that are not there with their lengths.
fn keep_those(files: &mut Files, there: &[Entry], folder: Option<&Name>) {
    let lengths = there.iter().map(|e| (inside(&e.name, folder), e.bytes));
    let lengths: BTreeMap<&str, u64> = lengths.collect();
    files.retain(|name, finished| lengths.get(&**name) == Some(&finished.bytes));
}

/// A name without the folder of its attempt.
fn inside<'n>(name: &'n Name, folder: Option<&Name>) -> &'n str {
    let text = name.as_str();
    let rest = folder.and_then(|f| text.strip_prefix(f.as_str())?.strip_prefix('/'));
    rest.unwrap_or(text)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner store
impl Store for ResumableStore {
    // A version of one file has nothing that is finished before the rest, so `of_kind` needs no journal.
    reshard::storage::forward! {
        inner: url identity hints read read_all read_ranges read_into list head remove of_kind tags local_file
            links recovery
    }
    reshard::storage::forward! { again inner: pinned resolved }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        // This process is called as the attempt that it would begin.
        let by = attempt;
        let mut found = self.look().await?;
        let adopted = found.as_mut().filter(|f| f.place.is_none());
        let attempt = adopted.as_ref().map_or(by, |f| &f.left.attempt).to_owned();
        let inner = self.inner.begin(&attempt, if_exists).await?;
        if let Some(found) = adopted {
            self.take_over(found, by, &*inner).await?;
        }
        let kept_in = self.kept_in(&*inner, &attempt).await?;
        // A version is begun once.
        drop(self.state.kept_in.set(kept_in));
        drop(self.state.found.set(found));
        Ok(self.transaction(inner))
    }

    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        // An attempt that can't be continued is an error.
        self.look().await?;
        self.inner.begin_dry_run(attempt, if_exists).await
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        let found = self.state.found.get().and_then(Option::as_ref);
        let adopted = found.filter(|f| f.place.is_none());
        let attempt = adopted.map_or(attempt, |f| &f.left.attempt);
        let inner = self.inner.join(attempt, place).await?;
        Ok(self.transaction(inner))
    }
}

#[derive(Debug)]
struct ResumableTransaction {
    inner: Arc<dyn Transaction>,
    store: ResumableStore,
}

/// How a file of the new version comes about.
enum Job {
    /// It is there, also under its name.
    Done(Written),
    /// It is linked, and then it has these extents.
    Link(FileBody, Written),
    Write(FileBody),
}

impl ResumableTransaction {
    fn state(&self) -> &State {
        &self.store.state
    }

    fn found(&self) -> Option<&Found> {
        self.state().found.get().and_then(Option::as_ref)
    }

    /// Decides whether a file is written. A finished file is used again only if its bytes still match the checksums in the journal.
    async fn job(&self, body: FileBody) -> Result<Job> {
        let folder = self.inner.folder();
        let bare = inside(&body.name, folder.as_ref());
        let finished = self.found().and_then(|f| Some((f, f.files.get(bare)?)));
        let Some((found, finished)) = finished.filter(|(_, file)| is_alike(&body, file)) else {
            return Ok(Job::Write(body));
        };
        let (store, at) = match &found.place {
            None => (&self.store.inner, body.name.clone()),
            Some(place) => (place, Name::new(bare)?),
        };
        if !is_intact(&**store, &at, finished).await? {
            tracing::warn!(
                file = %at, attempt = %found.left.path,
                "a finished file of the interrupted conversion has changed since, so it is written again"
            );
            return Ok(Job::Write(body));
        }
        {
            let mut resumed = lock(&self.state().resumed);
            resumed.files += 1;
            resumed.bytes = resumed.bytes.saturating_add(finished.bytes);
        }
        let written = Written {
            name: body.name.clone(),
            bytes: finished.bytes,
            extents: finished.extents.clone(),
        };
        Ok(match &found.place {
            None => Job::Done(written),
            Some(place) => {
                let link = FileBody::copy_of(body.name, Arc::clone(place), at);
                Job::Link(link, written)
            }
        })
    }

    /// Writes a group, unless another one has failed: nobody needs it any more.
    async fn unless_stopped(
        &self,
        stop: &AtomicBool,
        files: Vec<FileBody>,
        (durability, progress): (Durability, Progress),
    ) -> Result<Vec<Written>> {
        if stop.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let written = self.group(files, durability, progress).await;
        if written.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        written
    }

    /// Writes some files, and notes them.
    async fn group(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let (mut bodies, mut out) = (Vec::new(), Vec::new());
        for body in files {
            match self.job(body).await? {
                Job::Done(written) => {
                    progress.add(written.bytes);
                    out.push(Some(written));
                }
                Job::Link(body, written) => {
                    bodies.push(body);
                    out.push(Some(written));
                }
                Job::Write(body) => {
                    bodies.push(body.with_checksums());
                    out.push(None);
                }
            }
        }
        let mut written = Vec::new();
        if !bodies.is_empty() {
            written = self.inner.write(bodies, durability, progress).await?;
        }
        let mut written = written.into_iter().peekable();
        let folder = self.inner.folder();
        let mut all = Vec::with_capacity(out.len());
        for known in out {
            let new = match &known {
                // It was not written.
                Some(w) => written.next_if(|new| new.name == w.name),
                None => written.next(),
            };
            let lost = || StorageError::Internal {
                what: "a file was written without an outcome".into(),
            };
            let file = match known {
                Some(known) => known,
                None => new.ok_or_else(lost)?,
            };
            let bare = inside(&file.name, folder.as_ref());
            // A file without checksums could not be compared later.
            let is_summed = file.extents.iter().all(|extent| extent.crc32.is_some());
            if bare != reshard::SIDECAR && is_summed {
                let finished = Finished {
                    bytes: file.bytes,
                    extents: file.extents.clone(),
                };
                lock(&self.state().pending).insert(bare.to_owned(), finished);
            }
            all.push(file);
        }
        self.note(self.state().every).await?;
        Ok(all)
    }

    /// Continues the journal, if so many bytes are finished that it does not name.
    async fn note(&self, every: u64) -> Result<()> {
        if !matches!(self.state().kept_in.get(), Some(Some(_))) {
            return Ok(());
        }
        let files = {
            let mut pending = lock(&self.state().pending);
            let bytes = pending.values().map(|f| f.bytes);
            if pending.is_empty() || bytes.fold(0, u64::saturating_add) < every {
                return Ok(());
            }
            std::mem::take(&mut *pending)
        };
        let number = self.state().count.fetch_add(1, Ordering::Relaxed);
        let name = match self.inner.folder() {
            Some(folder) => format!("{folder}/{PREFIX}{number}"),
            None => format!("{PREFIX}{number}"),
        };
        let name = Name::new(name)?;
        let journal = to_json(&self.state().identity, &files);
        let journal = journal.map_err(|e| StorageError::Internal {
            what: format!("a journal can't be written: {e}"),
        })?;
        lock(&self.state().journals).insert(name.clone());
        let body = FileBody::from_bytes(name, journal.into());
        self.inner
            .write(vec![body], Durability::Process, Progress::none())
            .await?;
        Ok(())
    }

    /// Removes the journals, because they are no part of the version.
    async fn forget(&self) -> Result<()> {
        let names: Vec<Name> = lock(&self.state().journals).iter().cloned().collect();
        match self.state().kept_in.get() {
            Some(Some(kept_in)) if !names.is_empty() => kept_in.remove(&names).await,
            _ => Ok(()),
        }
    }

    /// What the process calls itself that has taken over the folder of this attempt.
    async fn holder(&self) -> Result<Option<Bytes>> {
        match self.inner.folder() {
            Some(folder) => claim::holder(&*self.store.inner, &folder).await,
            None => Ok(None),
        }
    }

    /// Refuses to commit what another process writes now.
    async fn check_holder(&self) -> Result<()> {
        let mine = self.state().claimed_by.get();
        match self.holder().await? {
            Some(by) if mine.is_none_or(|mine| by != mine.as_bytes()) => {
                let what = "another conversion has taken over its files with --resume; this one commits nothing and leaves them to the other one. \
                            Wait for that one, or run this one again with --resume when it has ended";
                let source = io::Error::new(io::ErrorKind::ResourceBusy, what);
                let place = self.store.inner.url();
                Err(StorageError::io("commit the conversion to", place, source))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner transaction
impl Transaction for ResumableTransaction {
    reshard::storage::forward! { inner: read place folder }

    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let mut groups: Vec<Vec<FileBody>> = Vec::new();
        let mut room = 0u64;
        for body in files {
            let bytes = body.length().map_or(u64::MAX, |length| length.at_most());
            if bytes > room || groups.is_empty() {
                groups.push(Vec::new());
                room = CALL.min(self.state().every);
            }
            room = room.saturating_sub(bytes);
            if let Some(group) = groups.last_mut() {
                group.push(body);
            }
        }
        // Those that have begun end before this does, also after an error.
        let many = self.store.inner.hints().concurrency.max(1);
        let stop = &AtomicBool::new(false);
        let outcomes: Vec<Result<Vec<Written>>> = stream::iter(groups)
            .map(|group| self.unless_stopped(stop, group, (durability, progress.clone())))
            .buffered(many)
            .collect()
            .await;
        let mut all = Vec::new();
        for outcome in outcomes {
            all.extend(outcome?);
        }
        self.note(0).await?;
        Ok(all)
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        // In a folder of its own nobody sees them, so they stay until they are needed no more.
        let is_hidden = self.inner.folder().is_some();
        if !is_hidden {
            self.forget().await?;
        }
        self.check_holder().await?;
        self.inner.commit(record, files, durability).await?;
        if is_hidden && let Err(e) = self.forget().await {
            tracing::warn!(error = %e, "the journal of the conversion was not removed");
        }
        // What was linked is not needed any more.
        if let Some(Found {
            left,
            place: Some(_),
            ..
        }) = self.found()
            && let Err(e) = self.store.inner.remove_leftover(left).await
        {
            tracing::warn!(path = %left.path, error = %e, "what an interrupted conversion left was not removed");
        }
        Ok(())
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let folder = self.inner.folder();
        let mut all = self.inner.written().await?;
        all.retain(|e| {
            let bare = inside(&e.name, folder.as_ref());
            !bare.starts_with(PREFIX) && bare != CLAIM
        });
        Ok(all)
    }

    /// What was taken over stays for the next conversion that resumes.
    async fn rollback(&self) -> Result<()> {
        match self.holder().await? {
            Some(_) => Ok(()),
            None => self.inner.rollback().await,
        }
    }
}
