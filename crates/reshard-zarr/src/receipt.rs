//! What an extent returns after it was written: the checksums of its bytes, and the grid that it lies on.

use bytes::Bytes;
use reshard_model::Dims;

/// The part of a receipt that is known before writing.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    step: u64,
    chunk: Bytes,
}

impl Receipt {
    /// For chunks of this shape, as the plans count elements. There is a checksum for each `step` bytes of a file.
    pub(crate) fn of(chunk: &[u64], step: u64) -> Self {
        let numbers = chunk.iter().flat_map(|n| n.to_le_bytes());
        Self {
            step: step.max(1),
            chunk: numbers.collect::<Vec<_>>().into(),
        }
    }

    /// How many bytes have a checksum.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// With the checksums.
    pub(crate) fn with(&self, crcs: &[u32]) -> Bytes {
        let mut out = self.step.to_le_bytes().to_vec();
        out.extend((crcs.len() as u64).to_le_bytes());
        out.extend_from_slice(&self.chunk);
        out.extend(crcs.iter().flat_map(|crc| crc.to_le_bytes()));
        out.into()
    }

    /// What a receipt says of an extent at these bytes of its file.
    pub(crate) fn read(receipt: &[u8], at: std::ops::Range<u64>) -> Option<Read> {
        let (step, rest) = receipt.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let (step, count) = (u64::from_le_bytes(*step).max(1), u64::from_le_bytes(*count));
        let sums = usize::try_from(count).ok()?.checked_mul(4)?;
        let (chunk, sums) = rest.split_at_checked(rest.len().checked_sub(sums)?)?;
        let (numbers, odd) = chunk.as_chunks::<8>();
        let mut parts = Vec::new();
        let mut start = at.start;
        for sum in sums.as_chunks::<4>().0 {
            let end = (start - start % step).saturating_add(step).min(at.end);
            parts.push((start, end.saturating_sub(start), u32::from_le_bytes(*sum)));
            start = end;
        }
        let chunk = numbers.iter().map(|n| u64::from_le_bytes(*n)).collect();
        (odd.is_empty() && start == at.end).then_some(Read { chunk, parts })
    }
}

/// What a receipt says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// The shape of a chunk, as the plans count elements.
    pub(crate) chunk: Dims,
    /// Start, length and checksum of the parts of the extent.
    pub(crate) parts: Vec<(u64, u64, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_strategy::crc32_combined;

    #[test]
    fn checksums_of_parts_make_the_checksum_of_the_whole() {
        let text = b"the quick brown fox";
        let parts = [&text[..0], &text[..4], &text[4..11], &text[11..]];
        let parts = parts.map(|part| (part.len() as u64, crc32fast::hash(part)));
        assert_eq!(crc32_combined(parts.into_iter()), crc32fast::hash(text));
        let receipt = Receipt::of(&[3, 4], 10).with(&[7, 8]);
        let read = Receipt::read(&receipt, 5..12).unwrap();
        assert_eq!(read.chunk, Dims::from([3, 4]));
        assert_eq!(read.parts, [(5, 5, 7), (10, 2, 8)]);
        assert_eq!(Receipt::read(&receipt, 5..21), None);
        assert_eq!(Receipt::read(&receipt[..15], 5..12), None);
        assert_eq!(Receipt::read(&receipt[..33], 5..12), None);
    }
}
