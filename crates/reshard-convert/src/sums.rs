//! Checksums of parts that follow each other, and what they make together.

use reshard::strategy::ElementChecksum;

/// Which checksum it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Crc32,
    Crc32c,
}

impl Kind {
    /// `None` for one that is not known here.
    pub(crate) fn of(sum: ElementChecksum) -> Option<Self> {
        match sum {
            ElementChecksum::Crc32(_) => Some(Self::Crc32),
            ElementChecksum::Crc32c(_) => Some(Self::Crc32c),
            _ => None,
        }
    }

    /// The checksum with this value.
    pub(crate) fn with(self, value: u32) -> ElementChecksum {
        match self {
            Self::Crc32 => ElementChecksum::Crc32(value),
            Self::Crc32c => ElementChecksum::Crc32c(value),
        }
    }

    /// The value for bytes that follow those of `value`. That of no bytes is 0.
    pub(crate) fn extended(self, value: u32, bytes: &[u8]) -> u32 {
        match self {
            Self::Crc32 => {
                let mut hasher = crc32fast::Hasher::new_with_initial(value);
                hasher.update(bytes);
                hasher.finalize()
            }
            Self::Crc32c => crc32c::crc32c_append(value, bytes),
        }
    }

    /// The value for two parts, of which the second one has `len` bytes.
    pub(crate) fn combined(self, first: u32, second: u32, len: u64) -> u32 {
        match self {
            Self::Crc32 => {
                let mut hasher = crc32fast::Hasher::new_with_initial(first);
                hasher.combine(&crc32fast::Hasher::new_with_initial_len(second, len));
                hasher.finalize()
            }
            Self::Crc32c => crc32c::crc32c_combine(first, second, len as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_parts_make_is_what_their_bytes_make() {
        let bytes: Vec<u8> = (0..200).collect();
        for kind in [Kind::Crc32, Kind::Crc32c] {
            let whole = kind.extended(0, &bytes);
            for cut in 0..=bytes.len() {
                let (first, second) = bytes.split_at(cut);
                let first = kind.extended(0, first);
                assert_eq!(kind.extended(first, second), whole);
                let second_alone = kind.extended(0, second);
                let len = second.len() as u64;
                assert_eq!(kind.combined(first, second_alone, len), whole);
            }
        }
        assert_eq!(Kind::Crc32.extended(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(Kind::Crc32c.extended(0, b"123456789"), 0xe306_9283);
    }
}
