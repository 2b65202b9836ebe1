//! What a load tells of its progress.

use crate::LoadProgress;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps what a load tells of its progress.
#[derive(Clone, Debug, Default)]
pub struct Moved(Arc<Mutex<Vec<LoadProgress>>>);

impl Moved {
    /// The callback.
    pub fn tell(&self) -> impl Fn(LoadProgress) + Send + Sync + 'static {
        let Self(told) = self.clone();
        move |moved| {
            told.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(moved)
        }
    }

    /// Checks what a load that succeeded has told.
    ///
    /// # Panics
    /// If sums don't add up, or the last one is not the total.
    pub fn check(&self) {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = 0;
        for moved in &*told {
            sum += moved.new;
            assert_eq!(moved.sum, sum, "{told:?}");
        }
        let last = told.last().map(|last| (last.sum, last.total));
        assert!(
            last.is_some_and(|(sum, total)| sum == total),
            "a load is done, and has told {told:?}"
        );
    }
}
