//! Blocking versions of saves in the background.

use crate::{AsyncRequest, Finalized, Result, Save, SaveReport};
use reshard_comm::{CommError, ProcessGroup};
use reshard_storage::wait;
use std::ops::{Deref, DerefMut};

/// Gives a blocking version the methods that need no waiting.
macro_rules! derefs {
    ($($name:ident,)*) => {$(
        impl Deref for $name {
            type Target = crate::$name;
            fn deref(&self) -> &crate::$name {
                &self.0
            }
        }

        impl DerefMut for $name {
            fn deref_mut(&mut self) -> &mut crate::$name {
                &mut self.0
            }
        }

        impl From<crate::$name> for $name {
            fn from(inner: crate::$name) -> Self {
                Self(inner)
            }
        }
    )*};
}
derefs!(AsyncSaver, AsyncCallsQueue, SaveHandle,);

/// [`crate::AsyncSaver`]. It derefs to that type for methods that need no waiting. To set options, make that type, and take
/// this one `from` it.
#[derive(Debug)]
pub struct AsyncSaver(crate::AsyncSaver);

impl AsyncSaver {
    /// [`crate::AsyncSaver::new`].
    ///
    /// # Errors
    /// As there.
    pub fn new(group: &dyn ProcessGroup) -> Result<Self, CommError> {
        wait(crate::AsyncSaver::new(group)).map(Self)
    }

    /// [`crate::AsyncSaver::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start(&mut self, save: Save<'_>) -> Result<SaveHandle> {
        wait(self.0.start(save)).map(SaveHandle)
    }

    /// [`crate::AsyncSaver::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self) -> Result<()> {
        wait(self.0.close())
    }
}

/// [`crate::SaveHandle`]. It derefs to that type for methods that need no waiting.
#[derive(Debug)]
#[must_use = "only `finish` tells whether the save succeeded"]
pub struct SaveHandle(crate::SaveHandle);

impl SaveHandle {
    /// [`crate::SaveHandle::staged`].
    pub fn staged(&self) {
        wait(self.0.staged());
    }

    /// [`crate::SaveHandle::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(self) -> Result<SaveReport> {
        wait(self.0.finish())
    }
}

/// [`crate::Save::start`].
///
/// # Errors
/// As there.
pub fn start(save: Save<'_>) -> Result<SaveHandle> {
    wait(save.start()).map(SaveHandle)
}

/// [`crate::AsyncCallsQueue`]. It derefs to that type for methods that need no waiting. To set options, make that type, and
/// take this one `from` it.
#[derive(Debug)]
pub struct AsyncCallsQueue(crate::AsyncCallsQueue);

impl AsyncCallsQueue {
    /// [`crate::AsyncCallsQueue::new`].
    ///
    /// # Errors
    /// As there.
    pub fn new(group: &dyn ProcessGroup) -> Result<Self, CommError> {
        wait(crate::AsyncCallsQueue::new(group)).map(Self)
    }

    /// [`crate::AsyncCallsQueue::request`].
    ///
    /// # Errors
    /// As there.
    pub fn request(&mut self, save: Save<'_>) -> Result<AsyncRequest> {
        wait(self.0.request(save))
    }

    /// [`crate::AsyncCallsQueue::maybe_finalize`].
    ///
    /// # Errors
    /// As there.
    pub fn maybe_finalize(&mut self, blocking: bool) -> Result<Vec<Finalized>> {
        wait(self.0.maybe_finalize(blocking))
    }

    /// [`crate::AsyncCallsQueue::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self, abort: bool) -> Result<Vec<Finalized>> {
        wait(self.0.close(abort))
    }
}
