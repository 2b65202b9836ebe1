//! A scheduled save.

use super::{
    request::FinalizeFn,
    worker::{Job, Stop, spawn},
};
use crate::save::PendingSave;
use futures_channel::oneshot;
use std::thread::JoinHandle;

/// A scheduled save.
pub(super) struct Call {
    /// The number of its request.
    pub(super) index: u64,
    pub(super) url: String,
    pub(super) finalize_fns: Vec<FinalizeFn>,
    written: oneshot::Receiver<PendingSave>,
    /// What the thread has handed over.
    pending: Option<PendingSave>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Call {
    /// Begins to write on a thread of its own.
    pub(super) fn start(index: u64, finalize_fns: Vec<FinalizeFn>, pending: PendingSave) -> Self {
        let url = pending.url().to_owned();
        // The request was staged before, so nobody waits for that.
        let (staged, _) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (writes, written) = oneshot::channel();
        let job = Job {
            pending,
            stager: None,
            staged,
            stop: Some(stopped),
        };
        // If the queue is gone, nobody wants it.
        let thread = spawn(job, move |pending| drop(writes.send(pending)));
        Self {
            index,
            url,
            finalize_fns,
            written,
            pending: None,
            stop,
            thread,
        }
    }

    /// What the thread has handed over, if it has.
    pub(super) fn take(&mut self) -> Option<PendingSave> {
        drop(self.thread.take().map(JoinHandle::join));
        self.pending.take()
    }

    /// Whether this rank has written.
    pub(super) fn is_written(&mut self) -> bool {
        if self.pending.is_none()
            && let Ok(Some(pending)) = self.written.try_recv()
        {
            self.pending = Some(pending);
        }
        self.pending.is_some()
    }

    /// Waits until this rank has written.
    pub(super) async fn wait(&mut self) {
        if self.pending.is_none() {
            self.pending = (&mut self.written).await.ok();
        }
    }

    /// Stops writing, and waits until nothing is written any more.
    pub(super) async fn stop(mut self) -> Option<PendingSave> {
        // The thread may be done.
        std::mem::replace(&mut self.stop, oneshot::channel().0)
            .send(())
            .ok();
        self.wait().await;
        self.take()
    }
}
