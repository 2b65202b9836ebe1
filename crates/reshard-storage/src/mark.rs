//! Marks of the thread that runs.

use std::{cell::Cell, thread::LocalKey};

/// What is marked, and what it was before.
pub(crate) struct Mark(&'static LocalKey<Cell<bool>>, bool);

impl Mark {
    /// Marks this thread until the value is dropped.
    pub(crate) fn set(mark: &'static LocalKey<Cell<bool>>) -> Self {
        Self(mark, mark.replace(true))
    }
}

/// Also after a panic the thread is what it was.
impl Drop for Mark {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}
