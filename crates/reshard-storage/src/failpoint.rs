//! Named steps at which a test kills or stops the process.
//!
//! With the feature `testkit`, a process whose environment has `RESHARD_CRASH_AT=step` dies at that step as by
//! `SIGKILL`: no destructor runs, nothing is flushed. With `RESHARD_STOP_AT=step` it stops there as by `SIGSTOP`. Without the
//! feature `hit` is all there is, and does nothing.

#[cfg(feature = "testkit")]
pub use armed::{REMOVING, REPLACING, STEPS, STOP, VARIABLE, hit};

/// Nothing.
#[cfg(not(feature = "testkit"))]
#[inline(always)]
pub(crate) fn hit(_step: &str) {}

#[cfg(feature = "testkit")]
mod armed {
    use std::sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    };

    /// The environment variable that names the step. A number behind it says which time the step is met: `commit.removing 3`.
    pub const VARIABLE: &str = "RESHARD_CRASH_AT";

    /// The environment variable that names the step at which the process stops, until it gets `SIGCONT`.
    pub const STOP: &str = "RESHARD_STOP_AT";

    /// All steps, in the order in which a save meets them.
    pub const STEPS: &[&str] = &[
        "transaction.created",
        "write.opened",
        "write.half",
        "write.done",
        "write.synced",
        "commit.record",
        "commit.synced",
        "commit.ready",
        "commit.exchanged",
        "commit.renamed",
        "commit.parent_synced",
        "commit.carried",
        "commit.removing",
        "commit.old_removed",
    ];

    /// Those of them that only a save meets which replaces something.
    pub const REPLACING: &[&str] = &[
        "commit.ready",
        "commit.exchanged",
        "commit.carried",
        "commit.removing",
        "commit.old_removed",
    ];

    /// The steps that the removal of a version meets. The last one comes once for each file and folder.
    pub const REMOVING: &[&str] = &[
        "remove.ready",
        "remove.renamed",
        "remove.synced",
        "commit.removing",
    ];

    /// A step from the environment, the number of the time that it is met, and how often it was met.
    struct At(Option<(String, usize)>, AtomicUsize);

    impl At {
        fn from_env(variable: &str) -> Self {
            let parse = |at: String| match at.split_once(' ') {
                None => Some((at, 1)),
                Some((step, nth)) => Some((step.to_owned(), nth.parse().ok()?)),
            };
            Self(
                std::env::var(variable).ok().and_then(parse),
                AtomicUsize::new(0),
            )
        }

        /// Returns `true` when `step` is met for the chosen time.
        fn is_now(&self, step: &str) -> bool {
            let chosen = self.0.as_ref().filter(|(at, _)| at == step);
            chosen.is_some_and(|(_, nth)| self.1.fetch_add(1, Ordering::Relaxed) + 1 == *nth)
        }
    }

    /// Dies or stops here if the environment says so.
    pub fn hit(step: &str) {
        static DIES: LazyLock<At> = LazyLock::new(|| At::from_env(VARIABLE));
        static STOPS: LazyLock<At> = LazyLock::new(|| At::from_env(STOP));
        assert!(
            STEPS.contains(&step) || REMOVING.contains(&step),
            "{step} is not in STEPS"
        );
        if DIES.is_now(step) {
            die();
        }
        if STOPS.is_now(step) {
            stop();
        }
    }

    fn stop() {
        // A process that can't stop itself is not stopped, which the test finds.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
            .unwrap_or(());
    }

    fn die() {
        let me = rustix::process::getpid();
        // If even that fails, nothing is left but to abort.
        if rustix::process::kill_process(me, rustix::process::Signal::KILL).is_err() {
            std::process::abort();
        }
        loop {
            std::thread::park();
        }
    }
}
