//! Checksums of whole files, computed while they are written.

use bytes::Bytes;
use reshard_storage::{Extent, FileBody, Length, Source};
use reshard_strategy::crc32_combined;
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
};

/// The lengths and checksums of the extents of a file, by their numbers.
type Extents = Arc<Mutex<BTreeMap<usize, (u64, u32)>>>;

/// What is known of the checksum of a file that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sum {
    Known(u32),
    /// The bytes of an earlier attempt were kept, so nobody pulled them.
    Kept,
    Copied,
}

/// The checksum of a file that is being written. `None` for a copy, whose bytes may never pass through this process.
#[derive(Debug)]
pub(crate) struct FileCrc(Option<(usize, Extents)>);

impl FileCrc {
    /// A file whose bytes are summed while they are pulled.
    pub(crate) fn of(file: FileBody) -> (FileBody, Self) {
        let Source::Extents(extents) = file.source else {
            return (file, Self(None));
        };
        let (count, sums) = (extents.len(), Extents::default());
        let summed = extents.into_iter().enumerate().map(|(number, inner)| {
            Box::new(Summed {
                inner,
                number,
                bytes: 0,
                crc: crc32fast::Hasher::new(),
                sums: Arc::clone(&sums),
            }) as Box<dyn Extent>
        });
        let file = FileBody::new(file.name, summed.collect());
        (file, Self(Some((count, sums))))
    }

    /// The CRC-32 of the file, after it was written.
    pub(crate) fn value(self) -> Sum {
        let Some((count, sums)) = self.0 else {
            return Sum::Copied;
        };
        let sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        match sums.len() == count {
            true => Sum::Known(crc32_combined(sums.values().copied())),
            false => Sum::Kept,
        }
    }
}

struct Summed {
    inner: Box<dyn Extent>,
    number: usize,
    bytes: u64,
    crc: crc32fast::Hasher,
    sums: Extents,
}

#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner extent
impl Extent for Summed {
    fn length(&self) -> Length {
        self.inner.length()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.inner.next_block()?;
        if let Ok(block) = &block {
            // Most formats compute it, too.
            if !self.inner.has_crc32() {
                self.crc.update(block);
            }
            self.bytes += block.len() as u64;
        }
        Some(block)
    }

    fn has_crc32(&self) -> bool {
        true
    }

    fn crc32(&self) -> Option<u32> {
        match self.inner.has_crc32() {
            true => self.inner.crc32(),
            false => Some(self.crc.clone().finalize()),
        }
    }

    fn receipt(&mut self) -> Bytes {
        if let Some(crc) = self.crc32() {
            let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            sums.insert(self.number, (self.bytes, crc));
        }
        self.inner.receipt()
    }
}
