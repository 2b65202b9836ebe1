use crate::{Error, Result, SaveReport, save::ACT};
use futures_channel::oneshot;
use futures_util::{FutureExt, future::Shared};
use reshard_strategy::StrategyError;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A save that goes on in the background, made by [`AsyncSaver::start`](crate::AsyncSaver::start) or
/// [`Save::start`](crate::Save::start).
///
/// You may drop it: the save completes all the same. If it fails then, [`AsyncSaver::close`](crate::AsyncSaver::close)
/// returns the error.
#[derive(Debug)]
#[must_use = "only `finish` tells whether the save succeeded"]
pub struct SaveHandle {
    pub(super) url: String,
    pub(super) staged: Shared<oneshot::Receiver<()>>,
    pub(super) outcome: oneshot::Receiver<Result<SaveReport>>,
    pub(super) done: Arc<AtomicBool>,
    pub(super) waited: Duration,
    /// The saver of this save alone, which waits for it when it is dropped.
    pub(super) saver: Option<super::AsyncSaver>,
}

impl SaveHandle {
    /// Where it goes.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How long its start waited for earlier saves.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits until the caller may change its state. Unless a stager of your own copies in the background, that is so from the
    /// beginning. If the data could not be copied, [`finish`](Self::finish) returns the error.
    pub async fn staged(&self) {
        // A thread that is gone needs no data.
        self.staged.clone().await.ok();
    }

    /// Whether it has ended, well or not. Then [`finish`](Self::finish) does not wait.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Waits until the checkpoint is committed on all ranks.
    ///
    /// # Errors
    /// As [`save`](crate::save). If a rank fails, all ranks get an error that names it.
    pub async fn finish(mut self) -> Result<SaveReport> {
        let saver = self.saver.take();
        let lost = |_| {
            let what = "the thread of an asynchronous save has panicked".into();
            Err(Error::new(ACT, &self.url, StrategyError::Internal(what)))
        };
        let outcome = (&mut self.outcome).await.unwrap_or_else(lost);
        // It has nothing left to wait for.
        drop(saver);
        outcome
    }
}

/// `futures` can wait for one event in several places only if that is shared.
pub(super) fn event() -> (oneshot::Sender<()>, Shared<oneshot::Receiver<()>>) {
    let (sender, receiver) = oneshot::channel();
    (sender, receiver.shared())
}
