//! From the stored bytes of a chunk to its elements.
//!
//! The size of the result is known before: it follows from the shape of the chunk. No codec may give more, so a file of a few bytes takes
//! no more memory than its chunk, or twice that where Blosc has shuffled bytes.

mod blosc;
mod filters;
mod sums;
#[cfg(test)]
mod tests;

use super::meta::{Codec, Stored};
use bytes::{Buf as _, Bytes, buf::Reader};
use bzip2::bufread::BzDecoder;
use flate2::bufread::{GzDecoder, ZlibDecoder};
use reshard_model::{DType, ErrorKind, MemoryLimit, Tensor};
use reshard_storage::{Name, StorageError};
use reshard_strategy::{Refused, StrategyError};
use std::{
    cell::RefCell,
    io::{self, Read},
    sync::Arc,
};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation as _, OutBuffer};

pub(crate) use sums::{BYTES as CRC, check as check_sum};

/// The elements of a whole chunk.
///
/// # Errors
/// The bytes are damaged.
pub(crate) fn elements(
    stored: &Stored,
    dtype: DType,
    chunk: &[u64],
    bytes: Bytes,
) -> Result<Tensor, Refused> {
    let too_large = || Refused::damaged("its chunks are too large");
    let layout = stored.layout(dtype, chunk).ok_or_else(too_large)?;
    let mut bytes = decode(&stored.codecs, bytes, layout.bytes())?;
    if stored.swaps(dtype) {
        bytes = swapped(bytes, dtype.word() as usize);
    }
    Tensor::with_layout(dtype, layout, Arc::new(bytes)).map_err(|e| Refused::damaged(e.to_string()))
}

/// The error for stored bytes that can't be decoded: damage, an unknown encoding, or a lack of memory.
pub(crate) fn error_in(file: &Name, at: Option<u64>, why: Refused) -> StrategyError {
    let what = why.what;
    match why.kind {
        ErrorKind::Corrupt => StrategyError::corrupt(file, at, what),
        ErrorKind::Unavailable => {
            let source = io::Error::new(io::ErrorKind::OutOfMemory, what);
            StorageError::io("decode", file.as_str(), source).into()
        }
        _ => StrategyError::Undecoded { what },
    }
}

/// Undoes codecs from bytes to bytes. `decoded` is how many bytes come out at the end.
///
/// # Errors
/// The bytes are damaged: more come out, or fewer, or a codec fails.
pub(crate) fn decode(codecs: &[Codec], stored: Bytes, decoded: u64) -> Result<Bytes, Refused> {
    // How many bytes each codec was given at most when the chunk was written.
    let mut sizes = Vec::with_capacity(codecs.len());
    let mut size = decoded;
    for codec in codecs {
        sizes.push(size);
        size = codec.most(size);
    }
    let mut bytes = stored;
    for (codec, most) in codecs.iter().zip(sizes).rev() {
        bytes = codec
            .undo(bytes, most)
            .map_err(|why| Refused::new(why.kind, format!("{}: {}", codec.name(), why.what)))?;
    }
    match bytes.len() as u64 {
        found if found == decoded => Ok(bytes),
        found => {
            let codec = codecs.first().map_or("", |codec| codec.name());
            let what = format!("{found} bytes come out of {codec}, and a chunk has {decoded}");
            Err(Refused::damaged(what))
        }
    }
}

impl Codec {
    /// The most bytes that a writer makes of `size`.
    fn most(self, size: u64) -> u64 {
        match self {
            Self::Checksum { .. } => size.saturating_add(sums::BYTES as u64),
            Self::Shuffle { .. } | Self::Narrow { .. } => size,
            Self::Delta(numbers) | Self::Scale { numbers, .. } => numbers.encoded_bytes(size),
            Self::PackBits => size.div_ceil(8).saturating_add(1),
            // Generous: what can't be compressed is stored in blocks with short headers.
            _ => size.saturating_add(size / 8).saturating_add(64 << 10),
        }
    }

    fn undo(self, stored: Bytes, most: u64) -> Result<Bytes, Refused> {
        match self {
            Self::Gzip => {
                let mut stream = GzDecoder::new(&*stored);
                let out = all(&mut stream, stored.len(), most)?;
                ends(stream.into_inner())?;
                Ok(out)
            }
            Self::Zlib => zlib(stored, most),
            Self::Zstd => zstd(&stored, most),
            Self::Bz2 => {
                let mut stream = BzDecoder::new(&*stored);
                let out = all(&mut stream, stored.len(), most)?;
                ends(stream.into_inner())?;
                Ok(out)
            }
            Self::Blosc => blosc::undo(&stored, most),
            Self::Lz4 => lz4(&stored, most),
            Self::Checksum { sum, at_start } => sums::undo(sum, &stored, at_start),
            Self::Shuffle { element } => filters::unshuffle(element, stored),
            Self::Delta(numbers) => filters::sum_up(numbers, &stored, most),
            Self::Scale {
                offset,
                scale,
                numbers,
            } => filters::unscale(offset, scale, numbers, &stored, most),
            Self::PackBits => filters::unpack_bits(&stored, most),
            Self::Narrow { bits } => Ok(filters::widen(bits, stored)),
        }
    }
}

/// A block of LZ4 after its decoded length.
fn lz4(stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    /// A byte of a block of LZ4 stands for at most so many.
    const LARGEST_RATIO: usize = 255;
    let Some((size, block)) = stored.split_first_chunk() else {
        let what = format!("{} bytes are too few for a length", stored.len());
        return Err(Refused::damaged(what));
    };
    let size = u32::from_le_bytes(*size);
    if u64::from(size) > most {
        return Err(too_many(most));
    }
    let size = size as usize;
    // Looked at before memory is taken for what the header promises.
    if size / LARGEST_RATIO > block.len() {
        let what = format!("{} bytes are too few for {size} decoded ones", block.len());
        return Err(Refused::damaged(what));
    }
    let mut out = zeros(size)?;
    let failed = |e| Refused::damaged(format!("the block can't be decoded: {e}"));
    match lz4_flex::block::decompress_into(block, &mut out).map_err(failed)? {
        came if came == size => Ok(out.into()),
        came => Err(Refused::damaged(format!(
            "{came} bytes come out, and its header says {size}"
        ))),
    }
}

/// Memory for so many bytes.
fn zeros(bytes: usize) -> Result<Vec<u8>, Refused> {
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_| no_memory(bytes))?;
    out.resize(bytes, 0);
    Ok(out)
}

fn zlib(stored: Bytes, most: u64) -> Result<Bytes, Refused> {
    // The state of a decoder has 43 kB, and an inner chunk may have a few bytes: so each thread keeps one.
    thread_local! {
        static STREAM: RefCell<ZlibDecoder<Reader<Bytes>>> = RefCell::new(ZlibDecoder::new(Bytes::new().reader()));
    }
    STREAM.with_borrow_mut(|stream| {
        let size = stored.len();
        stream.reset(stored.reader());
        let out = all(stream, size, most);
        let rest = stream.reset(Bytes::new().reader()).into_inner();
        let out = out?;
        ends(&rest)?;
        Ok(out)
    })
}

/// All that comes out of a stream. There may be at most `most` bytes.
fn all(stream: &mut impl Read, stored: usize, most: u64) -> Result<Bytes, Refused> {
    // Memory is taken for what comes out, beyond a small multiple of what is stored.
    let mut out = Vec::new();
    let guess = most.min(4 * stored as u64) as usize;
    out.try_reserve(guess.saturating_add(1))
        .map_err(|_| no_memory(guess))?;
    let came = stream
        .take(most.saturating_add(1))
        .read_to_end(&mut out)
        .map_err(failed)?;
    match came as u64 <= most {
        true => Ok(out.into()),
        false => Err(too_many(most)),
    }
}

/// The fault of a stream that a decoder has given up. A decoder without memory says nothing about its stream.
fn failed(e: io::Error) -> Refused {
    let is_short = e.kind() == io::ErrorKind::OutOfMemory || e.to_string().contains(ZSTD_NO_MEMORY);
    match is_short {
        true => Refused::new(
            ErrorKind::Unavailable,
            format!("no memory to decode the stream: {e}"),
        ),
        false => Refused::damaged(format!("the stream can't be decoded: {e}")),
    }
}

/// libzstd's text for it.
const ZSTD_NO_MEMORY: &str = "not enough memory";

fn no_memory(bytes: usize) -> Refused {
    Refused::new(ErrorKind::Unavailable, MemoryLimit::refusal(bytes))
}

fn too_many(most: u64) -> Refused {
    Refused::damaged(format!("more than {most} bytes come out"))
}

/// Nothing may follow a stream.
fn ends(rest: &[u8]) -> Result<(), Refused> {
    match rest.len() {
        0 => Ok(()),
        n => Err(Refused::damaged(format!("{n} bytes follow the stream"))),
    }
}

/// What frames of today's zstd begin with. The library also knows forms from before version 0.8, which no writer of Zarr makes.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The window of a frame is at most 2 to the power of this, as for the program `zstd` unless it is asked for more.
const ZSTD_WINDOW: u32 = 27;

fn zstd(stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    // There may be millions of frames without content, and a decoder takes longer to make than such a frame to decode.
    let mut decoder = Decoder::new().map_err(failed)?;
    let window = DParameter::WindowLogMax(ZSTD_WINDOW);
    decoder.set_parameter(window).map_err(failed)?;
    let (mut out, mut rest) = (Vec::new(), stored);
    while !rest.is_empty() {
        if !rest.starts_with(&ZSTD) {
            return Err(Refused::damaged("no frame begins where one should"));
        }
        rest = zstd_frame(&mut decoder, rest, &mut out, most)?;
    }
    Ok(out.into())
}

/// Appends the content of a frame, and returns what follows it. There may be at most `most` bytes in all.
fn zstd_frame<'s>(
    decoder: &mut Decoder<'_>,
    mut rest: &'s [u8],
    out: &mut Vec<u8>,
    most: u64,
) -> Result<&'s [u8], Refused> {
    loop {
        let had = out.len();
        if out.capacity() == had {
            // Room for a byte too many shows that there are more. Memory is taken for what comes out, beyond a small multiple of what is stored.
            let left = most.saturating_add(1).saturating_sub(had as u64);
            let guess = left.min((4 * rest.len()).max(had) as u64 + 1) as usize;
            out.try_reserve_exact(guess.max(1))
                .map_err(|_| no_memory(guess))?;
        }
        let mut input = InBuffer::around(rest);
        let mut output = OutBuffer::around_pos(out, had);
        let wants = decoder.run(&mut input, &mut output).map_err(failed)?;
        let used = input.pos();
        rest = rest.get(used..).unwrap_or_default();
        match out.len() {
            now if now as u64 > most => return Err(too_many(most)),
            _ if wants == 0 => return Ok(rest),
            now if now == had && used == 0 => {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            _ => {}
        }
    }
}

/// Elements of the other order of bytes.
fn swapped(bytes: Bytes, word: usize) -> Bytes {
    let mut bytes = Vec::from(bytes);
    bytes.chunks_exact_mut(word).for_each(<[u8]>::reverse);
    bytes.into()
}
