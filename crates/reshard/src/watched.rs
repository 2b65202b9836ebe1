//! What a load reads, seen at the store: whatever the strategy.

use crate::report::RankReads;
use async_trait::async_trait;
use bytes::Bytes;
use reshard_storage::{
    Entry, Gather, Hints, IfExists, Leftover, Name, Progress, ReadStats, Result, Stage, Store,
};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

/// A store that notes what is read through it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    inner: Arc<dyn Store>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    bytes: u64,
    files: BTreeSet<Name>,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, seen: Arc::default() }
    }

    /// What was read so far, and of which files.
    pub(crate) fn seen(&self) -> (RankReads, BTreeSet<String>) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let reads = RankReads { bytes: seen.bytes, files: seen.files.len() as u64 };
        (reads, seen.files.iter().map(ToString::to_string).collect())
    }

    fn note(&self, files: impl IntoIterator<Item = Name>, bytes: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.bytes += bytes;
        seen.files.extend(files);
    }
}

/// Names, each once: neighbours are mostly of one file.
fn names<'n>(all: impl Iterator<Item = &'n Name>) -> BTreeSet<Name> {
    let mut out = BTreeSet::new();
    for name in all {
        if !out.contains(name) {
            out.insert(name.clone());
        }
    }
    out
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Watched {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn hints(&self) -> Hints {
        self.inner.hints()
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let bytes = self.inner.read(name, range).await?;
        self.note([name.clone()], bytes.len() as u64);
        Ok(bytes)
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<Vec<Bytes>> {
        let files = names(reads.iter().map(|(name, _)| name));
        let all = self.inner.read_ranges(reads).await?;
        self.note(files, all.iter().map(|b| b.len() as u64).sum());
        Ok(all)
    }

    async fn gather(&self, gathers: Vec<Gather>, progress: Progress) -> Result<ReadStats> {
        let files = names(gathers.iter().map(|g| &g.name));
        let stats = self.inner.gather(gathers, progress).await?;
        self.note(files, stats.bytes_read + stats.bytes_between);
        Ok(stats)
    }

    async fn list(&self) -> Result<Vec<Entry>> {
        self.inner.list().await
    }

    async fn top(&self) -> Result<Vec<Entry>> {
        self.inner.top().await
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        self.inner.remove(names).await
    }

    async fn modified(&self, name: &Name) -> Result<Option<SystemTime>> {
        self.inner.modified(name).await
    }

    async fn len(&self, name: &Name) -> Result<Option<u64>> {
        self.inner.len(name).await
    }

    async fn exists(&self, name: &Name) -> Result<bool> {
        self.inner.exists(name).await
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        let inner = self.inner.pinned().await?;
        Ok(inner.map(|inner| Arc::new(Self { inner, seen: Arc::clone(&self.seen) }) as _))
    }

    async fn stage(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Stage>> {
        self.inner.stage(attempt, if_exists).await
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        self.inner.leftovers().await
    }

    async fn remove_leftover(&self, attempt: &str) -> Result<()> {
        self.inner.remove_leftover(attempt).await
    }

    async fn finish_replacing(&self, attempt: &str, files: &[Name]) -> Result<()> {
        self.inner.finish_replacing(attempt, files).await
    }
}
