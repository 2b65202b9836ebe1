use crate::{CommError, ProcessGroup, Result, Timer, error::Silent};
use futures_util::FutureExt;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
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

/// How long a step waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until it fails.
    pub(crate) deadline: Duration,
    /// Until it warns of the ranks for which it waits.
    pub(crate) quiet: Duration,
}

/// The target of the warnings that name ranks for which a step waits, as `tracing` calls it. Their fields are `step`, `rank`, `seconds` and `awaited`, the numbers of
/// these ranks as text.
pub const WAITING_EVENTS: &str = "reshard_comm::waiting";

/// Warns of the ranks for which a step waits.
struct Quiet {
    timer: Timer,
    /// How long the step will have waited then.
    waited: Duration,
}

impl Quiet {
    fn after(waited: Duration) -> Self {
        Self {
            timer: Timer::after(waited),
            waited,
        }
    }

    /// Warns if it is time. The next warning comes when the step has waited twice as long, so that a long step does not fill a log.
    fn poll(&mut self, cx: &mut Context<'_>, tell: impl Fn(Duration)) -> Result<()> {
        while let Poll::Ready(ended) = self.timer.poll_unpin(cx) {
            ended?;
            tell(self.waited);
            self.timer = Timer::after(self.waited.max(Duration::from_millis(1)));
            self.waited = self.waited.saturating_mul(2);
        }
        Ok(())
    }
}

fn warn(group: &dyn ProcessGroup, step: &'static str, waited: Duration, deadline: Duration) {
    let awaited = Silent(&group.silent()).to_string();
    tracing::warn!(
        target: WAITING_EVENTS,
        rank = group.rank().0,
        step,
        seconds = waited.as_secs_f64(),
        awaited,
        "step `{step}` has waited {} s for {awaited}, and fails after {} s; they are still at work, or never came: every rank has to make this call, with its `.group(…)`",
        waited.as_secs_f64(),
        deadline.as_secs_f64(),
    );
}

/// Runs one step of `Comm`, its sends and waits, within a deadline.
///
/// The other ranks always learn how it ended: by its messages if it finished, by an abort if it failed, was too late,
/// panicked or was dropped.
pub(crate) async fn run<T>(
    group: &dyn ProcessGroup,
    step: &'static str,
    Patience { deadline, quiet }: Patience,
    work: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let mut work = pin!(work);
    // Dropped before `work`, so that its cause, which names the step, comes before the transport's own.
    let guard = Guard::new(group, step);
    let span = tracing::debug_span!("comm", step, rank = group.rank().0);
    // Made when there is something to wait for.
    let (mut timer, mut silence) = (None, None);
    let outcome = poll_fn(|cx| {
        let _in = span.enter();
        if let Poll::Ready(outcome) = work.as_mut().poll(cx) {
            return Poll::Ready(outcome);
        }
        if quiet < deadline {
            let silence = silence.get_or_insert_with(|| Quiet::after(quiet));
            silence.poll(cx, |waited| {
                if waited < deadline {
                    warn(group, step, waited, deadline);
                }
            })?;
        }
        let timer = timer.get_or_insert_with(|| Timer::after(deadline));
        timer.poll_unpin(cx).map(|ended| {
            ended?;
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
