use crate::StorageError;
use std::{io, path::PathBuf};

/// Tells what was done, and where, when the system refused it.
pub(crate) trait During<T> {
    fn during(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, StorageError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, StorageError> {
        self.map_err(|e| StorageError::io(action, path, e))
    }
}
