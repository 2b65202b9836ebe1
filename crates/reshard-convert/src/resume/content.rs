//! Compares finished files with what is to be written, and with what was written.

use super::journal::Finished;
use reshard::{
    storage::{FileBody, Name, Result, Source, StorageError, Store, WrittenExtent},
    strategy::crc32_of,
};

/// Whether the lengths of a finished file's extents are possible for a file that is to be written.
pub(super) fn is_alike(body: &FileBody, finished: &Finished) -> bool {
    let extents = match &body.source {
        Source::Extents(extents) => extents,
        Source::CopyOf { .. } => return false,
    };
    extents.len() == finished.extents.len()
        && extents
            .iter()
            .zip(&finished.extents)
            .all(|(extent, WrittenExtent { range, .. })| {
                extent.length().allows(range.end - range.start)
            })
}

/// Whether a finished file still has the bytes that were written. It is read as a whole.
pub(super) async fn is_intact(store: &dyn Store, name: &Name, finished: &Finished) -> Result<bool> {
    for WrittenExtent { range, crc32, .. } in &finished.extents {
        match crc32_of(store, name, range.clone()).await {
            Ok(crc) if Some(crc) == *crc32 => {}
            // It was cut or removed since it was listed.
            Ok(_) | Err(StorageError::NotFound { .. } | StorageError::Short { .. }) => {
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}
