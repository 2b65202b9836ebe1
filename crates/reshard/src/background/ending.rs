//! How a save in the background ended: its thread says so, its handle asks, and its saver keeps what nobody asked for.

use crate::{Error, Result, SaveReport};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The first error of the saves of one saver that no handle has returned.
#[derive(Clone, Default)]
pub(super) struct Unseen(Arc<Mutex<Option<Error>>>);

impl Unseen {
    fn tell(&self, e: Error) {
        tracing::error!(error = %e, "an asynchronous save failed, and nobody waits for it");
        lock(&self.0).get_or_insert(e);
    }

    pub(super) fn take(&self) -> Option<Error> {
        lock(&self.0).take()
    }
}

/// The end of one save.
pub(super) struct Ending {
    state: Mutex<State>,
    unseen: Unseen,
}

struct State {
    has_ended: bool,
    /// Whether there is a handle that may ask.
    has_handle: bool,
    outcome: Option<Result<SaveReport>>,
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending")
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

impl Ending {
    pub(super) fn new(unseen: &Unseen) -> Arc<Self> {
        let state = State {
            has_ended: false,
            has_handle: true,
            outcome: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            unseen: unseen.clone(),
        })
    }

    /// The save has ended.
    pub(super) fn set(&self, outcome: Result<SaveReport>) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        if state.has_handle {
            state.outcome = Some(outcome);
        } else if let Err(e) = outcome {
            self.unseen.tell(e);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    /// The outcome, for the handle. It is there once the save has ended.
    pub(super) fn take(&self) -> Option<Result<SaveReport>> {
        lock(&self.state).outcome.take()
    }

    /// The handle is gone.
    pub(super) fn drop_handle(&self) {
        let mut state = lock(&self.state);
        state.has_handle = false;
        if let Some(Err(e)) = state.outcome.take() {
            self.unseen.tell(e);
        }
    }
}

/// Nothing that can panic half-way is done under the lock.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
