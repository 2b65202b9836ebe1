//! Checksums of parts that follow each other, and what they make together.

use ElementChecksum::{Crc32, Crc32c};
use reshard::strategy::ElementChecksum;

/// The checksum of no bytes, of the same kind as `other`. `None` if that kind is not known here.
pub(crate) fn empty(other: ElementChecksum) -> Option<ElementChecksum> {
    match other {
        Crc32(_) => Some(Crc32(0)),
        Crc32c(_) => Some(Crc32c(0)),
        _ => None,
    }
}

/// The checksum of the bytes of `first` and those that follow them.
pub(crate) fn extended(first: ElementChecksum, bytes: &[u8]) -> ElementChecksum {
    match first {
        Crc32(value) => {
            let mut hasher = crc32fast::Hasher::new_with_initial(value);
            hasher.update(bytes);
            Crc32(hasher.finalize())
        }
        Crc32c(value) => Crc32c(crc32c::crc32c_append(value, bytes)),
        other => other,
    }
}

/// The checksum of two parts, of which the second one has `len` bytes.
pub(crate) fn combined(
    first: ElementChecksum,
    second: ElementChecksum,
    len: u64,
) -> ElementChecksum {
    let second = second.value();
    match first {
        Crc32(first) => {
            let mut hasher = crc32fast::Hasher::new_with_initial(first);
            hasher.combine(&crc32fast::Hasher::new_with_initial_len(second, len));
            Crc32(hasher.finalize())
        }
        Crc32c(first) => Crc32c(crc32c::crc32c_combine(first, second, len as usize)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_parts_make_is_what_their_bytes_make() {
        let bytes: Vec<u8> = (0..200).collect();
        for kind in [Crc32(0), Crc32c(0)] {
            let whole = extended(kind, &bytes);
            for cut in 0..=bytes.len() {
                let (first, second) = bytes.split_at(cut);
                let first = extended(kind, first);
                assert_eq!(extended(first, second), whole);
                let len = second.len() as u64;
                assert_eq!(combined(first, extended(kind, second), len), whole);
            }
        }
        assert_eq!(extended(Crc32(0), b"123456789"), Crc32(0xcbf4_3926));
        assert_eq!(extended(Crc32c(0), b"123456789"), Crc32c(0xe306_9283));
    }
}
