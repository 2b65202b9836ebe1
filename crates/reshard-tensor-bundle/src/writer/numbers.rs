//! What the coordinator tells each rank: which numbers its files have.

use bytes::Bytes;

/// It travels in the plan of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    /// The number of its first file.
    pub(super) first: u32,
    /// How many files the checkpoint has.
    pub(super) of: u32,
}

impl Numbers {
    pub(super) fn to_bytes(&self) -> Bytes {
        [self.first.to_le_bytes(), self.of.to_le_bytes()]
            .concat()
            .into()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (first, of) = bytes.split_first_chunk()?;
        Some(Self {
            first: u32::from_le_bytes(*first),
            of: u32::from_le_bytes(of.try_into().ok()?),
        })
    }
}
