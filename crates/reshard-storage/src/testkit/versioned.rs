use crate::{
    Depth, Durability, Entry, FileBody, Head, Hints, IfExists, Leftover, Listing, Name, Progress,
    Recovery, Removal, Result, StorageError, Store, Transaction, UnfinishedUpload, Written,
    remove_by_record,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// A place in the memory of this process that keeps versions side by side, as object stores do. Nothing is renamed. A file can be seen
/// as soon as it is written. The data files of a version go into the [`folder`](Transaction::folder) of its attempt. A name outside of
/// that folder is created, but not written over. Only the commit record is: if it is still the one that was there when the
/// transaction began.
///
/// Old versions stay until somebody removes them. [`Recovery::leftovers`] lists the folders of all attempts; which of them the
/// commit record names, only its format knows.
#[derive(Clone, Debug)]
pub struct VersionedStore {
    url: String,
    place: Arc<Mutex<Place>>,
    hints: Hints,
}

#[derive(Debug, Default)]
struct Place {
    objects: BTreeMap<Name, Object>,
    attempts: BTreeMap<String, Attempt>,
    uploads: Vec<UnfinishedUpload>,
    /// The last tag that was given.
    tag: u64,
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Bytes,
    /// No other object has it, at no time.
    tag: u64,
    modified: SystemTime,
}

#[derive(Debug, Default)]
struct Attempt {
    /// What all its ranks have written. `false` for an object that was there before with the same bytes.
    written: BTreeMap<Name, bool>,
    committed: bool,
}

impl Place {
    fn put(&mut self, name: Name, bytes: Bytes) {
        self.tag += 1;
        let object = Object {
            bytes,
            tag: self.tag,
            modified: SystemTime::now(),
        };
        self.objects.insert(name, object);
    }

    fn tag_of(&self, name: &Name) -> Option<u64> {
        self.objects.get(name).map(|object| object.tag)
    }

    /// The attempt in whose folder a file lies.
    fn folder_of<'n>(&self, name: &'n Name) -> Option<&'n str> {
        let (folder, _) = name.as_str().split_once('/')?;
        self.attempts.contains_key(folder).then_some(folder)
    }
}

impl VersionedStore {
    /// A place that nobody else has, at a URL that only it has.
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            url: format!("versioned://anonymous-{number}"),
            place: Arc::default(),
            hints: Hints::default(),
        }
    }

    /// With other hints, to see how others act on them.
    pub fn with_hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }

    /// Puts a file there, past all transactions: for tests of damaged checkpoints.
    pub fn put(&self, name: Name, bytes: Bytes) {
        self.lock().put(name, bytes);
    }

    /// Leaves an upload of a file that is never finished: for tests of what is removed.
    pub fn leave_upload(&self, name: Name) {
        let path = format!("{}/{name}", self.url);
        self.leave_upload_at(name, path);
    }

    /// The same of the one file that the URL of this place may be, which has this name in the folder above.
    pub fn leave_upload_of_place(&self, name: Name) {
        self.leave_upload_at(name, self.url.clone());
    }

    fn leave_upload_at(&self, name: Name, path: String) {
        let mut place = self.lock();
        let id = place.uploads.len();
        let upload = UnfinishedUpload::new(name, id.to_string(), path);
        place.uploads.push(upload.begun(Some(SystemTime::now())));
    }

    /// Makes all files and unfinished uploads older, for tests of what is removed by its age.
    pub fn age(&self, by: Duration) {
        let mut place = self.lock();
        for object in place.objects.values_mut() {
            object.modified -= by;
        }
        for upload in &mut place.uploads {
            upload.began = upload.began.map(|began| began - by);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transaction(&self, attempt: &str, begun: Option<Begun>) -> Arc<dyn Transaction> {
        Arc::new(VersionedTransaction {
            store: self.clone(),
            attempt: attempt.into(),
            begun,
            outside: Mutex::default(),
        })
    }
}

impl Default for VersionedStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for VersionedStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn hints(&self) -> Hints {
        self.hints
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let path = format!("{}/{name}", self.url);
        let found = self.lock().objects.get(name).map(|o| o.bytes.clone());
        let bytes = found.ok_or_else(|| StorageError::NotFound { path: path.clone() })?;
        if range.start > range.end {
            return Err(StorageError::invalid(format!(
                "{path}: a range ends before it starts"
            )));
        }
        let size = bytes.len() as u64;
        if range.end > size {
            return Err(StorageError::Short { path, range, size });
        }
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        let found = self.lock().objects.get(name).map(|o| o.bytes.clone());
        match found {
            Some(bytes) if bytes.len() as u64 > max => Err(StorageError::Longer {
                path: format!("{}/{name}", self.url),
                size: bytes.len() as u64,
                max,
            }),
            found => Ok(found),
        }
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let place = self.lock();
        let all = place.objects.iter().map(|(name, object)| Entry {
            name: name.clone(),
            bytes: object.bytes.len() as u64,
        });
        Ok(Listing::below(all.collect(), below, depth))
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        let place = self.lock();
        let object = place.objects.get(name);
        Ok(object.map(|o| Head::new(o.bytes.len() as u64, Some(o.modified))))
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let mut place = self.lock();
        for name in names {
            place.objects.remove(name);
        }
        Ok(())
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let mut place = self.lock();
        let has_others = place.objects.keys().any(|n| place.folder_of(n).is_none());
        if if_exists == IfExists::Refuse && has_others {
            return Err(StorageError::Exists { path: self.url() });
        }
        let seen = place.objects.iter().map(|(n, o)| (n.clone(), o.tag));
        let begun = Begun {
            seen: seen.collect(),
            replaces: if_exists != IfExists::Refuse,
        };
        place.attempts.entry(attempt.into()).or_default();
        drop(place);
        Ok(self.transaction(attempt, Some(begun)))
    }

    async fn join(&self, attempt: &str, _: Option<&str>) -> Result<Arc<dyn Transaction>> {
        if !self.lock().attempts.contains_key(attempt) {
            return Err(StorageError::NotJoined {
                path: self.url(),
                attempt: attempt.into(),
            });
        }
        Ok(self.transaction(attempt, None))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        Some(self)
    }
}

#[async_trait]
impl Recovery for VersionedStore {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let place = self.lock();
        let mut found: BTreeMap<&str, (u64, Option<SystemTime>)> = BTreeMap::new();
        for (name, object) in &place.objects {
            if let Some(attempt) = place.folder_of(name) {
                let (bytes, modified) = found.entry(attempt).or_default();
                *bytes += object.bytes.len() as u64;
                *modified = (*modified).max(Some(object.modified));
            }
        }
        let leftover = |(attempt, (bytes, modified)): (&str, _)| {
            Leftover::new(attempt, format!("{}/{attempt}", self.url)).holding(bytes, modified)
        };
        Ok(found.into_iter().map(leftover).collect())
    }

    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        let mut place = self.lock();
        let inside = format!("{}/", left.attempt);
        if place.attempts.contains_key(&left.attempt) {
            place
                .objects
                .retain(|name, _| !name.as_str().starts_with(&inside));
        }
        Ok(())
    }

    fn removal(&self) -> Removal {
        Removal::Record
    }

    async fn remove_version(&self, _: &str, record: Option<&Name>, files: &[Name]) -> Result<()> {
        remove_by_record(self, record, files).await
    }

    async fn unfinished_uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        Ok(self.lock().uploads.clone())
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        self.lock().uploads.retain(|there| there != upload);
        Ok(())
    }
}

/// What only the rank knows that began a version.
#[derive(Debug)]
struct Begun {
    /// The tags of all objects at that time.
    seen: BTreeMap<Name, u64>,
    replaces: bool,
}

#[derive(Debug)]
struct VersionedTransaction {
    store: VersionedStore,
    attempt: String,
    begun: Option<Begun>,
    /// What this rank has created outside of the folder.
    outside: Mutex<BTreeSet<Name>>,
}

impl VersionedTransaction {
    fn path(&self, name: &Name) -> String {
        format!("{}/{name}", self.store.url)
    }

    /// Creates an object. One with the same bytes may stay if it was there when the version began: what another attempt has put since,
    /// that attempt may remove.
    fn create(&self, name: &Name, bytes: Bytes) -> Result<()> {
        let was_there = self
            .begun
            .as_ref()
            .is_some_and(|begun| begun.seen.contains_key(name));
        let mut place = self.store.lock();
        let same = place.objects.get(name).map(|there| there.bytes == bytes);
        let attempt = place.attempts.entry(self.attempt.clone()).or_default();
        if attempt.committed || attempt.written.contains_key(name) {
            return Err(StorageError::invalid(format!("{name} is written twice")));
        }
        match same {
            Some(false) => return Err(self.taken(name)),
            Some(true) if !was_there => {
                return Err(StorageError::Exists {
                    path: self.path(name),
                });
            }
            same => attempt.written.insert(name.clone(), same.is_none()),
        };
        if same.is_none() {
            place.put(name.clone(), bytes);
            if place.folder_of(name) != Some(&*self.attempt) {
                self.outside().insert(name.clone());
            }
        }
        Ok(())
    }

    fn outside(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self, name: &Name) -> StorageError {
        StorageError::unsupported(
            format!("writing over {}", self.path(name)),
            "this place keeps versions side by side, and only the commit record of a checkpoint can be replaced there in one \
             step; save to another place",
        )
    }
}

#[async_trait]
impl Transaction for VersionedTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        _: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let mut out = Vec::new();
        for body in files {
            let (written, bytes) = body.into_bytes().await?;
            self.create(&written.name, bytes)?;
            progress.add(written.bytes);
            out.push(written);
        }
        Ok(out)
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.store.read(name, range).await
    }

    fn folder(&self) -> Option<Name> {
        Name::new(&*self.attempt).ok()
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
                format!("a checkpoint without a commit record at {}", self.store.url),
                "this place keeps versions side by side, and only such a record tells which version counts; choose a format \
                 that has one, or save to a local directory",
            ));
        };
        let mut place = self.store.lock();
        for file in files {
            let there = place.objects.get(&file.name);
            file.check(self.store.url(), there.map(|o| o.bytes.len() as u64))?;
        }
        // The record is put only if it is still the one that was there when this version began.
        if place.tag_of(&name) != begun.seen.get(&name).copied() {
            let path = self.store.url();
            return Err(match begun.replaces {
                true => StorageError::Changed { path },
                false => StorageError::Exists { path },
            });
        }
        place.put(name, bytes);
        let attempt = place.attempts.entry(self.attempt.clone()).or_default();
        attempt.committed = true;
        Ok(())
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let place = self.store.lock();
        let written = place.attempts.get(&self.attempt).map(|a| &a.written);
        let entry = |name: &Name| {
            Some(Entry {
                name: name.clone(),
                bytes: place.objects.get(name)?.bytes.len() as u64,
            })
        };
        Ok(written
            .into_iter()
            .flatten()
            .filter_map(|(n, _)| entry(n))
            .collect())
    }

    /// Only the rank that began the version removes anything. It knows of the folder, and of what it has created itself.
    async fn rollback(&self) -> Result<()> {
        let mut place = self.store.lock();
        let attempt = place.attempts.get_mut(&self.attempt);
        let Some(attempt) = attempt.filter(|a| self.begun.is_some() && !a.committed) else {
            return Ok(());
        };
        attempt.written.clear();
        let outside = std::mem::take(&mut *self.outside());
        let inside = format!("{}/", self.attempt);
        let is_mine = |name: &Name| name.as_str().starts_with(&inside) || outside.contains(name);
        place.objects.retain(|name, _| !is_mine(name));
        Ok(())
    }
}
