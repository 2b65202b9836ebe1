//! A cache on a local disk for places that are far away.

mod block;

use crate::{
    Head, Hints, KnownTags, Name, PlaceKind, Progress, RecordRead, Result, StorageError, Store,
    Tagged, Traffic, record_read::reads, run_blocking,
};
use async_trait::async_trait;
use block::{BLOCK, Blocks, Key};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, lock::Mutex, stream};
use std::{ops::Range, path::PathBuf, sync::Arc};

/// A cache in a local directory, for [`CachedStore`]. Processes and stores may share the directory.
///
/// Made by [`read_through`].
#[derive(Clone, Debug)]
pub struct DiskCache(Arc<Blocks>);

/// A cache of at most so many bytes in a directory, which is made when it is needed. Blocks that were not used for the longest time are removed when
/// there are too many. A process that writes notices what others have written after a sixteenth of the size at the latest.
///
/// ```
/// use reshard_storage::{Stores, read_through};
///
/// let cache = read_through("/var/cache/reshard", 10 << 30);
/// let stores = Stores::linked()?.around(move |store| cache.around(store));
/// # Ok::<(), reshard_storage::StorageError>(())
/// ```
pub fn read_through(dir: impl Into<PathBuf>, bytes: u64) -> DiskCache {
    DiskCache(Arc::new(Blocks::new(dir.into(), bytes)))
}

impl DiskCache {
    /// The store, read through this cache. A place that is not far away is returned as it is: it is no faster from a cache.
    pub fn around(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match store.hints().requests_are_dear() {
            true => Arc::new(CachedStore::new(store, self.clone())),
            false => store,
        }
    }
}

/// What is known of one file.
enum Found {
    /// Nothing: its store has no tags.
    Nothing,
    Absent,
    Version(Tagged),
}

/// A store that is read through a [`DiskCache`].
///
/// A version of a file is known by the place's [identity](Store::identity), its name, its length and its tag, so a file that was replaced is read again. Only stores that
/// have tags are cached ([`Store::tags`]), which is when they are [pinned](Store::pinned).
#[derive(Clone, Debug)]
pub struct CachedStore {
    inner: Arc<dyn Store>,
    cache: DiskCache,
    known: Arc<Mutex<KnownTags>>,
}

impl CachedStore {
    /// Wraps another store.
    pub fn new(inner: Arc<dyn Store>, cache: DiskCache) -> Self {
        Self {
            inner,
            cache,
            known: Arc::default(),
        }
    }

    fn same(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self::new(inner, self.cache.clone()))
    }

    /// The version of a file. Of many that ask at once only the first asks the store.
    async fn version(&self, name: &Name) -> Result<Found> {
        let mut known = self.known.lock().await;
        if !known.has(name) {
            let tags = self.inner.tags(name).await?;
            known.learn(name, tags);
        }
        Ok(match known.get(name) {
            _ if known.is_untagged() => Found::Nothing,
            Some(tagged) => Found::Version(tagged.clone()),
            None => Found::Absent,
        })
    }

    /// Reads a range of a file that has so many bytes and more.
    async fn through(&self, file: &Tagged, range: Range<u64>) -> Result<Bytes> {
        let (place, size) = (self.inner.identity(), file.head.bytes);
        let numbers = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let key = |n| Key::new(&place, file.name.as_str(), (size, &file.tag), n);
        let bytes_of = move |n: u64| n * BLOCK..size.min((n + 1).saturating_mul(BLOCK));

        // Disks are slow enough for the threads of I/O.
        let look = numbers.clone().map(|n| {
            let (cache, key, at) = (self.cache.clone(), key(n), bytes_of(n));
            move || cache.0.get(&key, at.end - at.start).map(Bytes::from)
        });
        let mut found = run_blocking(look).await?;
        let missing = runs(numbers.start, &found);
        let fetched: Vec<(Range<u64>, Bytes)> = stream::iter(missing)
            .map(|run| async move {
                let at = bytes_of(run.start).start..bytes_of(run.end - 1).end;
                let bytes = self.inner.read(&file.name, at.clone()).await?;
                if bytes.len() as u64 != at.end - at.start {
                    return Err(StorageError::Short {
                        path: format!("{}/{}", self.inner.url(), file.name),
                        range: at,
                        size: bytes.len() as u64,
                    });
                }
                Ok((run, bytes))
            })
            .buffered(self.hints().concurrency.max(1))
            .try_collect()
            .await?;
        let mut new = Vec::new();
        for (run, bytes) in fetched {
            for n in run.clone() {
                let at = bytes_of(n);
                let from = (n - run.start) * BLOCK;
                let block = bytes.slice(from as usize..(from + at.end - at.start) as usize);
                new.push((key(n), block.clone()));
                if let Some(place) = found.get_mut((n - numbers.start) as usize) {
                    *place = Some(block);
                }
            }
        }
        let keep = new.into_iter().map(|(key, block)| {
            let cache = self.cache.clone();
            move || cache.0.put(&key, &block)
        });
        run_blocking(keep).await?;
        let blocks: Vec<Bytes> = found.into_iter().flatten().collect();
        Ok(cut(
            &blocks,
            range.start - numbers.start * BLOCK,
            range.end - range.start,
        ))
    }
}

/// The runs of blocks that were not found. The first has the number `first`.
fn runs(first: u64, found: &[Option<Bytes>]) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for (n, block) in (first..).zip(found) {
        match out.last_mut() {
            _ if block.is_some() => {}
            Some(run) if run.end == n => run.end = n + 1,
            _ => out.push(n..n + 1),
        }
    }
    out
}

/// So many bytes of blocks that follow each other, from a byte of the first on.
fn cut(blocks: &[Bytes], from: u64, len: u64) -> Bytes {
    let (from, len) = (from as usize, len as usize);
    // What lies in one block is not copied.
    if let Some(first) = blocks.first()
        && first.len() >= from + len
    {
        return first.slice(from..from + len);
    }
    let mut out = BytesMut::with_capacity(len);
    let mut skip = from;
    for block in blocks {
        let part = block.get(skip..).unwrap_or_default();
        out.extend_from_slice(part.get(..len - out.len()).unwrap_or(part));
        skip = 0;
    }
    out.freeze()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for CachedStore {
    crate::forward! { inner: url identity list tags local_file links begin begin_dry_run join recovery }

    /// With the blocks in which a part begins and ends, it is no longer than a part of the store.
    fn hints(&self) -> Hints {
        let hints = self.inner.hints();
        let part = hints.part_size.saturating_sub(2 * BLOCK).max(BLOCK);
        hints.with_part_size(part)
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        match self.version(name).await? {
            Found::Version(file) if range.start < range.end && range.end <= file.head.bytes => {
                self.through(&file, range).await
            }
            // The store tells best what is wrong.
            _ => self.inner.read(name, range).await,
        }
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        match self.version(name).await? {
            Found::Nothing => self.inner.read_all(name, max).await,
            Found::Absent => Ok(None),
            Found::Version(file) if file.head.bytes > max => Err(StorageError::Longer {
                path: format!("{}/{name}", self.url()),
                size: file.head.bytes,
                max,
            }),
            Found::Version(file) if file.head.bytes == 0 => Ok(Some(Bytes::new())),
            Found::Version(file) => self.through(&file, 0..file.head.bytes).await.map(Some),
        }
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, Traffic)> {
        reads::read_ranges(self, reads).await
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        reads::read_into(self, reads, progress).await
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        Ok(match self.version(name).await? {
            Found::Nothing => self.inner.head(name).await?,
            Found::Absent => None,
            Found::Version(file) => Some(file.head),
        })
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        *self.known.lock().await = KnownTags::default();
        self.inner.remove(names).await
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(self.inner.pinned().await?.map(|inner| self.same(inner)))
    }

    async fn resolved(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(self.inner.resolved().await?.map(|inner| self.same(inner)))
    }

    fn of_kind(&self, kind: PlaceKind) -> Option<Arc<dyn Store>> {
        self.inner.of_kind(kind).map(|inner| self.same(inner))
    }
}
