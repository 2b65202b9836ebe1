//! Waits for futures as Python code expects it: without the interpreter's lock, and so that Ctrl-C is answered.

use crate::error::own;
use futures_channel::oneshot;
use pyo3::{call::PyCallArgs, prelude::*};
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// How long a signal may wait for its handler.
const TICK: Duration = Duration::from_millis(50);

/// The process that has reshard's threads; 0 before the first call.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future. Meanwhile other Python threads run, and signals are answered: if a handler raises, the future is dropped, and that is the error.
///
/// # Errors
/// What a handler of signals raises. `reshard.Error` in a process that was forked after reshard had started its threads, which such a process lacks.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    is_of_this_process(py)?;
    py.detach(|| block_on(future))
}

/// Waits for work that blocks, on a thread of its own. If a handler of signals raises, the thread is left to itself.
///
/// # Errors
/// As [`wait`]; no thread can be started, or the work has panicked.
pub(crate) fn on_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, ended) = oneshot::channel();
    // If nobody waits any more, the result is of no use.
    thread::Builder::new().spawn(move || drop(done.send(work())))?;
    wait(py, ended)?.map_err(|_| {
        own(
            py,
            "Error",
            "a thread of reshard has panicked; that is a bug of reshard",
        )
    })
}

/// Fails in a process that was forked from one in which reshard already had threads.
fn is_of_this_process(py: Python<'_>) -> PyResult<()> {
    let here = std::process::id();
    match PROCESS.compare_exchange(0, here, Relaxed, Relaxed) {
        Err(other) if other != here => Err(own(
            py,
            "Error",
            "this process was forked from one that had used reshard, whose I/O threads it lacks; start it with \"spawn\" or \"forkserver\" \
             (multiprocessing.set_start_method, or multiprocessing_context of a DataLoader), or use reshard only after the fork",
        )),
        _ => Ok(()),
    }
}

/// Calls a function of Python about progress. What it raises is printed, and stops nothing.
pub(crate) fn tell(call: &Py<PyAny>, args: impl for<'py> PyCallArgs<'py>) {
    Python::attach(|py| {
        if let Err(e) = call.call1(py, args) {
            e.write_unraisable(py, None);
        }
    });
}

fn block_on<F: Future>(future: F) -> PyResult<F::Output> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut checked = Instant::now();
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return Ok(done);
        }
        thread::park_timeout(TICK);
        if checked.elapsed() >= TICK {
            Python::attach(|py| py.check_signals())?;
            checked = Instant::now();
        }
    }
}
