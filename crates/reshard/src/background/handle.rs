use super::ending::Ending;
use crate::{Error, Result, SaveReport, save::ACT};
use futures_channel::oneshot;
use futures_util::{FutureExt, future::Shared};
use reshard_strategy::StrategyError;
use std::{sync::Arc, time::Duration};

/// A save that goes on in the background, made by [`AsyncSaver::start`](crate::AsyncSaver::start) or
/// [`Save::start`](crate::Save::start).
///
/// You may drop it: the save completes all the same. If it fails, or has failed already, [`AsyncSaver::close`](crate::AsyncSaver::close)
/// returns the error. A handle of [`Save::start`](crate::Save::start) has no saver that could: it says so in an error of `tracing`.
#[derive(Debug)]
#[must_use = "only `finish` tells whether the save succeeded"]
pub struct SaveHandle {
    pub(super) url: String,
    pub(super) staged: Shared<oneshot::Receiver<()>>,
    pub(super) ending: Arc<Ending>,
    pub(super) ended: Shared<oneshot::Receiver<()>>,
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
        self.ending.has_ended()
    }

    /// Waits until the checkpoint is committed on all ranks.
    ///
    /// # Errors
    /// As [`save`](crate::save). If a rank fails, all ranks get an error that names it.
    pub async fn finish(self) -> Result<SaveReport> {
        // A thread that is gone has ended, too.
        self.ended.clone().await.ok();
        let lost = || {
            let what = "the thread of an asynchronous save has panicked".into();
            Err(Error::new(ACT, &self.url, StrategyError::Internal(what)))
        };
        self.ending.take().unwrap_or_else(lost)
    }
}

impl Drop for SaveHandle {
    fn drop(&mut self) {
        self.ending.drop_handle();
    }
}

/// `futures` can wait for one event in several places only if that is shared.
pub(super) fn event() -> (oneshot::Sender<()>, Shared<oneshot::Receiver<()>>) {
    let (sender, receiver) = oneshot::channel();
    (sender, receiver.shared())
}
