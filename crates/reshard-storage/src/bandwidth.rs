use futures_channel::oneshot;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A clock that can be waited for.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time since some moment.
    fn now(&self) -> Duration;
    /// Blocks the thread for so long.
    fn sleep(&self, time: Duration);
}

/// The clock of this machine.
#[derive(Debug)]
struct Machine(Instant);

impl Clock for Machine {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// How many bytes may move in a second. Clones share it.
///
/// Whoever moves bytes first asks for them. If the bytes that others have asked for before need longer than until now, it waits for that long. So on average
/// no more bytes move, and at any time at most one request is ahead.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    per_second: u64,
    clock: Arc<dyn Clock>,
    /// When all bytes that were asked for have moved.
    free: Arc<Mutex<Duration>>,
}

impl Bandwidth {
    /// So many bytes per second, but at least one.
    pub fn per_second(bytes: u64) -> Self {
        Self::with_clock(bytes, Arc::new(Machine(Instant::now())))
    }

    /// The same by another clock.
    pub fn with_clock(bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            per_second: bytes.max(1),
            clock,
            free: Arc::default(),
        }
    }

    /// Another limit of the same size, by the same clock.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::with_clock(self.per_second, Arc::clone(&self.clock))
    }

    /// Asks for bytes. Returns how long to wait before they may move.
    fn ask(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.per_second);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let start = now.max(*free);
        *free = start.saturating_add(takes);
        start - now
    }

    /// Blocks the thread until so many bytes may move.
    pub(crate) fn block(&self, bytes: u64) {
        let wait = self.ask(bytes);
        if !wait.is_zero() {
            self.clock.sleep(wait);
        }
    }

    /// Waits until so many bytes may move. I/O threads stay free meanwhile.
    pub(crate) async fn wait(&self, bytes: u64) {
        let wait = self.ask(bytes);
        if wait.is_zero() {
            return;
        }
        let (done, waits) = oneshot::channel::<()>();
        let clock = Arc::clone(&self.clock);
        let sleeper = thread::Builder::new()
            .name("reshard-bandwidth".into())
            .spawn(move || {
                clock.sleep(wait);
                drop(done);
            });
        match sleeper {
            // That it has ended is all that it tells.
            Ok(_) => drop(waits.await),
            Err(_) => self.clock.sleep(wait),
        }
    }
}
