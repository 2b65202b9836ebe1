//! A place where something happens between two calls of one process.

use crate::resume::claim::CLAIM;
use async_trait::async_trait;
use bytes::Bytes;
use reshard::storage::{
    Depth, Head, Hints, IfExists, Listing, Name, Recovery, Result, Store, Transaction,
};
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
};

/// What happens, once.
type Event = Mutex<Option<Box<dyn FnOnce() + Send>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// A claim was looked for.
    Looked,
    /// A version is about to be begun.
    Begin,
}

pub(super) struct Meanwhile {
    inner: Arc<dyn Store>,
    moment: Moment,
    event: Event,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "something happens at {:?}", self.inner)
    }
}

impl Meanwhile {
    fn at(
        inner: &Arc<dyn Store>,
        moment: Moment,
        event: impl FnOnce() + Send + 'static,
    ) -> Arc<dyn Store> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            moment,
            event: Mutex::new(Some(Box::new(event))),
        })
    }

    pub(super) fn after_the_claim_is_read(
        inner: &Arc<dyn Store>,
        event: impl FnOnce() + Send + 'static,
    ) -> Arc<dyn Store> {
        Self::at(inner, Moment::Looked, event)
    }

    pub(super) fn before_a_version_is_begun(
        inner: &Arc<dyn Store>,
        event: impl FnOnce() + Send + 'static,
    ) -> Arc<dyn Store> {
        Self::at(inner, Moment::Begin, event)
    }

    fn passes(&self, moment: Moment) {
        if moment == self.moment
            && let Some(event) = self.event.lock().unwrap().take()
        {
            event();
        }
    }
}

#[async_trait]
impl Store for Meanwhile {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn hints(&self) -> Hints {
        self.inner.hints()
    }
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.inner.read(name, range).await
    }
    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        let read = self.inner.read_all(name, max).await;
        if name.as_str().ends_with(CLAIM) {
            self.passes(Moment::Looked);
        }
        read
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
    async fn begin(&self, attempt: &str, how: IfExists) -> Result<Arc<dyn Transaction>> {
        self.passes(Moment::Begin);
        self.inner.begin(attempt, how).await
    }
    async fn join(&self, attempt: &str, at: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.inner.join(attempt, at).await
    }
    fn recovery(&self) -> Option<&dyn Recovery> {
        self.inner.recovery()
    }
}
