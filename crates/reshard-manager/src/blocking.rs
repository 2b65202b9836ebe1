//! The [`Saver`](crate::Saver) for programs without an executor.
//!
//! If several ranks run in one process, each must call it from its own thread.

use crate::{Result, Saved, Verify};
use reshard::{ProcessGroup, Registry, Save, StateDict, Step, StepPattern, Stores, storage::wait};
use std::{path::Path, time::Duration};

/// [`crate::Saver`].
#[derive(Debug)]
pub struct Saver(crate::Saver);

impl From<crate::Saver> for Saver {
    fn from(saver: crate::Saver) -> Self {
        Self(saver)
    }
}

impl Saver {
    /// [`crate::Saver::new`].
    pub fn new(dir: impl AsRef<Path>) -> Self {
        Self(crate::Saver::new(dir))
    }

    /// [`crate::Saver::every`].
    pub fn every(self, every: u64) -> Self {
        Self(self.0.every(every))
    }

    /// [`crate::Saver::keep`].
    pub fn keep(self, newest: u64) -> Self {
        Self(self.0.keep(newest))
    }

    /// [`crate::Saver::keep_every`].
    pub fn keep_every(self, every: u64) -> Self {
        Self(self.0.keep_every(every))
    }

    /// [`crate::Saver::verify`].
    pub fn verify(self, verify: Verify) -> Self {
        Self(self.0.verify(verify))
    }

    /// [`crate::Saver::unfinished_after`].
    pub fn unfinished_after(self, age: Duration) -> Self {
        Self(self.0.unfinished_after(age))
    }

    /// [`crate::Saver::pattern`].
    pub fn pattern(self, pattern: StepPattern) -> Self {
        Self(self.0.pattern(pattern))
    }

    /// [`crate::Saver::owner`].
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self(self.0.owner(owner))
    }

    /// [`crate::Saver::registry`].
    pub fn registry(self, registry: Registry) -> Self {
        Self(self.0.registry(registry))
    }

    /// [`crate::Saver::stores`].
    pub fn stores(self, stores: Stores) -> Self {
        Self(self.0.stores(stores))
    }

    /// [`crate::Saver::url`].
    pub fn url(&self, step: u64) -> String {
        self.0.url(step)
    }

    /// [`crate::Saver::is_due`].
    pub fn is_due(&self, step: u64) -> bool {
        self.0.is_due(step)
    }

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
