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
    /// An object.
    Object,
}

impl Part {
    const ALL: [Self; 3] = [Self::Elements, Self::Header, Self::Object];
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
        let number = Part::ALL.iter().position(|part| *part == self.part);
        let mut out = vec![number.unwrap_or_default() as u8];
        out.extend(self.crc.clone().finalize().to_le_bytes());
        out.into()
    }
}

/// What a receipt says: what the extent is, and its CRC-32.
pub(super) fn receipt(bytes: &[u8]) -> Option<(Part, u32)> {
    let (part, crc) = bytes.split_first()?;
    let part = Part::ALL.get(usize::from(*part))?;
    Some((*part, u32::from_le_bytes(crc.try_into().ok()?)))
}
