//! What a crash leaves beside a place, and how it is cleared away.

use crate::{Name, Result};
use async_trait::async_trait;
use std::time::SystemTime;

/// What an attempt that died has left beside the place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Leftover {
    /// The attempt's id.
    pub attempt: String,
    /// Where it lies: a path or a URL.
    pub path: String,
    /// Whether it is the version that the attempt replaced, which may have files of others in it. Else it holds nothing but
    /// what the attempt wrote.
    pub replaced: bool,
    /// Bytes of its files.
    pub bytes: u64,
    /// When one of its files last changed; `None` when the store can't tell.
    pub modified: Option<SystemTime>,
}

impl Leftover {
    /// What `attempt` wrote to `path`.
    pub fn new(attempt: impl Into<String>, path: impl Into<String>) -> Self {
        Self { attempt: attempt.into(), path: path.into(), replaced: false, bytes: 0, modified: None }
    }

    /// With what is in it.
    pub fn holding(self, bytes: u64, modified: Option<SystemTime>) -> Self {
        Self { bytes, modified, ..self }
    }

    /// As the version that the attempt replaced.
    pub fn replaced(self) -> Self {
        Self { replaced: true, ..self }
    }
}

/// Repairs a place at which attempts died: of stores in which a version is built before it takes the place of another one.
#[async_trait]
pub trait Recovery: Send + Sync {
    /// What attempts that are not committed have left beside this place; those that are still at work too. What may be somebody
    /// else's is not among it.
    async fn leftovers(&self) -> Result<Vec<Leftover>>;

    /// Removes what an attempt wrote. `Ok` if nothing is left.
    async fn remove_leftover(&self, attempt: &str) -> Result<()>;

    /// Finishes what an attempt was doing after it had replaced a version ([`Leftover::replaced`]): removes these files of
    /// that version, and gives whatever else lies with them back to the place. `Ok` if nothing is left, and in stores that can't
    /// be left so.
    ///
    /// # Errors
    /// [`NotCarried`](crate::StorageError::NotCarried) names what stays where it is, because its name is taken or the
    /// system refuses.
    async fn finish_replacing(&self, _attempt: &str, _files: &[Name]) -> Result<()> {
        Ok(())
    }
}
