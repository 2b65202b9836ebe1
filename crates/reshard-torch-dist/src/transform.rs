//! DCP's stream transforms: what was done to an item's archive before it was stored.

use bytes::Bytes;
use std::{fmt::Display, io::Read};

/// Why a transform is not undone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not one that this version knows.
    Unknown(String),
    /// The stream is damaged.
    Damaged(String),
    /// It gives more than was allowed.
    More,
    /// There is no memory for what it gives, of which there were so many bytes so far.
    NoMemory(usize),
}

/// Stands for a transform that is described by something else than a str, or not in a list.
pub(crate) const UNTOLD: &str = "?";

/// Undoes one transform, named as `name[@domain]/version`; at most `most` bytes come out.
pub(crate) fn decode(descriptor: &str, stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    if descriptor == UNTOLD {
        return Err(Refused::Unknown(
            "its stream transforms are described in a form that is not known".into(),
        ));
    }
    match descriptor.split_once('/') {
        Some(("stream.zstd", version)) if version.split('.').next() == Some("1") => zstd(stored, most),
        _ => Err(Refused::Unknown(format!(
            "the stream transform {descriptor:?} is not known; known is stream.zstd/1"
        ))),
    }
}

/// Memory is taken for what really came out, never for what a header says.
const BLOCK: usize = 256 << 10;

fn zstd(stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    let bad = |e: &dyn Display| Refused::Damaged(format!("a zstd stream can't be decoded: {e}"));
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(stored).map_err(|e| bad(&e))?;
    let (mut out, mut block) = (Vec::new(), vec![0; BLOCK]);
    loop {
        let n = decoder.read(&mut block).map_err(|e| bad(&e))?;
        if n == 0 {
            return Ok(out.into());
        }
        if (out.len() + n) as u64 > most {
            return Err(Refused::More);
        }
        out.try_reserve(n).map_err(|_| Refused::NoMemory(out.len()))?;
        out.extend_from_slice(&block[..n]);
    }
}
