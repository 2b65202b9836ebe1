//! `example://NAME`: files in the memory of the process. What a store must do, and nothing else: reads that land in regions,
//! ranges read together and the like have default bodies.

use crate::NAME;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reshard_storage::{
    Depth, Durability, Entry, FileBody, Head, Hints, IfExists, Leftover, Listing, Name, Progress, Recovery,
    Result, StorageError, Store, StoreScheme, Transaction, Written, WrittenExtent,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

inventory::submit! {
    StoreScheme::new(NAME, env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), |url| {
        Ok(Arc::new(ExampleStore::open(url)))
    })
}

type Files = BTreeMap<Name, Bytes>;

#[derive(Debug, Default)]
struct Place {
    files: Files,
    /// Versions that nobody sees yet, by attempt.
    begun: BTreeMap<String, Files>,
}

static PLACES: Mutex<BTreeMap<String, Arc<Mutex<Place>>>> = Mutex::new(BTreeMap::new());

/// A place in memory; all stores of one URL share it.
#[derive(Clone, Debug)]
pub struct ExampleStore {
    url: String,
    place: Arc<Mutex<Place>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExampleStore {
    /// The place of a URL.
    pub fn open(url: &str) -> Self {
        Self { url: url.into(), place: lock(&PLACES).entry(url.into()).or_default().clone() }
    }
}

#[async_trait]
impl Store for ExampleStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn hints(&self) -> Hints {
        Hints::default()
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let path = format!("{}/{name}", self.url);
        let Some(bytes) = lock(&self.place).files.get(name).cloned() else {
            return Err(StorageError::NotFound { path });
        };
        match bytes.len() as u64 {
            size if range.end > size => Err(StorageError::Short { path, range, size }),
            _ if range.start > range.end => {
                Err(StorageError::invalid(format!("{path}: a range ends before it starts")))
            }
            _ => Ok(bytes.slice(range.start as usize..range.end as usize)),
        }
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let place = lock(&self.place);
        let all = place.files.iter().map(|(n, b)| Entry { name: n.clone(), bytes: b.len() as u64 });
        Ok(Listing::below(all.collect(), below, depth))
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        let mut place = lock(&self.place);
        place.files.retain(|n, _| !names.contains(n));
        Ok(())
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        Ok(lock(&self.place).files.get(name).map(|b| Head::new(b.len() as u64, None)))
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let mut place = lock(&self.place);
        if if_exists == IfExists::Refuse && !place.files.is_empty() {
            return Err(StorageError::Exists { path: self.url.clone() });
        }
        place.begun.entry(attempt.into()).or_default();
        Ok(Arc::new(ExampleTransaction { store: self.clone(), attempt: attempt.into(), if_exists }))
    }

    // Who joins a version that nobody has begun would write what nobody commits.
    async fn join(&self, attempt: &str, _: Option<&str>) -> Result<Arc<dyn Transaction>> {
        if !lock(&self.place).begun.contains_key(attempt) {
            return Err(StorageError::NotJoined { path: self.url.clone(), attempt: attempt.into() });
        }
        let (store, if_exists) = (self.clone(), IfExists::Refuse);
        Ok(Arc::new(ExampleTransaction { store, attempt: attempt.into(), if_exists }))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        Some(self)
    }
}

#[async_trait]
impl Recovery for ExampleStore {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let place = lock(&self.place);
        Ok(place.begun.keys().map(|a| Leftover::new(a.clone(), format!("{}#{a}", self.url))).collect())
    }

    async fn remove_leftover(&self, attempt: &str) -> Result<()> {
        lock(&self.place).begun.remove(attempt);
        Ok(())
    }
}

/// A version that nobody sees yet.
#[derive(Debug)]
struct ExampleTransaction {
    store: ExampleStore,
    attempt: String,
    if_exists: IfExists,
}

impl ExampleTransaction {
    fn gone(&self) -> StorageError {
        StorageError::invalid(format!(
            "attempt {} at {} is committed or rolled back",
            self.attempt, self.store.url
        ))
    }
}

#[async_trait]
impl Transaction for ExampleTransaction {
    async fn write(&self, files: Vec<FileBody>, _: Durability, progress: Progress) -> Result<Vec<Written>> {
        let mut written = Vec::new();
        for body in files {
            // What is a copy of another file is read as a whole: it will be in memory here too.
            let (name, source) = body.into_extents().await?;
            let (mut bytes, mut extents) = (BytesMut::new(), Vec::new());
            for mut extent in source {
                let (offset, want) = (bytes.len() as u64, extent.length());
                while let Some(block) = extent.next_block() {
                    let at = bytes.len() as u64;
                    let block = block.map_err(|source| StorageError::Source {
                        name: name.clone(),
                        offset: at,
                        source,
                    })?;
                    bytes.extend_from_slice(&block);
                }
                let end = bytes.len() as u64;
                if !want.allows(end - offset) {
                    return Err(StorageError::ExtentLength { name, offset, want, got: end - offset });
                }
                extents.push(WrittenExtent { range: offset..end, receipt: extent.receipt() });
            }
            progress.add(bytes.len() as u64);
            written.push(Written { name: name.clone(), bytes: bytes.len() as u64, extents });
            let mut place = lock(&self.store.place);
            let begun = place.begun.get_mut(&self.attempt).ok_or_else(|| self.gone())?;
            if begun.contains_key(&name) {
                return Err(StorageError::invalid(format!("{name} is written twice")));
            }
            begun.insert(name, bytes.freeze());
        }
        Ok(written)
    }

    // Under one lock, so that others see all of the new version or nothing of it.
    async fn commit(&self, record: Option<(Name, Bytes)>, files: &[Entry], _: Durability) -> Result<()> {
        let mut place = lock(&self.store.place);
        let begun = place.begun.get(&self.attempt).ok_or_else(|| self.gone())?;
        for file in files {
            file.check(&self.store.url, begun.get(&file.name).map(|b| b.len() as u64))?;
        }
        if self.if_exists == IfExists::Refuse && !place.files.is_empty() {
            return Err(StorageError::Exists { path: self.store.url.clone() });
        }
        let new = place.begun.remove(&self.attempt).ok_or_else(|| self.gone())?;
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
        Ok(begun.iter().map(|(name, b)| Entry { name: name.clone(), bytes: b.len() as u64 }).collect())
    }

    async fn rollback(&self) -> Result<()> {
        lock(&self.store.place).begun.remove(&self.attempt);
        Ok(())
    }
}
