//! Bytes on their way to a file, and their checksum.

use crate::record::LONGEST_HEADER;
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
    /// The bytes of a header, if they are few enough for the record.
    kept: Vec<u8>,
}

impl Summed {
    pub(super) fn new(part: Part, length: u64, blocks: Blocks) -> Self {
        Self {
            part,
            length,
            blocks,
            crc: crc32fast::Hasher::new(),
            kept: Vec::new(),
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
            if self.part == Part::Header && self.length <= LONGEST_HEADER {
                self.kept.extend_from_slice(bytes);
            }
        }
        Some(block)
    }

    fn has_crc32(&self) -> bool {
        true
    }

    fn crc32(&self) -> Option<u32> {
        Some(self.crc.clone().finalize())
    }

    fn receipt(&mut self) -> Bytes {
        let number = Part::ALL.iter().position(|part| *part == self.part);
        let mut out = vec![number.unwrap_or_default() as u8];
        out.extend(self.crc.clone().finalize().to_le_bytes());
        out.extend_from_slice(&self.kept);
        out.into()
    }
}

/// What a receipt says: what the extent is, its CRC-32, and the bytes of a header that is not too long.
pub(super) fn receipt(bytes: &[u8]) -> Option<(Part, u32, &[u8])> {
    let (part, rest) = bytes.split_first()?;
    let part = Part::ALL.get(usize::from(*part))?;
    let (crc, kept) = rest.split_first_chunk()?;
    Some((*part, u32::from_le_bytes(*crc), kept))
}
