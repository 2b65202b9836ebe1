//! Named steps at which a crash test kills the process.
//!
//! With the feature `failpoints`, a process whose environment has `RESHARD_CRASH_AT=step` dies at that step as by
//! `SIGKILL`: no destructor runs, nothing is flushed. Without the feature the calls are empty.

/// The environment variable that names the step.
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
    "commit.old_removed",
];

/// Those of them that only a save meets which replaces something.
pub const REPLACING: &[&str] = &["commit.ready", "commit.exchanged", "commit.carried", "commit.old_removed"];

/// Dies here if the environment says so.
#[inline]
pub fn hit(step: &str) {
    #[cfg(feature = "failpoints")]
    {
        use std::sync::LazyLock;
        static AT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());
        debug_assert!(STEPS.contains(&step), "{step} is not in STEPS");
        if AT.as_deref() == Some(step) {
            die();
        }
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = step;
}

#[cfg(feature = "failpoints")]
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
