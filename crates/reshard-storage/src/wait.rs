use crate::mark::Mark;
use std::{
    cell::Cell,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// A future that a thread waits for. Futures that wait within each other share the thread, but each has a value of its own, so that none takes
/// what was meant to wake another.
struct Waiting {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread does nothing but [`wait`].
pub(crate) fn waits_here() -> bool {
    WAITS.get()
}

/// Waits for a future on this thread. It is for synchronous code, such as an [`Extent`](crate::Extent) that reads its bytes from
/// another store. Unlike with other executors, the future itself may call it again. On an I/O thread, the work of a
/// [`LocalStore`](crate::LocalStore) runs on this same thread, so threads never wait for each other in a circle. On other threads, short work
/// does so too, such as to look at one file: the thread waits for it anyway.
///
/// ```
/// assert_eq!(reshard_storage::wait(async { reshard_storage::wait(async { 1 }) + 1 }), 2);
/// ```
pub fn wait<F: Future>(future: F) -> F::Output {
    let waiting = Arc::new(Waiting {
        thread: thread::current(),
        woken: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&waiting));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let _mark = Mark::set(&WAITS);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(out) => return out,
            Poll::Pending => {
                while !waiting.woken.swap(false, Ordering::Acquire) {
                    thread::park();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_channel::oneshot;
    use futures_util::future::poll_fn;
    use std::{sync::mpsc, time::Duration};

    #[test]
    fn a_future_that_is_woken_while_another_one_waits_within_it_goes_on() {
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            let mut first = true;
            wait(poll_fn(|outer| {
                if !std::mem::take(&mut first) {
                    return Poll::Ready(());
                }
                outer.waker().wake_by_ref();
                let (send, inner) = oneshot::channel();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    send.send(()).unwrap();
                });
                wait(inner).unwrap();
                Poll::Pending
            }));
            done.send(()).unwrap_or_default();
        });
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
