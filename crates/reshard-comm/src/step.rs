use crate::{CommError, ProcessGroup, Result};
use futures::FutureExt;
use futures_timer::Delay;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

/// Breaks the group when it is dropped before it is [`done`](Self::done).
///
/// Held by a rank over work that the others wait for between two steps, so that a panic or a dropped future is known
/// to all at once, and not only when their deadline has passed. Made by [`Comm::guard`](crate::Comm::guard).
#[derive(Debug)]
#[must_use = "dropping the guard breaks the group"]
pub struct Guard<'g> {
    group: &'g dyn ProcessGroup,
    what: &'static str,
    armed: bool,
}

impl<'g> Guard<'g> {
    pub(crate) fn new(group: &'g dyn ProcessGroup, what: &'static str) -> Self {
        Self { group, what, armed: true }
    }

    /// The work is over, well or with an error that the other ranks will hear of.
    pub fn done(mut self) {
        self.armed = false;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            let left =
                CommError::rank_left(self.group.rank(), format_args!("`{}` before it was done", self.what));
            tracing::debug!(rank = self.group.rank().0, what = self.what, "{left}");
            self.group.abort(left.to_cause());
        }
    }
}

/// Runs one step of `Comm`: what it sends and waits for, within a deadline.
///
/// However it ends, the other ranks know: by its messages if it is done, by an abort if it fails, is too late, panics
/// or is dropped.
pub(crate) async fn run<T>(
    group: &dyn ProcessGroup,
    step: &'static str,
    deadline: Duration,
    work: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let mut work = pin!(work);
    // Dropped before `work`, so that its cause, which names the step, comes before the transport's own.
    let guard = Guard::new(group, step);
    let span = tracing::debug_span!("comm", step, rank = group.rank().0);
    let mut timer = None; // made when there is something to wait for
    let outcome = poll_fn(|cx| {
        let _in = span.enter();
        if let Poll::Ready(outcome) = work.as_mut().poll(cx) {
            return Poll::Ready(outcome);
        }
        timer.get_or_insert_with(|| Delay::new(deadline)).poll_unpin(cx).map(|()| {
            Err(CommError::Deadline { step, seconds: deadline.as_secs_f64(), silent: group.silent() })
        })
    })
    .await;
    if let Err(broken) = &outcome
        && !matches!(broken, CommError::Ranks { .. })
    {
        tracing::debug!(parent: &span, "{broken}");
        group.abort(broken.to_cause());
    }
    guard.done();
    outcome
}
