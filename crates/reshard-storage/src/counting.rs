use crate::{
    Depth, Durability, Entry, FileBody, Head, IfExists, Listing, Name, Progress, RecordRead,
    Result, Store, Tags, Traffic, Transaction, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// What went through a [`CountingStore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Files that were read from.
    pub opened: BTreeSet<Name>,
    /// Sum over all reads.
    pub records: Traffic,
    /// The number of ranges that `read` and `read_ranges` were asked for.
    pub ranges: u64,
    /// The bytes that were read for these ranges, including short gaps between ranges that were read together.
    pub range_bytes: u64,
    /// The number of requests of a store that needs one for each `read`, `read_all`, `head` and `list`.
    pub requests: u64,
    /// The calls of `list` among them.
    pub lists: u64,
    /// The number of files written, including commit records.
    pub files: u64,
    /// The bytes of these files.
    pub written: u64,
}

impl Counts {
    /// All bytes that were read, including short gaps between wanted ranges.
    pub fn read(&self) -> u64 {
        self.range_bytes + self.records.bytes + self.records.beside
    }
}

/// A store that counts what is read and written through it, for reports and tests.
#[derive(Clone, Debug)]
pub struct CountingStore {
    inner: Arc<dyn Store>,
    counts: Arc<Mutex<Counts>>,
}

impl CountingStore {
    /// Wraps another store.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            counts: Arc::default(),
        }
    }

    /// What was counted since the last call.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn transaction(&self, inner: Arc<dyn Transaction>) -> Arc<dyn Transaction> {
        let store = self.clone();
        Arc::new(CountingTransaction { inner, store })
    }
}

/// Names, each once.
fn names<'n>(all: impl Iterator<Item = &'n Name>) -> BTreeSet<Name> {
    let once: BTreeSet<&Name> = all.collect();
    once.into_iter().cloned().collect()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for CountingStore {
    crate::forward! { inner: url identity hints remove local_file links begin_dry_run recovery }
    crate::forward! { again inner: pinned resolved of_kind }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let bytes = self.inner.read(name, range).await?;
        self.count(|c| {
            c.opened.insert(name.clone());
            c.ranges += 1;
            c.range_bytes += bytes.len() as u64;
            c.requests += 1;
        });
        Ok(bytes)
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        self.count(|c| c.requests += 1);
        let found = self.inner.read_all(name, max).await?;
        if let Some(bytes) = &found {
            self.count(|c| {
                c.opened.insert(name.clone());
                c.ranges += 1;
                c.range_bytes += bytes.len() as u64;
            });
        }
        Ok(found)
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, Traffic)> {
        let opened = names(reads.iter().map(|(name, _)| name));
        let (all, stats) = self.inner.read_ranges(reads).await?;
        self.count(|c| {
            c.opened.extend(opened);
            c.ranges += all.len() as u64;
            c.range_bytes += stats.bytes + stats.beside;
            c.requests += stats.requests;
        });
        Ok((all, stats))
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        let opened = names(reads.iter().map(|g| &g.name));
        let stats = self.inner.read_into(reads, progress).await?;
        self.count(|c| {
            c.opened.extend(opened);
            c.records += stats;
            c.requests += stats.requests;
        });
        Ok(stats)
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        self.count(|c| {
            c.requests += 1;
            c.lists += 1;
        });
        self.inner.list(below, depth).await
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        self.count(|c| c.requests += 1);
        self.inner.head(name).await
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let begun = self.inner.begin(attempt, if_exists).await;
        begun.map(|inner| self.transaction(inner))
    }

    async fn tags(&self, name: &Name) -> Result<Option<Tags>> {
        self.count(|c| c.requests += 1);
        self.inner.tags(name).await
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        let joined = self.inner.join(attempt, place).await?;
        Ok(self.transaction(joined))
    }
}

#[derive(Debug)]
struct CountingTransaction {
    inner: Arc<dyn Transaction>,
    store: CountingStore,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Transaction for CountingTransaction {
    crate::forward! { inner: read place folder written rollback }

    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let all = self.inner.write(files, durability, progress).await?;
        self.store.count(|c| {
            c.files += all.len() as u64;
            c.written += all.iter().map(|w| w.bytes).sum::<u64>();
        });
        Ok(all)
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        let record_bytes = record.as_ref().map(|(_, bytes)| bytes.len() as u64);
        self.inner.commit(record, files, durability).await?;
        self.store.count(|c| {
            c.files += u64::from(record_bytes.is_some());
            c.written += record_bytes.unwrap_or(0);
        });
        Ok(())
    }
}
