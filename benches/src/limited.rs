//! A store that gives only so many bytes in a second, to all ranks together, as a shared file system does.

use reshard::storage::{
    Depth, Head, Hints, IfExists, Listing, Name, Progress, RecordRead, Result, Store, Traffic,
    Transaction,
};
use std::{
    future::poll_fn,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

/// What all ranks share.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    bytes_per_second: f64,
    /// Until when what was read so far takes.
    busy: Arc<Mutex<Instant>>,
}

impl Rate {
    pub(crate) fn new(bytes_per_second: f64) -> Self {
        let busy = Arc::new(Mutex::new(Instant::now()));
        Self {
            bytes_per_second,
            busy,
        }
    }

    /// When so many bytes will have come that are asked for now.
    fn ask(&self, bytes: u64) -> Instant {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let took = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        *busy = (*busy).max(Instant::now()) + took;
        *busy
    }
}

/// Waits.
async fn at(until: Instant) {
    let mut sleeps = false;
    poll_fn(|cx| {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Poll::Ready(());
        }
        if !std::mem::replace(&mut sleeps, true) {
            let waker = cx.waker().clone();
            thread::spawn(move || {
                thread::sleep(left);
                waker.wake();
            });
        }
        Poll::Pending
    })
    .await;
}

/// A store at this rate.
#[derive(Debug)]
pub(crate) struct Limited {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) rate: Rate,
}

#[async_trait::async_trait]
impl Store for Limited {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn hints(&self) -> Hints {
        self.inner.hints()
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<bytes::Bytes> {
        let until = self.rate.ask(range.end.saturating_sub(range.start));
        let read = self.inner.read(name, range).await?;
        at(until).await;
        Ok(read)
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        let parts = reads.iter().flat_map(|read| &read.parts);
        let until = self.rate.ask(parts.map(|part| part.into.bytes()).sum());
        let read = self.inner.read_into(reads, progress).await?;
        at(until).await;
        Ok(read)
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        self.inner.list(below, depth).await
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        self.inner.head(name).await
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        self.inner.remove(names).await
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        self.inner.begin(attempt, if_exists).await
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.inner.join(attempt, place).await
    }
}
