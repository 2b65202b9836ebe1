use crate::{
    Bandwidth, Durability, Entry, Extent, FileBody, IfExists, Length, Name, Progress, RecordRead,
    Result, Source, StorageError, Store, Traffic, Transaction, Written, record_read::reads,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{io, ops::Range, sync::Arc};

/// A store that reads and writes no more bytes per second than it may.
#[derive(Clone, Debug)]
pub struct ThrottledStore {
    inner: Arc<dyn Store>,
    reads: Bandwidth,
    writes: Bandwidth,
}

impl ThrottledStore {
    /// Wraps another store. Several stores may share a limit. Copies that a file system or a service makes by itself are not limited.
    pub fn new(inner: Arc<dyn Store>, reads: Bandwidth, writes: Bandwidth) -> Self {
        Self {
            inner,
            reads,
            writes,
        }
    }

    fn transaction(&self, inner: Arc<dyn Transaction>) -> Arc<dyn Transaction> {
        let store = self.clone();
        Arc::new(ThrottledTransaction { inner, store })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for ThrottledStore {
    crate::forward! {
        inner: url identity hints list head remove tags local_file links begin_dry_run recovery
    }
    crate::forward! { again inner: pinned resolved of_kind }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        // What is longer than a part is read in parts, so that a limit holds within it, too.
        let part = self.hints().part_size.max(1);
        if range.end.saturating_sub(range.start) <= part {
            self.reads.wait(range.end.saturating_sub(range.start)).await;
            return self.inner.read(name, range).await;
        }
        let mut all = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(part));
            self.reads.wait(end - at).await;
            // A file that ends before is known by its last byte, before memory is taken for the whole.
            if at == range.start {
                let last = self.inner.read(name, range.end - 1..range.end).await;
                last.map_err(|e| of_all(e, &range))?;
            }
            all.extend_from_slice(&self.inner.read(name, at..end).await?);
            at = end;
        }
        Ok(all.into())
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        let found = self.inner.read_all(name, max).await?;
        if let Some(bytes) = &found {
            // Its length is known only now. The next read waits for it.
            self.reads.wait(bytes.len() as u64).await;
        }
        Ok(found)
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, Traffic)> {
        reads::read_ranges(self, reads).await
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        reads::read_into(self, reads, progress).await
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let begun = self.inner.begin(attempt, if_exists).await?;
        Ok(self.transaction(begun))
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        let joined = self.inner.join(attempt, place).await?;
        Ok(self.transaction(joined))
    }
}

/// The error of a part, which names all of the range.
fn of_all(e: StorageError, all: &Range<u64>) -> StorageError {
    match e {
        StorageError::Short { path, size, .. } => StorageError::Short {
            path,
            range: all.clone(),
            size,
        },
        e => e,
    }
}

#[derive(Debug)]
struct ThrottledTransaction {
    inner: Arc<dyn Transaction>,
    store: ThrottledStore,
}

/// Waits with each block until it may be written.
struct ThrottledExtent {
    inner: Box<dyn Extent>,
    writes: Bandwidth,
}

#[deny(clippy::missing_trait_methods)]
impl Extent for ThrottledExtent {
    fn length(&self) -> Length {
        self.inner.length()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.inner.next_block();
        if let Some(Ok(bytes)) = &block {
            self.writes.block(bytes.len() as u64);
        }
        block
    }

    fn receipt(&mut self) -> Bytes {
        self.inner.receipt()
    }

    fn has_crc32(&self) -> bool {
        self.inner.has_crc32()
    }

    fn crc32(&self) -> Option<u32> {
        self.inner.crc32()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Transaction for ThrottledTransaction {
    crate::forward! { inner: place folder written rollback }

    async fn write(
        &self,
        mut files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        for file in &mut files {
            if let Source::Extents(extents) = &mut file.source {
                let limited = |inner| {
                    let writes = self.store.writes.clone();
                    Box::new(ThrottledExtent { inner, writes }) as Box<dyn Extent>
                };
                *extents = std::mem::take(extents).into_iter().map(limited).collect();
            }
        }
        self.inner.write(files, durability, progress).await
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.store
            .reads
            .wait(range.end.saturating_sub(range.start))
            .await;
        self.inner.read(name, range).await
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        if let Some((_, bytes)) = &record {
            self.store.writes.wait(bytes.len() as u64).await;
        }
        self.inner.commit(record, files, durability).await
    }
}
