//! Streams of zstd.

/// A frame that holds so many times 128 KiB of one byte, in 4 bytes each.
pub fn blown_up(byte: u8, blocks: usize) -> Vec<u8> {
    const LARGEST: u32 = 128 << 10;
    // No checksum, no length; a window of 128 KiB.
    let mut out = b"\x28\xb5\x2f\xfd\x00\x38".to_vec();
    for n in 0..blocks {
        let last = u32::from(n + 1 == blocks);
        // A header of 3 bytes: last, run of one byte (1), length.
        let header = last | 1 << 1 | LARGEST << 3;
        out.extend_from_slice(&header.to_le_bytes()[..3]);
        out.push(byte);
    }
    out
}

/// A frame that holds bytes as they are, and behind them so many times 128 KiB of one byte.
pub fn stored(bytes: &[u8], byte: u8, blocks: usize) -> Vec<u8> {
    let blown = blown_up(byte, blocks);
    let mut out = blown[..6].to_vec();
    for part in bytes.chunks(64 << 10) {
        let header = (part.len() as u32) << 3
            | u32::from(blocks == 0 && part.as_ptr_range().end == bytes.as_ptr_range().end);
        out.extend_from_slice(&header.to_le_bytes()[..3]);
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&blown[6..]);
    out
}

/// A frame that holds these bytes: 128 KiB of one byte in 4 bytes, and all else as it is.
pub fn packed(bytes: &[u8]) -> Vec<u8> {
    const LARGEST: usize = 128 << 10;
    let mut out = blown_up(0, 0);
    let parts = bytes.len().div_ceil(LARGEST);
    for (n, part) in bytes.chunks(LARGEST).enumerate() {
        let run = part.iter().all(|byte| *byte == part[0]);
        let header = u32::from(n + 1 == parts) | u32::from(run) << 1 | (part.len() as u32) << 3;
        out.extend_from_slice(&header.to_le_bytes()[..3]);
        out.extend_from_slice(if run { &part[..1] } else { part });
    }
    out
}
