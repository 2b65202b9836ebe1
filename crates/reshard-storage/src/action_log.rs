//! Records what a local store does to files and directories, in order, because durability can't be observed from outside.
//!
//! With the feature `testkit`, a `testkit::ActionLog` collects the steps below a directory as long as it exists. Without the feature
//! `note` does nothing.

#[cfg(feature = "testkit")]
use std::path::Path;
use std::path::PathBuf;

/// One thing that was done, and succeeded.
#[cfg_attr(
    feature = "testkit",
    derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)
)]
#[cfg_attr(
    not(feature = "testkit"),
    expect(dead_code, unreachable_pub, reason = "only named, never made")
)]
pub enum Action {
    /// The names in a directory were listed, to find what attempts have left there.
    Listed(PathBuf),
    /// A directory was made.
    Made(PathBuf),
    /// Bytes were written into a file.
    Wrote(PathBuf),
    /// A file of another directory is one of this directory too.
    Linked(PathBuf),
    /// The bytes of a file are on the disk.
    SyncedFile(PathBuf),
    /// The names in a directory are on the disk.
    SyncedDirectory(PathBuf),
    /// A directory has another name now; of two that were exchanged, the new version's former one comes first.
    Renamed(PathBuf, PathBuf),
}

#[cfg(feature = "testkit")]
impl Action {
    /// The file or directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Listed(p)
            | Self::Made(p)
            | Self::Wrote(p)
            | Self::Linked(p)
            | Self::SyncedFile(p)
            | Self::SyncedDirectory(p) => p,
            Self::Renamed(from, _) => from,
        }
    }
}

#[inline(always)]
#[cfg(not(feature = "testkit"))]
pub(crate) fn note(_action: impl FnOnce() -> Action) {}

#[cfg(feature = "testkit")]
pub(crate) use collect::note;

#[cfg(feature = "testkit")]
pub use collect::ActionLog;

#[cfg(feature = "testkit")]
mod collect {
    use super::Action;
    use std::{
        path::PathBuf,
        sync::{Mutex, MutexGuard, PoisonError},
    };

    static LOGS: Mutex<Vec<(PathBuf, Vec<Action>)>> = Mutex::new(Vec::new());

    fn logs() -> MutexGuard<'static, Vec<(PathBuf, Vec<Action>)>> {
        LOGS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the logs.
    pub(crate) fn note(action: impl FnOnce() -> Action) {
        let mut logs = logs();
        if logs.is_empty() {
            return;
        }
        let action = action();
        for (_, seen) in logs
            .iter_mut()
            .filter(|(dir, _)| action.path().starts_with(dir))
        {
            seen.push(action.clone());
        }
    }

    /// Collects what is done in and below a directory from now on.
    #[derive(Debug)]
    pub struct ActionLog(PathBuf);

    impl ActionLog {
        /// Begins; no other log is on the same directory.
        pub fn below(dir: impl Into<PathBuf>) -> Self {
            let dir = dir.into();
            logs().push((dir.clone(), Vec::new()));
            Self(dir)
        }

        /// What was done so far.
        pub fn seen(&self) -> Vec<Action> {
            logs()
                .iter()
                .find(|(dir, _)| *dir == self.0)
                .map(|(_, seen)| seen.clone())
                .unwrap_or_default()
        }
    }

    impl Drop for ActionLog {
        fn drop(&mut self) {
            logs().retain(|(dir, _)| *dir != self.0);
        }
    }
}
