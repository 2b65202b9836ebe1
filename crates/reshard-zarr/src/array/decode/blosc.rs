//! Blosc. The crate zarrs calls its C library.

use crate::array::meta::Fault;
use bytes::Bytes;
use std::borrow::Cow;
use zarrs::array::{
    BytesRepresentation, CodecOptions,
    codec::{
        api::BytesToBytesCodecTraits,
        bytes_to_bytes::blosc::{
            BloscCodec, BloscCompressionLevel, BloscCompressor, BloscShuffleMode,
        },
    },
};

/// Bytes before the blocks.
const HEADER: usize = 16;

/// A buffer of one chunk.
pub(super) fn undo(stored: &[u8], most: u64) -> Result<Bytes, Fault> {
    let size = check(stored, most)?;
    if size == 0 {
        return Ok(Bytes::new());
    }
    let failed = |e: &dyn std::fmt::Display| Fault::damaged(format!("it can't be decoded: {e}"));
    // The header says how a buffer is packed. What the codec is made with is for writing.
    let level = BloscCompressionLevel::try_from(0).map_err(|e| failed(&e))?;
    let plain = BloscShuffleMode::NoShuffle;
    let codec = BloscCodec::new(BloscCompressor::LZ4, level, None, plain, None);
    let codec = codec.map_err(|e| failed(&e))?;
    let out = codec
        .decode(
            Cow::Borrowed(stored),
            &BytesRepresentation::FixedSize(size),
            &CodecOptions::default(),
        )
        .map_err(|e| failed(&e))?;
    Ok(Bytes::from(out.into_owned()))
}

/// Looks at the header before C code sees it. Returns how many bytes come out.
fn check(stored: &[u8], most: u64) -> Result<u64, Fault> {
    let Some(header) = stored.first_chunk::<HEADER>() else {
        let what = format!("{} bytes are too few for a header", stored.len());
        return Err(Fault::damaged(what));
    };
    let word = |at: usize| {
        let bytes = header[at..at + 4].iter().rev();
        bytes.fold(0u64, |n, b| n << 8 | u64::from(*b))
    };
    let (size, block, packed) = (word(4), word(8), word(12));
    let wrong = |what: String| Err(Fault::damaged(what));
    if packed != stored.len() as u64 {
        return wrong(format!(
            "its header says {packed} bytes, and there are {}",
            stored.len()
        ));
    }
    if size > most {
        return wrong(format!("more than {most} bytes come out"));
    }
    if size > 0 && (block == 0 || block > size || header[3] == 0) {
        return wrong(format!(
            "its header says blocks of {block} bytes, in which elements have {}",
            header[3]
        ));
    }
    Ok(size)
}
