//! The I/O threads of the process: std threads that any executor can await.

use crate::{Result, StorageError, mark::Mark, wait::waits_here};
use futures_channel::oneshot;
use std::{
    any::Any,
    cell::Cell,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

type Job = Box<dyn FnOnce() + Send>;

/// Which jobs go first. Each has a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// In the order they come.
    Main,
    /// When no main job waits.
    Helper,
}

#[derive(Default)]
struct Pool {
    queues: Mutex<[VecDeque<Job>; 2]>,
    wake: Condvar,
}

/// The pool, and how many threads it has.
static POOL: LazyLock<(Arc<Pool>, usize)> = LazyLock::new(Pool::start);

thread_local! {
    static IN_POOL: Cell<bool> = const { Cell::new(false) };
}

/// A panic while a lock was held left whole data behind: no code of others runs under these locks.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many I/O threads there are to be; at least 2, so that computing and waiting for a disk overlap.
pub(crate) fn width() -> usize {
    // To find it out takes several system calls, and small reads ask for it each time.
    static WIDTH: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(2, |n| n.get().max(2)));
    *WIDTH
}

/// Calls `f`. Meanwhile, on this thread, the work of a [`LocalStore`](crate::LocalStore) and of
/// [`run_blocking`](crate::run_blocking) runs on this thread itself, in order, as it does on an I/O thread. So work that waits for
/// something that another part of the program has to bring, such as an [`Extent`](crate::Extent) that others fill, holds no I/O thread.
///
/// ```
/// use reshard_storage::{run_blocking, wait, work_here};
///
/// let here = std::thread::current().id();
/// let there = work_here(|| wait(run_blocking([|| std::thread::current().id()]))).unwrap();
/// assert_eq!(there, [here]);
/// assert_ne!(wait(run_blocking([|| std::thread::current().id()])).unwrap(), [here]);
/// ```
pub fn work_here<T>(f: impl FnOnce() -> T) -> T {
    let _mark = Mark::set(&IN_POOL);
    f()
}

/// Whether the work of [`run_blocking`](crate::run_blocking) runs on this thread itself: in [`work_here`], and on the I/O threads. A
/// store whose futures wait for more than that work must then hold nothing that others need while the work runs.
pub fn works_here() -> bool {
    IN_POOL.get() || POOL.1 == 0
}

/// Whether some main job waits for a thread.
pub(crate) fn is_busy() -> bool {
    !lock(&POOL.0.queues)[Priority::Main as usize].is_empty()
}

impl Pool {
    fn start() -> (Arc<Self>, usize) {
        let pool = Arc::new(Self::default());
        let starts = |i: &usize| {
            let pool = Arc::clone(&pool);
            let thread = thread::Builder::new().name(format!("reshard-io-{i}"));
            thread.spawn(move || pool.work()).is_ok()
        };
        let threads = (0..width()).filter(starts).count();
        (pool, threads)
    }

    fn work(&self) {
        IN_POOL.set(true);
        loop {
            let mut queues = lock(&self.queues);
            let job = loop {
                match queues.iter_mut().find_map(VecDeque::pop_front) {
                    Some(job) => break job,
                    None => {
                        let woken = self.wake.wait(queues);
                        queues = woken.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(queues);
            job();
        }
    }

    fn push(&self, priority: Priority, job: Job) {
        lock(&self.queues)[priority as usize].push_back(job);
        self.wake.notify_one();
    }
}

/// Tasks of one call. Tasks may start more of them. The first error calls the rest off, and so does dropping the future.
pub(crate) struct Batch<T> {
    stop: AtomicBool,
    inline: bool,
    state: Mutex<State<T>>,
}

struct State<T> {
    started: usize,
    running: usize,
    done: Vec<(usize, T)>,
    error: Option<(usize, StorageError)>,
    notify: Option<oneshot::Sender<()>>,
}

impl<T: Send + 'static> Batch<T> {
    /// Whether the outcome matters no more. A task that sees this returns something, which nobody will look at.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether tasks run on the thread that spawns them.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline
    }

    /// Adds a task. On a thread of the pool it runs at once, so that a task that waits for another never waits for itself.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        priority: Priority,
        task: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static,
    ) {
        let number = {
            let mut state = lock(&self.state);
            state.started += 1;
            state.running += 1;
            state.started
        };
        let me = Arc::clone(self);
        let job = move || {
            let outcome = if me.is_stopped() {
                // What the task owns is gone before the batch is over.
                drop(task);
                None
            } else {
                Some(
                    catch_unwind(AssertUnwindSafe(|| task(&me)))
                        .unwrap_or_else(|p| Err(panicked(p.as_ref()))),
                )
            };
            me.ended(number, outcome);
        };
        if self.inline {
            job()
        } else {
            POOL.0.push(priority, Box::new(job))
        }
    }

    fn ended(&self, number: usize, outcome: Option<Result<T>>) {
        let mut state = lock(&self.state);
        match outcome {
            Some(Ok(value)) => state.done.push((number, value)),
            Some(Err(e)) => {
                self.stop.store(true, Ordering::Relaxed);
                if state.error.as_ref().is_none_or(|(n, _)| number < *n) {
                    state.error = Some((number, e));
                }
            }
            None => {}
        }
        state.running -= 1;
        if state.running == 0
            && let Some(notify) = state.notify.take()
        {
            // Nobody listens any more when the future was dropped.
            notify.send(()).unwrap_or(());
        }
    }
}

/// Calls a batch off when its future is dropped.
struct CallOff<T>(Arc<Batch<T>>);

impl<T> Drop for CallOff<T> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs `first` and all tasks that it and others spawn. Ready when all have ended: their values in the order of spawning, or
/// the error of the earliest task that failed.
pub(crate) async fn run<T: Send + 'static>(
    first: impl FnOnce(&Arc<Batch<T>>) -> Result<T> + Send + 'static,
) -> Result<Vec<T>> {
    run_if_long(false, first).await
}

/// The same. If all tasks together are short, a thread that waits for them runs them itself: to wake another one, and to be woken by it, would
/// take longer.
pub(crate) async fn run_if_long<T: Send + 'static>(
    is_short: bool,
    first: impl FnOnce(&Arc<Batch<T>>) -> Result<T> + Send + 'static,
) -> Result<Vec<T>> {
    let (notify, ended) = oneshot::channel();
    let state = State {
        started: 0,
        running: 0,
        done: Vec::new(),
        error: None,
        notify: Some(notify),
    };
    // When no thread could be started: better slow than stuck.
    let inline = works_here() || (is_short && waits_here());
    let batch = Arc::new(Batch {
        stop: AtomicBool::new(false),
        inline,
        state: Mutex::new(state),
    });
    let guard = CallOff(batch);
    guard.0.spawn(Priority::Main, first);
    if ended.await.is_err() {
        return Err(StorageError::Panicked {
            message: "the I/O threads are gone".into(),
        });
    }
    let mut state = lock(&guard.0.state);
    if let Some((_, e)) = state.error.take() {
        return Err(e);
    }
    let mut done = std::mem::take(&mut state.done);
    done.sort_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, value)| value).collect())
}

/// Runs one task.
pub(crate) async fn run_one<T: Send + 'static>(
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    run_one_if_long(false, task).await
}

/// Runs one task, which may be short, as [`run_if_long`] does it.
pub(crate) async fn run_one_if_long<T: Send + 'static>(
    is_short: bool,
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let mut all = run_if_long(is_short, move |_| task()).await?;
    all.pop().ok_or_else(|| StorageError::Panicked {
        message: "a task ended without an outcome".into(),
    })
}

fn panicked(payload: &(dyn Any + Send)) -> StorageError {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or(payload.downcast_ref::<String>().map(String::as_str));
    StorageError::Panicked {
        message: text.unwrap_or("(no message)").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait as block_on;

    #[test]
    fn values_come_in_the_order_of_spawning() {
        let all = block_on(run(|batch| {
            for i in 1..100u64 {
                batch.spawn(Priority::Main, move |_| {
                    thread::sleep(std::time::Duration::from_micros(100 - i));
                    Ok(i)
                });
            }
            Ok(0)
        }));
        assert_eq!(all.unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_task_that_waits_for_tasks_does_not_wait_for_itself() {
        // More waiting tasks than threads, each of them waiting for another round of tasks.
        let rounds = block_on(run(|batch| {
            for _ in 0..4 * width() {
                batch.spawn(Priority::Main, |_| {
                    block_on(run_one(|| block_on(run_one(|| Ok(1)))))
                });
            }
            Ok(0)
        }));
        assert_eq!(rounds.unwrap().len(), 4 * width() + 1);
    }

    #[test]
    fn short_work_runs_on_the_thread_that_waits_for_it() {
        let here = thread::current().id();
        let ran = |is_short| run_one_if_long(is_short, || Ok(thread::current().id()));
        assert_eq!(block_on(ran(true)).unwrap(), here);
        assert_ne!(block_on(ran(false)).unwrap(), here);
        // Another executor may have more to do on its thread.
        assert_ne!(futures_executor::block_on(ran(true)).unwrap(), here);
        let panics = run_one_if_long(true, || -> Result<()> { panic!("oh") });
        assert!(block_on(panics).unwrap_err().to_string().ends_with("oh"));
    }

    #[test]
    fn a_panic_becomes_an_error_and_calls_the_rest_off() {
        let out = block_on(run(|batch| {
            batch.spawn(Priority::Main, |_| panic!("oh {}", "no"));
            Ok(())
        }));
        assert_eq!(out.unwrap_err().to_string(), "an I/O task panicked: oh no");
    }

    #[test]
    fn a_dropped_future_drops_what_waiting_tasks_own() {
        let token = Arc::new(());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mine = Arc::clone(&token);
        let mut future = Box::pin(run(move |batch| {
            for _ in 0..10 {
                let owned = Arc::clone(&mine);
                batch.spawn(Priority::Main, move |_| {
                    drop(owned);
                    Ok(())
                });
            }
            assert!(wait.recv().is_err());
            assert!(batch.is_stopped());
            Ok(())
        }));
        // It is started by being polled once.
        assert!(futures_util::FutureExt::now_or_never(&mut future).is_none());
        drop(future);
        drop(go);
        while Arc::strong_count(&token) > 1 {
            thread::yield_now();
        }
    }
}
