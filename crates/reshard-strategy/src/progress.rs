//! How far a load is.

use reshard_storage::Progress;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// How far a load is on this rank, in bytes of elements as they are stored. It counts what fills this rank's leaves, also if another rank reads it,
/// and not what this rank reads for others. Objects are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// What has come since the call before.
    pub new: u64,
    /// What has come so far.
    pub sum: u64,
    /// What `sum` is when all leaves are filled.
    pub total: u64,
}

/// A callback for [`LoadProgress`].
#[derive(Clone, Default)]
pub struct LoadReporter(Option<Arc<dyn Fn(LoadProgress) + Send + Sync>>);

impl LoadReporter {
    /// Calls `report` when a load knows its total, with a sum of 0, and then whenever more has come. No two calls run at the same time, and sums
    /// don't go down.
    pub fn new(report: impl Fn(LoadProgress) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    /// Begins a load of so many bytes. What has come is told to the result.
    pub(crate) fn begin(&self, total: u64) -> Progress {
        let Some(report) = self.0.clone() else {
            return Progress::none();
        };
        report(LoadProgress {
            total,
            ..LoadProgress::default()
        });
        let sum = Mutex::new(0);
        Progress::new(move |new| {
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            *sum += new;
            report(LoadProgress {
                new,
                sum: *sum,
                total,
            });
        })
    }
}

impl fmt::Debug for LoadReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadReporter")
            .field(&self.0.is_some())
            .finish()
    }
}
