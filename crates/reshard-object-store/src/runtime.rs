//! The tokio runtime on which the clients run, whoever polls the futures of a store.

use crate::tries;
use reshard_storage::{Result, StorageError};
use std::{
    io,
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll, ready},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};

/// It is never dropped, because a runtime must not be dropped by async code.
static OWN: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("reshard-net")
        .enable_all()
        .build()
});

/// Where network requests run.
#[derive(Clone, Debug)]
pub(crate) struct Net(Handle);

impl Net {
    /// The threads of this crate. All stores share them.
    pub(crate) fn own() -> Result<Self> {
        match &*OWN {
            Ok(runtime) => Ok(Self(runtime.handle().clone())),
            Err(e) => Err(StorageError::Io {
                action: "start threads for",
                path: "the network".into(),
                source: io::Error::new(e.kind(), e.to_string()),
            }),
        }
    }

    /// The runtime of the caller.
    pub(crate) fn on(handle: Handle) -> Self {
        Self(handle)
    }

    /// Starts work there. It is called off when the task is dropped.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        Task(self.0.spawn(tries::counted(work)))
    }

    /// Starts work that nobody waits for.
    pub(crate) fn leave(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(tries::counted(work)));
    }
}

/// Work on the runtime.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(outcome.map_err(|e| StorageError::Panicked {
            message: e.to_string(),
        }))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
