//! What an extent returns after it was written: the checksum of its bytes, and the grid that it lies on.

use bytes::Bytes;
use reshard_model::Dims;

/// The part of a receipt that is known before writing.
#[derive(Clone, Debug)]
pub(crate) struct Receipt(Bytes);

impl Receipt {
    /// For chunks of this shape, as the plans count elements.
    pub(crate) fn of(chunk: &[u64]) -> Self {
        let numbers = chunk.iter().flat_map(|n| n.to_le_bytes());
        Self(numbers.collect::<Vec<_>>().into())
    }

    /// With the checksum.
    pub(crate) fn with(&self, crc: u32) -> Bytes {
        [&crc.to_le_bytes()[..], &self.0].concat().into()
    }

    /// The checksum, and the shape of a chunk.
    pub(crate) fn read(receipt: &[u8]) -> Option<(u32, Dims)> {
        let (crc, chunk) = receipt.split_first_chunk::<4>()?;
        let (numbers, rest) = chunk.as_chunks::<8>();
        let chunk = numbers.iter().map(|n| u64::from_le_bytes(*n)).collect();
        rest.is_empty().then_some((u32::from_le_bytes(*crc), chunk))
    }
}

/// The checksum of parts that follow each other, from their lengths and checksums.
pub(crate) fn combined(parts: impl Iterator<Item = (u64, u32)>) -> u32 {
    let mut all = crc32fast::Hasher::new();
    for (length, crc) in parts {
        all.combine(&crc32fast::Hasher::new_with_initial_len(crc, length));
    }
    all.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_parts_make_the_checksum_of_the_whole() {
        let text = b"the quick brown fox";
        let parts = [&text[..0], &text[..4], &text[4..11], &text[11..]];
        let parts = parts.map(|part| (part.len() as u64, crc32fast::hash(part)));
        assert_eq!(combined(parts.into_iter()), crc32fast::hash(text));
        let receipt = Receipt::of(&[3, 4]).with(7);
        assert_eq!(Receipt::read(&receipt), Some((7, [3, 4].into())));
        assert_eq!(Receipt::read(&receipt[..7]), None);
        assert_eq!(Receipt::read(&receipt[..13]), None);
    }
}
