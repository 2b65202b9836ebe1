//! A new version beside the old one.

use crate::{
    fault,
    part_source::PartSource,
    pin::same_tag,
    place::ObjectStorePlace,
    upload::{self, Job, Target, Uploaded, no_condition},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::{ObjectMeta, PutMode, UpdateVersion, path::Path};
use reshard_storage::{
    Durability, Entry, FileBody, IfExists, Name, Progress, Result, StorageError, Transaction,
    Written, is_attempt,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

/// How often the commit record is put, if the service does not say whether it has put it.
pub(crate) const TRIES: usize = 3;

/// What tells an old version is named last, and is no more than so many files.
const RECORDS: usize = 4;

fn version_of(object: ObjectMeta) -> UpdateVersion {
    UpdateVersion {
        e_tag: object.e_tag,
        version: object.version,
    }
}

fn is_known(tag: &UpdateVersion) -> bool {
    tag.e_tag.is_some() || tag.version.is_some()
}

/// What the rank has seen that began the version.
#[derive(Debug)]
pub(crate) struct Begun {
    /// The tags of the objects directly in the place.
    seen: BTreeMap<Name, UpdateVersion>,
    replaces: bool,
}

impl Begun {
    /// Looks at the place, by one listing. If that has no tags, it asks for those of the objects that tell the old version.
    pub(crate) async fn look(place: &ObjectStorePlace, if_exists: IfExists) -> Result<Self> {
        let found = place.client.list_one(place.folder(None)?).await?;
        let found = found.map_err(|e| place.client.error("list", place.url_text(), e))?;
        let mut seen = BTreeMap::new();
        for meta in found.objects {
            if let Some(name) = place.name_of(&meta.location) {
                seen.insert(name, version_of(meta));
            }
        }
        // What killed attempts left is in nobody's way.
        let folders = found.common_prefixes.iter();
        let mut others = folders
            .filter_map(|path| place.name_of(path))
            .filter(|name| !is_attempt(name.as_str()));
        let IfExists::Replace(files) = if_exists else {
            let (path, replaces) = (place.url_text().into(), false);
            return match seen.is_empty() && others.next().is_none() {
                true => Ok(Self { seen, replaces }),
                false => Err(StorageError::Exists { path }),
            };
        };
        let untagged = |name: &&Name| seen.get(name).is_some_and(|tag| !is_known(tag));
        let untagged: Vec<_> = files.iter().rev().filter(untagged).take(RECORDS).collect();
        for name in untagged {
            let now = place.client.head(place.path(name)?, None).await?;
            let now = now.map_err(|e| place.client.error("look at", place.url_of(name), e))?;
            if let Some(now) = now {
                seen.insert(name.clone(), version_of(now));
            }
        }
        let replaces = true;
        Ok(Self { seen, replaces })
    }

    /// Nobody asks what lies there.
    pub(crate) fn nothing() -> Self {
        Self {
            seen: BTreeMap::new(),
            replaces: true,
        }
    }
}

/// What an attempt has done so far.
#[derive(Debug, Default)]
struct State {
    /// Names that are being written or were written.
    names: BTreeSet<Name>,
    /// What was written outside of the folder of the attempt. `false` for an object that was there before with the same bytes.
    outside: BTreeMap<Name, (u64, bool)>,
    end: End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    Committed,
    /// The commit record may still appear, so nothing may be removed.
    InDoubt,
    RolledBack,
}

/// A version that is being written into the folder of its attempt.
#[derive(Debug)]
pub(crate) struct ObjectTransaction {
    place: ObjectStorePlace,
    folder: Name,
    /// `None` on ranks that have joined.
    begun: Option<Begun>,
    state: Mutex<State>,
}

impl ObjectTransaction {
    pub(crate) fn new(
        place: &ObjectStorePlace,
        attempt: &str,
        begun: Option<Begun>,
    ) -> Result<Self> {
        let folder = Name::new(attempt)?;
        if attempt.contains('/') {
            let what = format!("{attempt:?} can't name an attempt: it has a slash");
            return Err(StorageError::invalid(what));
        }
        Ok(Self {
            place: place.clone(),
            folder,
            begun,
            state: Mutex::default(),
        })
    }

    /// The new version may still become the one that readers see, so nothing of it may be removed.
    pub(crate) fn leave_open(&self) {
        self.state().end = End::InDoubt;
    }

    /// It is known what readers see, so what is here may be removed.
    pub(crate) fn is_decided(&self) {
        self.state().end = End::Open;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the attempt is neither committed nor rolled back.
    fn is_open(&self, state: &State) -> Result<()> {
        match state.end {
            End::Open => Ok(()),
            _ => Err(StorageError::invalid(format!(
                "{}: attempt {} is committed or rolled back",
                self.place.url_text(),
                self.folder
            ))),
        }
    }

    fn is_inside(&self, name: &Name) -> bool {
        let rest = name.as_str().strip_prefix(self.folder.as_str());
        rest.is_some_and(|rest| rest.starts_with('/'))
    }

    fn target(&self, name: &Name) -> Result<Target> {
        let staged = match self.is_inside(name) {
            true => None,
            false => Some(
                self.place
                    .path(&Name::new(format!("{}/{name}", self.folder))?)?,
            ),
        };
        Ok(Target {
            path: self.place.path(name)?,
            staged,
            was_there: self
                .begun
                .as_ref()
                .is_some_and(|begun| begun.seen.contains_key(name)),
            url: self.place.url_of(name),
        })
    }

    /// Takes the names of new files, each of which is written once.
    fn reserve(&self, files: &[FileBody]) -> Result<()> {
        let mut state = self.state();
        self.is_open(&state)?;
        for file in files {
            if !state.names.insert(file.name.clone()) {
                let what = format!("{} is written twice", file.name);
                return Err(StorageError::invalid(what));
            }
        }
        Ok(())
    }

    async fn write_one(&self, job: &Job, body: FileBody) -> Result<Option<Written>> {
        let name = body.name.clone();
        let written = async {
            let target = self.target(&name)?;
            let (source, length) = PartSource::new(body).await?;
            job.write(target, source, length).await
        };
        let written = written.await;
        if written.is_err() {
            job.stop.store(true, Ordering::Relaxed);
        }
        let Some(Uploaded {
            bytes,
            extents,
            created,
        }) = written?
        else {
            return Ok(None);
        };
        if !self.is_inside(&name) {
            self.state().outside.insert(name.clone(), (bytes, created));
        }
        Ok(Some(Written {
            name,
            bytes,
            extents,
        }))
    }

    /// The objects in the folder of the attempt.
    async fn inside(&self) -> Result<BTreeMap<Name, (Path, u64)>> {
        self.objects(Some(&self.folder)).await
    }

    async fn objects(&self, below: Option<&Name>) -> Result<BTreeMap<Name, (Path, u64)>> {
        let found = self
            .place
            .client
            .list_all(self.place.folder(below)?)
            .await?
            .map_err(|e| self.place.client.error("list", self.place.url_text(), e))?;
        let named = |meta: ObjectMeta| {
            let name = self.place.name_of(&meta.location)?;
            Some((name, (meta.location, meta.size)))
        };
        Ok(found.into_iter().filter_map(named).collect())
    }

    /// Checks that the version is complete, and that nothing came to a place that had to be new.
    async fn check(&self, begun: &Begun, record: &Name, files: &[Entry]) -> Result<()> {
        let all_inside = files.iter().all(|file| self.is_inside(&file.name));
        let there = match all_inside {
            true => self.inside().await?,
            false => self.objects(None).await?,
        };
        for file in files {
            let found = there.get(&file.name).map(|(_, bytes)| *bytes);
            file.check(self.place.url_text(), found)?;
        }
        if begun.replaces {
            return Ok(());
        }
        let now = Begun::look(&self.place, IfExists::Replace([].into())).await?;
        let ours: BTreeSet<&Name> = files.iter().map(|file| &file.name).collect();
        let state = self.state();
        let others = now.seen.keys().find(|name| {
            *name != record && !ours.contains(name) && !state.outside.contains_key(*name)
        });
        match others {
            Some(_) => Err(self.conflict(begun)),
            None => Ok(()),
        }
    }

    fn conflict(&self, begun: &Begun) -> StorageError {
        let path = self.place.url_text().to_owned();
        match begun.replaces {
            true => StorageError::Changed { path },
            false => StorageError::Exists { path },
        }
    }

    /// The condition under which the record `seen` in a listing is replaced. A listing leaves out what some services want in a
    /// condition: Google Cloud the number of the version, and Azure the quotes around a tag. So the object itself is asked once more.
    async fn as_it_was(
        &self,
        begun: &Begun,
        seen: &UpdateVersion,
        (path, url): (&Path, &str),
    ) -> Result<PutMode> {
        let client = &self.place.client;
        let now = client.head(path.clone(), None).await?;
        let now = now.map_err(|e| client.error("look at", url, e))?;
        let Some(now) = now else {
            return Err(self.conflict(begun));
        };
        let agrees = match (&seen.e_tag, &now.e_tag) {
            (Some(seen), Some(now)) => same_tag(seen, now),
            _ => seen.version.is_some() && seen.version == now.version,
        };
        match agrees {
            true => Ok(PutMode::Update(version_of(now))),
            false => Err(self.conflict(begun)),
        }
    }

    /// Puts the commit record, on the condition that it is as it was when the version began.
    async fn put_record(&self, begun: &Begun, name: &Name, bytes: Bytes) -> Result<()> {
        let path = self.place.path(name)?;
        let url = self.place.url_of(name);
        let mode = match begun.seen.get(name) {
            None => PutMode::Create,
            Some(tag) if !is_known(tag) => {
                return Err(StorageError::unsupported(
                    format!("replacing {url}"),
                    "the service gives no tags to objects, so two saves could not be told apart; save to another place",
                ));
            }
            Some(tag) => self.as_it_was(begun, tag, (&path, &url)).await?,
        };
        // From here on a request may be carried out that nobody waits for any more.
        self.state().end = End::InDoubt;
        let ended = self.decide(begun, (path, url), &bytes, mode).await?;
        self.state().end = match ended {
            Ok(()) => End::Committed,
            Err(_) => End::Open,
        };
        ended
    }

    /// Puts the record of a new place where the service has no conditions. All files of a version are in its own folder, so two saves never mix; but of
    /// two that commit in the same moment only one stays. The outer error leaves open what came of it.
    async fn put_unconditionally(
        &self,
        begun: &Begun,
        (path, url): (Path, String),
        bytes: &Bytes,
    ) -> Result<Result<()>> {
        let client = &self.place.client;
        let mut tries = TRIES;
        // Whether an earlier try may still be carried out.
        let mut open = false;
        loop {
            tries -= 1;
            let put = client.put(path.clone(), bytes.clone().into(), PutMode::Overwrite);
            let put = put.await?;
            open |= put.as_ref().is_err_and(|e| !fault::is_certain(e));
            match (client.get(path.clone()).await?, put) {
                (Ok(Some(there)), _) if there == *bytes => {
                    tracing::warn!(url, "{}", upload::IS_UNCONDITIONAL);
                    return Ok(Ok(()));
                }
                (Ok(Some(_)), Ok(_)) => return Ok(Err(self.conflict(begun))),
                (_, Err(e)) if !open => {
                    return Ok(Err(client.error("write the commit record", &url, e)));
                }
                (_, Err(e)) if tries == 0 => {
                    let action = "learn whether the version is committed by the record";
                    return Err(client.error(action, &url, e));
                }
                // The service has said that it was put.
                (_, Ok(_)) if tries == 0 => return Ok(Ok(())),
                _ => {}
            }
        }
    }

    /// Puts the record until it is known what came of it. The outer error leaves that open.
    async fn decide(
        &self,
        begun: &Begun,
        (path, url): (Path, String),
        bytes: &Bytes,
        mode: PutMode,
    ) -> Result<Result<()>> {
        let client = &self.place.client;
        let mut tries = TRIES;
        // Whether an earlier try may still be carried out. Then no later answer says that there is no record.
        let mut open = false;
        loop {
            tries -= 1;
            let put = client.put(path.clone(), bytes.clone().into(), mode.clone());
            let e = match put.await? {
                Ok(_) => return Ok(Ok(())),
                Err(e) => e,
            };
            open |= !fault::is_refused(&e) && !fault::is_certain(&e);

            // The answer to an earlier try may be lost, and then this try was refused because of our own record.
            match client.get(path.clone()).await? {
                Ok(Some(there)) if there == *bytes => return Ok(Ok(())),
                // A new record is refused and not there, if two saves ask for it in the same moment.
                Ok(None) if fault::is_refused(&e) && matches!(mode, PutMode::Create) => {}
                Ok(_) if fault::is_refused(&e) => return Ok(Err(self.conflict(begun))),
                Ok(None)
                    if !open && fault::is_unsupported(&e) && matches!(mode, PutMode::Create) =>
                {
                    return self.put_unconditionally(begun, (path, url), bytes).await;
                }
                _ if !open && fault::is_unsupported(&e) => {
                    return Ok(Err(no_condition(&url, &e)));
                }
                _ if !open && fault::is_certain(&e) => {
                    return Ok(Err(client.error("write the commit record", &url, e)));
                }
                Ok(_) => {}
                Err(e) => tracing::debug!("the commit record could not be read back: {e}"),
            }
            if tries == 0 {
                let action = "learn whether the version is committed by the record";
                return Err(client.error(action, &url, e));
            }
        }
    }
}

#[async_trait]
impl Transaction for ObjectTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        _: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        self.reserve(&files)?;
        let job = Job::new(&self.place.client, progress);
        let many = job.client.hints.concurrency.max(1);
        // All files end before this does, also after an error, so nothing of the caller is used any more.
        let outcomes: Vec<Result<Option<Written>>> = stream::iter(files)
            .map(|body| self.write_one(&job, body))
            .buffered(many)
            .collect()
            .await;
        let mut written = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            written.extend(outcome?);
        }
        Ok(written)
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.place.object(name)?.range(range).await
    }

    fn place(&self) -> Option<String> {
        Some(self.place.url_text().into())
    }

    fn folder(&self) -> Option<Name> {
        Some(self.folder.clone())
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        _: Durability,
    ) -> Result<()> {
        let Some(begun) = &self.begun else {
            let what = "only the rank that began a version commits it";
            return Err(StorageError::invalid(what));
        };
        let Some((name, bytes)) = record else {
            return Err(StorageError::unsupported(
                format!(
                    "a checkpoint without a commit record at {}",
                    self.place.url_text()
                ),
                "only such a record tells in an object store which version counts; choose a format that has one, or save \
                 to a local directory",
            ));
        };
        self.is_open(&self.state())?;
        self.check(begun, &name, files).await?;
        self.put_record(begun, &name, bytes).await
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let mut all: BTreeMap<Name, u64> = self
            .inside()
            .await?
            .into_iter()
            .map(|(name, (_, bytes))| (name, bytes))
            .collect();
        let state = self.state();
        all.extend(
            state
                .outside
                .iter()
                .map(|(name, (bytes, _))| (name.clone(), *bytes)),
        );
        let entry = |(name, bytes)| Entry { name, bytes };
        Ok(all.into_iter().map(entry).collect())
    }

    /// Only the rank that began the version removes anything: another rank can't know whether it is committed meanwhile.
    async fn rollback(&self) -> Result<()> {
        if self.begun.is_none() {
            return Ok(());
        }
        let outside = {
            let mut state = self.state();
            match state.end {
                End::Committed | End::InDoubt => return Ok(()),
                End::Open | End::RolledBack => state.end = End::RolledBack,
            }
            state.outside.clone()
        };
        let mut paths: Vec<Path> = self
            .inside()
            .await?
            .into_values()
            .map(|(path, _)| path)
            .collect();
        for (name, (_, created)) in &outside {
            if *created {
                paths.push(self.place.path(name)?);
            }
        }
        let removed = self.place.client.delete(paths).await?;
        removed.map_err(|e| {
            self.place
                .client
                .error("remove files from", self.place.url_text(), e)
        })
    }
}
