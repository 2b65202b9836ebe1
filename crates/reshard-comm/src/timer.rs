use crate::{Cause, CommError, Result};
use reshard_model::ErrorKind;
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

/// Ends after a time.
///
/// One thread wakes all timers of the process. The first timer that has to wait starts it.
///
/// # Errors
/// [`CommError::Broken`]: the system doesn't start the thread.
#[derive(Debug)]
#[must_use = "it does nothing unless it is awaited"]
pub struct Timer {
    key: Key,
    waits: bool,
}

/// When it ends, and a number, because several may end at once.
type Key = (Instant, u64);

struct Waiting {
    wakers: BTreeMap<Key, Waker>,
    has_thread: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    wakers: BTreeMap::new(),
    has_thread: false,
});

/// The thread has to look when the first timer ends.
static CHANGED: Condvar = Condvar::new();

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timer {
    /// Ends after `time`, counted from now.
    pub fn after(time: Duration) -> Self {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            key: (
                Instant::now() + time.min(CENTURY),
                NUMBERS.fetch_add(1, Ordering::Relaxed),
            ),
            waits: false,
        }
    }
}

impl Future for Timer {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(Ok(()));
        }
        let mut all = waiting();
        if !all.has_thread {
            let thread = thread::Builder::new().name("reshard-timer".to_owned());
            if let Err(error) = thread.spawn(run) {
                let what = format!("the thread for deadlines can't be started: {error}");
                let cause = Cause::new(ErrorKind::Unavailable, what);
                return Poll::Ready(Err(CommError::Broken(cause)));
            }
            all.has_thread = true;
        }
        all.wakers.insert(self.key, cx.waker().clone());
        if all.wakers.keys().next() == Some(&self.key) {
            CHANGED.notify_one();
        }
        self.waits = true;
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.waits {
            waiting().wakers.remove(&self.key);
        }
    }
}

/// Wakes timers as they end.
fn run() {
    let mut all = waiting();
    loop {
        let Some(first) = all.wakers.first_entry() else {
            all = CHANGED.wait(all).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let left = first.key().0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let waker = first.remove();
            drop(all);
            waker.wake();
            all = waiting();
        } else {
            let (guard, _) = CHANGED
                .wait_timeout(all, left)
                .unwrap_or_else(PoisonError::into_inner);
            all = guard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{executor::block_on, future::join_all};

    #[test]
    fn timers_end_after_their_time_in_any_order() {
        let begun = Instant::now();
        let times = [30, 5, 20, 0, 5].map(Duration::from_millis);
        let ended = join_all(times.map(|time| async move {
            Timer::after(time).await.unwrap();
            (time, begun.elapsed())
        }));
        for (time, took) in block_on(ended) {
            assert!(took >= time, "{time:?}: {took:?}");
        }
    }

    #[test]
    fn a_dropped_timer_is_forgotten() {
        let mut timer = Timer::after(Duration::MAX);
        let key = timer.key;
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut timer).poll(&mut cx).is_pending());
        assert!(waiting().wakers.contains_key(&key));
        drop(timer);
        assert!(!waiting().wakers.contains_key(&key));
    }
}
