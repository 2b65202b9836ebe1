//! A place where something happens between two calls of one process.

use crate::resume::claim::CLAIM;
use async_trait::async_trait;
use bytes::Bytes;
use reshard::storage::{IfExists, Name, Result, Store, Transaction};
use std::{
    fmt,
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
    reshard::storage::forward! { inner: url hints read list head remove join recovery }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        let read = self.inner.read_all(name, max).await;
        if name.as_str().ends_with(CLAIM) {
            self.passes(Moment::Looked);
        }
        read
    }
    async fn begin(&self, attempt: &str, how: IfExists) -> Result<Arc<dyn Transaction>> {
        self.passes(Moment::Begin);
        self.inner.begin(attempt, how).await
    }
}
