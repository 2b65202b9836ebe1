use crate::{
    Depth, Durability, Entry, FileBody, Head, Hints, IfExists, Leftover, Listing, Name, Progress,
    Recovery, Result, StorageError, Store, StoreScheme, Transaction, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

type Files = BTreeMap<Name, Bytes>;

#[derive(Debug, Default)]
struct Place {
    files: Files,
    begun: BTreeMap<String, Files>,
}

/// A place in the memory of this process; scheme `memory`. It does what a store must do, and nothing else: reads that land in
/// regions, ranges read together and the like have default bodies.
///
/// Another crate gives it a scheme of its own by [`at`](Self::at).
#[derive(Clone, Debug)]
pub struct MemoryStore {
    url: String,
    place: Arc<Mutex<Place>>,
    hints: Hints,
}

static PLACES: Mutex<BTreeMap<String, Arc<Mutex<Place>>>> = Mutex::new(BTreeMap::new());

inventory::submit! {
    StoreScheme::new("memory", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), |url| {
        Ok(Arc::new(MemoryStore::at(url)))
    })
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// The place of a URL of any scheme; all stores of one URL in this process share it.
    pub fn at(url: &str) -> Self {
        let place = lock(&PLACES).entry(url.into()).or_default().clone();
        Self {
            url: url.into(),
            place,
            hints: Hints::default(),
        }
    }

    /// The place of this name: `memory://NAME`.
    pub fn named(name: &str) -> Self {
        Self::at(&format!("memory://{name}"))
    }

    /// A place that nobody else has, at a URL that only it has.
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            url: format!("memory://anonymous-{number}"),
            place: Arc::default(),
            hints: Hints::default(),
        }
    }

    /// With other hints, to see how others act on them.
    pub fn with_hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }

    /// Puts a file there, past all staging: for tests of damaged checkpoints.
    pub fn put(&self, name: Name, bytes: Bytes) {
        lock(&self.place).files.insert(name, bytes);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn hints(&self) -> Hints {
        self.hints
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let path = format!("{}/{name}", self.url());
        let Some(bytes) = lock(&self.place).files.get(name).cloned() else {
            return Err(StorageError::NotFound { path });
        };
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
        let found = lock(&self.place).files.get(name).cloned();
        match found {
            Some(bytes) if bytes.len() as u64 > max => Err(StorageError::Longer {
                path: format!("{}/{name}", self.url()),
                size: bytes.len() as u64,
                max,
            }),
            found => Ok(found),
        }
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let place = lock(&self.place);
        let all = place.files.iter().map(|(n, b)| Entry {
            name: n.clone(),
            bytes: b.len() as u64,
        });
        Ok(Listing::below(all.collect(), below, depth))
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        Ok(lock(&self.place)
            .files
            .get(name)
            .map(|b| Head::new(b.len() as u64, None)))
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let mut place = lock(&self.place);
        for name in names {
            place.files.remove(name);
        }
        Ok(())
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        let files = lock(&self.place).files.clone();
        let place = Arc::new(Mutex::new(Place {
            files,
            ..Place::default()
        }));
        Ok(Some(Arc::new(Self {
            place,
            ..self.clone()
        })))
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let mut place = lock(&self.place);
        if if_exists == IfExists::Refuse && !place.files.is_empty() {
            return Err(StorageError::Exists { path: self.url() });
        }
        place.begun.entry(attempt.into()).or_default();
        Ok(Arc::new(MemoryTransaction {
            store: self.clone(),
            attempt: attempt.into(),
            if_exists,
        }))
    }

    async fn join(&self, attempt: &str, _: Option<&str>) -> Result<Arc<dyn Transaction>> {
        if !lock(&self.place).begun.contains_key(attempt) {
            return Err(StorageError::NotJoined {
                path: self.url(),
                attempt: attempt.into(),
            });
        }
        let (store, if_exists) = (self.clone(), IfExists::Refuse);
        Ok(Arc::new(MemoryTransaction {
            store,
            attempt: attempt.into(),
            if_exists,
        }))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        Some(self)
    }
}

#[async_trait]
impl Recovery for MemoryStore {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let url = self.url();
        Ok(lock(&self.place)
            .begun
            .keys()
            .map(|a| Leftover::new(a.clone(), format!("{url}#{a}")))
            .collect())
    }

    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        lock(&self.place).begun.remove(&left.attempt);
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryTransaction {
    store: MemoryStore,
    attempt: String,
    if_exists: IfExists,
}

impl MemoryTransaction {
    fn gone(&self) -> StorageError {
        StorageError::invalid(format!(
            "{}: attempt {} is committed or rolled back",
            self.store.url(),
            self.attempt
        ))
    }
}

#[async_trait]
impl Transaction for MemoryTransaction {
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let place = lock(&self.store.place);
        let begun = place.begun.get(&self.attempt).ok_or_else(|| self.gone())?;
        let missing = || StorageError::NotFound {
            path: format!("{}/{name}", self.store.url()),
        };
        let bytes = begun.get(name).ok_or_else(missing)?;
        let (start, end) = (range.start as usize, range.end as usize);
        match start <= end && end <= bytes.len() {
            true => Ok(bytes.slice(start..end)),
            false => Err(StorageError::invalid(format!("{name} is shorter"))),
        }
    }

    async fn write(
        &self,
        files: Vec<FileBody>,
        _: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let mut out = Vec::new();
        for body in files {
            let (written, bytes) = body.into_bytes().await?;

            // The lock is taken only here, because extents are foreign code and may wait.
            let name = written.name.clone();
            let mut place = lock(&self.store.place);
            let begun = place
                .begun
                .get_mut(&self.attempt)
                .ok_or_else(|| self.gone())?;
            if begun.insert(name.clone(), bytes).is_some() {
                return Err(StorageError::invalid(format!("{name} is written twice")));
            }
            drop(place);
            progress.add(written.bytes);
            out.push(written);
        }
        Ok(out)
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        _: Durability,
    ) -> Result<()> {
        let mut place = lock(&self.store.place);
        let begun = place.begun.get(&self.attempt).ok_or_else(|| self.gone())?;
        for file in files {
            file.check(
                self.store.url(),
                begun.get(&file.name).map(|b| b.len() as u64),
            )?;
        }
        if self.if_exists == IfExists::Refuse && !place.files.is_empty() {
            return Err(StorageError::Exists {
                path: self.store.url(),
            });
        }
        let new = place.begun.remove(&self.attempt).unwrap_or_default();
        if let IfExists::Replace(old) = &self.if_exists {
            place.files.retain(|n, _| !old.contains(n));
        }
        place.files.extend(new);
        place.files.extend(record);
        Ok(())
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let place = lock(&self.store.place);
        let begun = place.begun.get(&self.attempt).ok_or_else(|| self.gone())?;
        Ok(begun
            .iter()
            .map(|(name, b)| Entry {
                name: name.clone(),
                bytes: b.len() as u64,
            })
            .collect())
    }

    async fn rollback(&self) -> Result<()> {
        lock(&self.store.place).begun.remove(&self.attempt);
        Ok(())
    }
}
