//! Checksums beside the bytes that they cover.

use super::super::meta::Sum;
use bytes::Bytes;
use reshard_strategy::Refused;

/// Bytes of a checksum.
pub(crate) const BYTES: usize = 4;

/// The bytes that a checksum covers.
pub(super) fn undo(sum: Sum, stored: &Bytes, at_start: bool) -> Result<Bytes, Refused> {
    let parts = match at_start {
        true => stored.split_first_chunk(),
        false => stored
            .split_last_chunk()
            .map(|(covered, sum)| (sum, covered)),
    };
    let Some((written, covered)) = parts else {
        let what = format!("{} bytes are too few for a checksum", stored.len());
        return Err(Refused::damaged(what));
    };
    check(sum, "", covered, *written)?;
    Ok(stored.slice_ref(covered))
}

/// Checks the checksum of bytes, which are those `of` something.
pub(crate) fn check(sum: Sum, of: &str, bytes: &[u8], written: [u8; BYTES]) -> Result<(), Refused> {
    let (found, written) = (sum.of(bytes), u32::from_le_bytes(written));
    match found == written {
        true => Ok(()),
        false => Err(Refused::damaged(format!(
            "the {}{of} is {found:08x}, {written:08x} was written",
            sum.title()
        ))),
    }
}

impl Sum {
    /// The checksum of bytes.
    pub(super) fn of(self, bytes: &[u8]) -> u32 {
        match self {
            Self::Crc32c => crc32c::crc32c(bytes),
            Self::Crc32 => crc32fast::hash(bytes),
            Self::Adler32 => simd_adler32::adler32(&bytes),
            Self::Fletcher32 => fletcher32(bytes),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Crc32c => "CRC-32C",
            Self::Crc32 => "CRC-32",
            Self::Adler32 => "Adler-32",
            Self::Fletcher32 => "Fletcher-32",
        }
    }
}

/// Of big-endian words of 16 bits, as HDF5 has it. A last byte is the upper one of its word.
fn fletcher32(bytes: &[u8]) -> u32 {
    /// So many words can be added before a sum has to be folded.
    const WORDS: usize = 360;
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut first, mut second) = (0, 0);
    for block in bytes.chunks(2 * WORDS) {
        for word in block.chunks(2) {
            let low = word.get(1).copied().unwrap_or(0);
            first += u32::from(u16::from_be_bytes([word[0], low]));
            second += first;
        }
        (first, second) = (fold(first), fold(second));
    }
    fold(second) << 16 | fold(first)
}
