//! Bytes on their way to a file, and their checksum.

use bytes::Bytes;
use reshard_storage::{Extent, Length};
use reshard_strategy::Blocks;
use std::io;

/// What an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All before the first tensor.
    Header,
    /// Elements.
    Elements,
}

/// An extent whose receipt is its checksum.
pub(super) struct Summed {
    part: Part,
    length: u64,
    blocks: Blocks,
    crc: crc32fast::Hasher,
}

impl Summed {
    pub(super) fn new(part: Part, length: u64, blocks: Blocks) -> Self {
        Self {
            part,
            length,
            blocks,
            crc: crc32fast::Hasher::new(),
        }
    }
}

impl Extent for Summed {
    fn length(&self) -> Length {
        Length::Exact(self.length)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.blocks.next()?;
        if let Ok(bytes) = &block {
            self.crc.update(bytes);
        }
        Some(block)
    }

    fn receipt(&mut self) -> Bytes {
        let mut out = vec![u8::from(self.part == Part::Header)];
        out.extend(self.crc.clone().finalize().to_le_bytes());
        out.into()
    }
}

/// What a receipt says: what the extent is, and its CRC-32.
pub(super) fn receipt(bytes: &[u8]) -> Option<(Part, u32)> {
    let (part, crc) = bytes.split_first()?;
    let part = match part {
        0 => Part::Elements,
        _ => Part::Header,
    };
    Some((part, u32::from_le_bytes(crc.try_into().ok()?)))
}
