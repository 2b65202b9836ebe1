//! The [`Saver`](crate::Saver) for programs without an executor.
//!
//! If several ranks run in one process, each must call it from its own thread.

use crate::{Result, Saved, Step};
use reshard::{ProcessGroup, Save, StateDict, storage::wait};
use std::{ops::Deref, path::Path};

/// [`crate::steps`] with its defaults.
///
/// # Errors
/// As [`crate::steps`].
pub fn steps(dir: impl AsRef<Path>) -> reshard::Result<Vec<Step>> {
    reshard::blocking::run(crate::steps(dir))
}

/// [`crate::latest`].
///
/// # Errors
/// As [`crate::latest`].
pub fn latest(dir: impl AsRef<Path>) -> reshard::Result<Option<Step>> {
    wait(crate::latest(dir))
}

/// A [`crate::Saver`] whose calls block; made by its [`blocking`](crate::Saver::blocking).
#[derive(Debug)]
pub struct Saver(pub(crate) crate::Saver);

impl Deref for Saver {
    type Target = crate::Saver;

    fn deref(&self) -> &crate::Saver {
        &self.0
    }
}

impl Saver {
    /// [`crate::Saver::latest`].
    ///
    /// # Errors
    /// As there.
    pub fn latest(&self) -> Result<Option<Step>> {
        wait(self.0.latest())
    }

    /// [`crate::Saver::latest_in`].
    ///
    /// # Errors
    /// As there.
    pub fn latest_in(&self, group: &dyn ProcessGroup) -> Result<Option<Step>> {
        wait(self.0.latest_in(group))
    }

    /// [`crate::Saver::save`].
    ///
    /// # Errors
    /// As there.
    pub fn save<'a>(
        &self,
        step: u64,
        state: &'a StateDict,
        options: impl FnOnce(Save<'a>) -> Save<'a>,
    ) -> Result<Saved> {
        wait(self.0.save(step, state, options))
    }
}
