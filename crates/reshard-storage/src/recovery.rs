//! What a crash leaves beside a place, and how to clean it up.

use crate::{Name, Result};
use async_trait::async_trait;
use std::time::SystemTime;

/// What a dead attempt has left beside the place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Leftover {
    /// The attempt's id.
    pub attempt: String,
    /// Where it lies: a path or a URL.
    pub path: String,
    /// Whether it is the version that the attempt replaced, which may contain files of other programs. Otherwise it contains only
    /// what the attempt wrote.
    pub replaced: bool,
    /// Bytes of its files.
    pub bytes: u64,
    /// When one of its files last changed; `None` when the store can't tell.
    pub modified: Option<SystemTime>,
}

impl Leftover {
    /// A leftover at `path`, which `attempt` wrote.
    pub fn new(attempt: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            attempt: attempt.into(),
            path: path.into(),
            replaced: false,
            bytes: 0,
            modified: None,
        }
    }

    /// Sets its contents.
    pub fn holding(self, bytes: u64, modified: Option<SystemTime>) -> Self {
        Self {
            bytes,
            modified,
            ..self
        }
    }

    /// Marks it as the version that the attempt replaced.
    pub fn replaced(self) -> Self {
        Self {
            replaced: true,
            ..self
        }
    }
}

/// Repairs a place after attempts have died. It is for stores that build a version before it replaces another one.
#[async_trait]
pub trait Recovery: Send + Sync {
    /// What uncommitted attempts have left beside this place. This includes attempts that are still running. It does not include
    /// anything that may belong to somebody else.
    async fn leftovers(&self) -> Result<Vec<Leftover>>;

    /// Removes a leftover that [`leftovers`](Self::leftovers) has told, unless it is a replaced version. Finds it by its path, so
    /// the work does not grow with the number of leftovers. `Ok` if it is gone.
    ///
    /// # Errors
    /// Before anything is removed: [`Unsupported`](crate::StorageError::Unsupported), if a file system is mounted in it.
    async fn remove_leftover(&self, left: &Leftover) -> Result<()>;

    /// Finishes the work of an attempt that replaced a version and died ([`Leftover::replaced`]). Removes these files of the old
    /// version, and moves all other files in it back to the place. `Ok` if nothing is left, and also in stores that never leave
    /// anything.
    ///
    /// # Errors
    /// [`NotCarried`](crate::StorageError::NotCarried) names what stays where it is, because its name is taken or the
    /// system refuses. Before anything is moved or removed: [`Unsupported`](crate::StorageError::Unsupported), if a file
    /// system is mounted in it.
    async fn finish_replacing(&self, _left: &Leftover, _files: &[Name]) -> Result<()> {
        Ok(())
    }
}
