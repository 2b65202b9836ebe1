//! Checksums of finished files: taken while a file is written, compared before it is used again.

use super::journal::{Finished, WrittenPart};
use bytes::Bytes;
use reshard::storage::{
    Extent, FileBody, Length, Name, Result, Source, StorageError, Store, Written, WrittenExtent,
};
use std::io;

/// A finished file is read in blocks of at most this many bytes.
const BLOCK: u64 = 8 << 20;

/// The length of a checksum in a receipt.
const SUM: usize = size_of::<u32>();

/// An extent that takes the CRC-32 of its bytes and appends it to its receipt.
struct SummedExtent {
    inner: Box<dyn Extent>,
    hasher: crc32fast::Hasher,
}

impl Extent for SummedExtent {
    fn length(&self) -> Length {
        self.inner.length()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.inner.next_block();
        if let Some(Ok(bytes)) = &block {
            self.hasher.update(bytes);
        }
        block
    }

    fn receipt(&mut self) -> Bytes {
        let sum = self.hasher.clone().finalize();
        [&self.inner.receipt()[..], &sum.to_le_bytes()]
            .concat()
            .into()
    }
}

/// Makes a file take the checksums of its extents while it is written.
pub(super) fn summed(body: FileBody) -> FileBody {
    let Source::Extents(extents) = body.source else {
        return body;
    };
    let summed = |inner| -> Box<dyn Extent> {
        Box::new(SummedExtent {
            inner,
            hasher: crc32fast::Hasher::new(),
        })
    };
    FileBody::new(body.name, extents.into_iter().map(summed).collect())
}

/// Takes the checksums of a [`summed`] file out of its receipts again.
///
/// # Errors
/// The store returned a receipt without one.
pub(super) fn unsummed(written: &mut Written) -> Result<Finished> {
    let lost = || StorageError::Internal {
        what: "a store returned a receipt that no extent gave".into(),
    };
    let mut parts = Vec::with_capacity(written.extents.len());
    for extent in &mut written.extents {
        let at = extent.receipt.len().checked_sub(SUM).ok_or_else(lost)?;
        let sum = extent.receipt.split_off(at);
        let sum = <[u8; SUM]>::try_from(&sum[..]).map_err(|_| lost())?;
        parts.push(WrittenPart {
            extent: extent.clone(),
            sum: u32::from_le_bytes(sum),
        });
    }
    Ok(Finished {
        bytes: written.bytes,
        parts,
    })
}

/// Whether the lengths of a finished file's extents are possible for a file that is to be written.
pub(super) fn is_alike(body: &FileBody, finished: &Finished) -> bool {
    let extents = match &body.source {
        Source::Extents(extents) => extents,
        Source::CopyOf { .. } => return false,
    };
    let parts = &finished.parts;
    extents.len() == parts.len()
        && extents.iter().zip(parts).all(|(extent, part)| {
            let WrittenExtent { range, .. } = &part.extent;
            extent.length().allows(range.end - range.start)
        })
}

/// Whether a finished file still has the bytes that were written. It is read as a whole.
pub(super) async fn is_intact(store: &dyn Store, name: &Name, finished: &Finished) -> Result<bool> {
    for part in &finished.parts {
        let mut hasher = crc32fast::Hasher::new();
        let mut at = part.extent.range.start;
        while at < part.extent.range.end {
            let end = part.extent.range.end.min(at.saturating_add(BLOCK));
            match store.read(name, at..end).await {
                Ok(bytes) => hasher.update(&bytes),
                // It was cut or removed since it was listed.
                Err(StorageError::NotFound { .. } | StorageError::Short { .. }) => {
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
            at = end;
        }
        if hasher.finalize() != part.sum {
            return Ok(false);
        }
    }
    Ok(true)
}
