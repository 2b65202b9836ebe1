use crate::{CommError, ProcessGroup, Result};
use futures_timer::Delay;
use futures_util::FutureExt;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

/// Breaks the group if it is dropped before it is [`done`](Self::done).
///
/// A rank holds it during work between two steps, while the other ranks wait. So all ranks learn of a panic or a dropped
/// future at once, not only after their deadline. Made by [`Comm::guard`](crate::Comm::guard).
#[derive(Debug)]
#[must_use = "dropping the guard breaks the group"]
pub struct Guard<'g> {
    group: &'g dyn ProcessGroup,
    what: &'static str,
    armed: bool,
}

impl<'g> Guard<'g> {
    pub(crate) fn new(group: &'g dyn ProcessGroup, what: &'static str) -> Self {
        Self {
            group,
            what,
            armed: true,
        }
    }

    /// The work is finished. It succeeded, or its error will be handed in at the next step.
    pub fn done(mut self) {
        self.armed = false;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            let left = CommError::rank_left(
                self.group.rank(),
                format_args!("`{}` before it was done", self.what),
            );
            tracing::debug!(rank = self.group.rank().0, what = self.what, "{left}");
            self.group.abort(left.to_cause());
        }
    }
}

/// Runs one step of `Comm`, its sends and waits, within a deadline.
///
/// The other ranks always learn how it ended: by its messages if it finished, by an abort if it failed, was too late,
/// panicked or was dropped.
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
        timer
            .get_or_insert_with(|| Delay::new(deadline))
            .poll_unpin(cx)
            .map(|()| {
                Err(CommError::Deadline {
                    step,
                    seconds: deadline.as_secs_f64(),
                    silent: group.silent(),
                })
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
