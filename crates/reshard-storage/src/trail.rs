//! Records what a local store does to files and directories, in order, because durability can't be observed from outside.
//!
//! With the feature `testkit`, a `testkit::Trail` collects the steps below a directory as long as it exists. Without the feature
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
pub enum Trace {
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
impl Trace {
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
pub(crate) fn note(_trace: impl FnOnce() -> Trace) {}

#[cfg(feature = "testkit")]
pub(crate) use collect::note;

#[cfg(feature = "testkit")]
pub use collect::Trail;

#[cfg(feature = "testkit")]
mod collect {
    use super::Trace;
    use std::{
        path::PathBuf,
        sync::{Mutex, MutexGuard, PoisonError},
    };

    static TRAILS: Mutex<Vec<(PathBuf, Vec<Trace>)>> = Mutex::new(Vec::new());

    fn trails() -> MutexGuard<'static, Vec<(PathBuf, Vec<Trace>)>> {
        TRAILS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the trails.
    pub(crate) fn note(trace: impl FnOnce() -> Trace) {
        let mut trails = trails();
        if trails.is_empty() {
            return;
        }
        let trace = trace();
        for (_, seen) in trails
            .iter_mut()
            .filter(|(dir, _)| trace.path().starts_with(dir))
        {
            seen.push(trace.clone());
        }
    }

    /// Collects what is done in and below a directory from now on.
    #[derive(Debug)]
    pub struct Trail(PathBuf);

    impl Trail {
        /// Begins; no other trail is on the same directory.
        pub fn below(dir: impl Into<PathBuf>) -> Self {
            let dir = dir.into();
            trails().push((dir.clone(), Vec::new()));
            Self(dir)
        }

        /// What was done so far.
        pub fn seen(&self) -> Vec<Trace> {
            trails()
                .iter()
                .find(|(dir, _)| *dir == self.0)
                .map(|(_, seen)| seen.clone())
                .unwrap_or_default()
        }
    }

    impl Drop for Trail {
        fn drop(&mut self) {
            trails().retain(|(dir, _)| *dir != self.0);
        }
    }
}
