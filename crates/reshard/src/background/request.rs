use crate::{SaveReport, save::PendingSave};
use reshard_model::{BoxError, ErrorKind};
use reshard_storage::wait;
use reshard_strategy::StrategyError;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a rank does when a checkpoint is committed.
pub(super) type FinalizeFn = Box<dyn FnOnce(&SaveReport) -> Result<(), BoxError> + Send>;

/// Saves, each with the number of its request.
type Numbered = Vec<(u64, PendingSave)>;

/// Requests that were dropped before they were scheduled; `None` once their queue is gone.
#[derive(Clone)]
pub(super) struct Dropped(Arc<Mutex<Option<Numbered>>>);

impl Dropped {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Numbered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are of one queue.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn push(&self, number: u64, pending: PendingSave) {
        if let Some(dropped) = &mut *self.lock() {
            return dropped.push((number, pending));
        }
        // Nobody is left who could tell the other ranks.
        wait(pending.abandon());
    }

    /// The numbers and URLs of those that are `told`.
    pub(super) fn list(&self, told: impl Fn(u64) -> bool) -> Vec<(u64, String)> {
        let dropped = self.lock();
        let of = |(number, pending): &(u64, PendingSave)| (*number, pending.url().to_owned());
        let dropped = dropped.iter().flatten().map(of);
        dropped.filter(|(number, _)| told(*number)).collect()
    }

    /// Takes those that are meant.
    pub(super) fn take(&self, meant: impl Fn(u64) -> bool) -> Numbered {
        let mut dropped = self.lock();
        let all = dropped.iter_mut().flat_map(std::mem::take);
        let (taken, others) = all.partition(|(number, _)| meant(*number));
        if let Some(dropped) = &mut *dropped {
            *dropped = others;
        }
        taken
    }

    /// The queue is gone. Returns what it has not heard of.
    pub(super) fn close(&self) -> Numbered {
        self.lock().take().unwrap_or_default()
    }
}

/// Megatron Core's `AsyncRequest`: a save that is planned and staged, made by
/// [`AsyncCallsQueue::request`](crate::AsyncCallsQueue::request). Add functions to it, and
/// [schedule](crate::AsyncCallsQueue::schedule) it.
///
/// If a rank drops it instead, the save is lost: the next [`maybe_finalize`](crate::AsyncCallsQueue::maybe_finalize) or
/// [`close`](crate::AsyncCallsQueue::close) fails on all ranks. If it outlives its queue, `close` has failed already.
#[must_use = "a request that is dropped fails the next finalization on all ranks"]
pub struct AsyncRequest {
    pub(super) number: u64,
    pub(super) pending: Option<PendingSave>,
    pub(super) finalize_fns: Vec<FinalizeFn>,
    pub(super) frozen: bool,
    pub(super) dropped: Dropped,
}

impl fmt::Debug for AsyncRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncRequest")
            .field("url", &self.url())
            .field("finalize_fns", &self.finalize_fns.len())
            .field("frozen", &self.frozen)
            .finish_non_exhaustive()
    }
}

/// A function was added to a request that can't be changed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot add finalization functions to a frozen request; add them before `freeze`")]
pub struct FrozenRequest;

impl FrozenRequest {
    /// What the caller can do.
    pub fn kind(self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

impl AsyncRequest {
    /// Where the save goes.
    pub fn url(&self) -> &str {
        self.pending.as_ref().map_or("", PendingSave::url)
    }

    /// Adds a function that this rank calls when the checkpoint is committed, after those that were added before. If one
    /// fails, the finalization fails on all ranks; the checkpoint stays.
    ///
    /// # Errors
    /// The request is frozen.
    pub fn add_finalize_fn(
        &mut self,
        f: impl FnOnce(&SaveReport) -> Result<(), BoxError> + Send + 'static,
    ) -> Result<(), FrozenRequest> {
        if self.frozen {
            return Err(FrozenRequest);
        }
        self.finalize_fns.push(Box::new(f));
        Ok(())
    }

    /// No functions can be added from now on. Scheduling does this, too.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Whether functions can't be added any more.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }
}

impl Drop for AsyncRequest {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            tracing::error!(
                url = pending.url(),
                "a request to save was dropped before it was scheduled"
            );
            // Ranks that have scheduled theirs may wait in an exchange for this one.
            pending.fail(StrategyError::Invalid("the request was dropped".into()));
            self.dropped.push(self.number, pending);
        }
    }
}
