//! Uploads that were begun and neither completed nor aborted.

#[cfg(feature = "aws")]
pub(crate) mod s3;

use async_trait::async_trait;
use object_store::path::Path;
use std::{fmt, time::SystemTime};

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The name of the object in its bucket.
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) began: Option<SystemTime>,
}

/// A service that can tell them.
#[async_trait]
pub(crate) trait Uploads: fmt::Debug + Send + Sync {
    /// Those of the object of this name, and of objects in the folder of this name; of the whole bucket, if it is empty. The first of them, if there are
    /// very many.
    async fn list(&self, folder: &str) -> object_store::Result<Vec<Unfinished>>;

    /// Ends one.
    async fn abort(&self, path: &Path, id: &str) -> object_store::Result<()>;
}
