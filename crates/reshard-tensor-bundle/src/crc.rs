//! CRC-32C as LevelDB and TensorFlow store it.

/// What is added to a rotated checksum.
const DELTA: u32 = 0xa282_ead8;

/// The stored form. Checksums of bytes that have checksums in them are weak, so they are stored rotated, with a number added.
pub(crate) fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(DELTA)
}

/// The checksum of a stored form.
pub(crate) fn unmask(stored: u32) -> u32 {
    stored.wrapping_sub(DELTA).rotate_left(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_the_one_of_the_reference() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        // The length checksum of a string tensor without elements.
        assert_eq!(mask(0), 0xa282_ead8);
        // The trailer of an empty block.
        assert_eq!(
            mask(crc32c::crc32c(&[0, 0, 0, 0, 1, 0, 0, 0, 0])).to_le_bytes(),
            [0xc0, 0xf2, 0xa1, 0xb0]
        );
        for crc in [0, 1, 0x8000_0000, u32::MAX, 0x1234_5678] {
            assert_eq!(unmask(mask(crc)), crc);
        }
    }
}
