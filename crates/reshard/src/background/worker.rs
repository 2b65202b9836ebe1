//! The thread on which a save is written, and perhaps committed.

use crate::{
    Error, Result, SaveReport,
    save::{ACT, PendingSave},
};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use reshard_comm::{Cause, Comm};
use reshard_storage::wait;
use reshard_strategy::{AsyncStager, StrategyError};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

/// Tells a thread to stop writing. Dropping it does so, too.
pub(super) type Stop = oneshot::Sender<()>;

/// What one thread has to write.
pub(super) struct Job {
    pub(super) pending: PendingSave,
    /// If the caller does not wait for the copies: the stager that completes them.
    pub(super) stager: Option<Arc<dyn AsyncStager>>,
    /// Hears when the caller may change its state.
    pub(super) staged: oneshot::Sender<()>,
    /// Hears when to stop, if anybody may say so.
    pub(super) stop: Option<oneshot::Receiver<()>>,
}

impl Job {
    /// Writes. A panic is a failure of the save.
    fn write(self) -> PendingSave {
        let Self {
            mut pending,
            stager,
            staged,
            stop,
        } = self;
        let written = catch_unwind(AssertUnwindSafe(|| {
            wait(async {
                if let Some(stager) = stager {
                    pending.synchronize_staging(&*stager).await;
                }
                // The handle may be gone.
                staged.send(()).ok();
                let Some(stop) = stop else {
                    pending.write().await;
                    return true;
                };
                match select(pin!(pending.write()), stop).await {
                    Either::Left(_) => true,
                    Either::Right(_) => false,
                }
            })
        }));
        match written {
            Ok(true) => {}
            Ok(false) => pending.fail(StrategyError::Invalid("the save was aborted".into())),
            Err(panic) => pending.fail(panicked("writes", &*panic)),
        }
        pending
    }
}

/// Commits what all ranks have written. A panic is a failure of the save: the other ranks learn it, and what was written is removed.
pub(super) fn finish(pending: PendingSave, comm: &Comm<'_>) -> Result<SaveReport> {
    let (url, remove) = (pending.url().to_owned(), pending.remover());
    let finished = catch_unwind(AssertUnwindSafe(|| {
        // If a panic drops it, it tells the other ranks.
        let guard = comm.guard("an asynchronous save");
        let finished = wait(pending.finish(comm));
        guard.done();
        finished
    }));
    finished.unwrap_or_else(|panic| {
        wait(remove);
        Err(Error::new(ACT, &url, panicked("commits", &*panic)))
    })
}

fn panicked(does: &str, panic: &(dyn Any + Send)) -> StrategyError {
    let message = Cause::from_panic(panic).message;
    StrategyError::Internal(format!("the thread that {does} a save {message}"))
}

/// Writes on a new thread, and goes on with `then` there. If the system has no more threads, all of it happens here, before
/// this returns.
pub(super) fn spawn(
    job: Job,
    then: impl FnOnce(PendingSave) + Send + 'static,
) -> Option<JoinHandle<()>> {
    // The work stays reachable if no thread takes it.
    let work = Arc::new(Mutex::new(Some((job, then))));
    let of_thread = Arc::clone(&work);
    let thread = thread::Builder::new().name("reshard-save".into());
    match thread.spawn(move || run(&of_thread)) {
        Ok(thread) => Some(thread),
        Err(e) => {
            tracing::warn!(error = %e, "no thread for an asynchronous save, which is written at once");
            run(&work);
            None
        }
    }
}

fn run<F: FnOnce(PendingSave)>(work: &Mutex<Option<(Job, F)>>) {
    let taken = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((job, then)) = taken {
        then(job.write());
    }
}
