//! Named steps at which a crash test kills the process.
//!
//! With the feature `testkit`, a process whose environment has `RESHARD_CRASH_AT=step` dies at that step as by
//! `SIGKILL`: no destructor runs, nothing is flushed. Without the feature `hit` is all there is, and does nothing.

#[cfg(feature = "testkit")]
pub use armed::{REMOVING, REPLACING, STEPS, VARIABLE, hit};

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

    /// Dies here if the environment says so.
    pub fn hit(step: &str) {
        static AT: LazyLock<Option<(String, usize)>> = LazyLock::new(|| {
            let at = std::env::var(VARIABLE).ok()?;
            match at.split_once(' ') {
                None => Some((at, 1)),
                Some((step, nth)) => Some((step.to_owned(), nth.parse().ok()?)),
            }
        });
        static MET: AtomicUsize = AtomicUsize::new(0);
        assert!(
            STEPS.contains(&step) || REMOVING.contains(&step),
            "{step} is not in STEPS"
        );
        if let Some((_, nth)) = AT.as_ref().filter(|(at, _)| at == step)
            && MET.fetch_add(1, Ordering::Relaxed) + 1 == *nth
        {
            die();
        }
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
