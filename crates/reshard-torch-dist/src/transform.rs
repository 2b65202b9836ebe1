//! DCP's stream transforms: what was done to an item's archive before it was stored.

use bytes::Bytes;
use std::io::Read;

/// A frame may claim to hold far more than it has; this many bytes for one of them is what the format's best ratio gives.
const MAX_RATIO: u64 = 1 << 15;

/// Undoes one transform, named as `name[@domain]/version`.
pub(crate) fn decode(descriptor: &str, stored: Bytes) -> Result<Bytes, String> {
    match descriptor.split_once('/') {
        Some(("stream.zstd", version)) if version.split('.').next() == Some("1") => zstd(&stored),
        _ => Err(format!("the stream transform {descriptor:?} is not known; known is stream.zstd/1")),
    }
}

fn zstd(stored: &[u8]) -> Result<Bytes, String> {
    let bad = |e: &dyn std::fmt::Display| format!("a zstd stream can't be decoded: {e}");
    let decoder = ruzstd::decoding::StreamingDecoder::new(stored).map_err(|e| bad(&e))?;
    let most = (stored.len() as u64).saturating_mul(MAX_RATIO).saturating_add(1 << 16);
    let mut out = Vec::new();
    decoder.take(most).read_to_end(&mut out).map_err(|e| bad(&e))?;
    if out.len() as u64 == most {
        return Err(bad(&"it unpacks to more than any archive does"));
    }
    Ok(out.into())
}
