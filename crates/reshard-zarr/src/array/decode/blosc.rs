//! Blosc 1, as C-Blosc and numcodecs write it: a header, where each block begins, and blocks. A block is compressed whole, or
//! in one stream for each byte of an element.

mod lz;
pub(super) mod shuffle;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use reshard_strategy::Refused;

/// Bytes before the table of blocks.
const HEADER: usize = 16;
/// Bytes of the length before a stream.
const LENGTH: usize = 4;
/// The version of the format since C-Blosc 1.0.
const VERSION: u8 = 2;
/// The largest element, in bytes, of which each byte has a stream of its own.
const MOST_STREAMS: usize = 16;
/// The shortest such stream, in bytes.
const LEAST_STREAM: usize = 128;

/// The header of a buffer.
#[derive(Clone, Copy, Debug)]
struct Header {
    flags: u8,
    /// Bytes of an element, at least 1.
    element: usize,
    /// Bytes that come out.
    size: usize,
    /// Bytes of each block but the last, from 1 to `size`.
    block: usize,
}

impl Header {
    const SHUFFLED: u8 = 1;
    const STORED: u8 = 2;
    const BITS_SHUFFLED: u8 = 4;
    const UNKNOWN: u8 = 8;
    const WHOLE: u8 = 16;

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Streams of a block of `size` bytes.
    fn streams(self, size: usize) -> usize {
        let splits = !self.has(Self::WHOLE)
            && self.element <= MOST_STREAMS
            && self.block / self.element >= LEAST_STREAM
            && size == self.block;
        if splits { self.element } else { 1 }
    }

    /// Undoes the shuffle of a block of `size` bytes, if it has one.
    fn unshuffle(self, size: usize) -> Option<shuffle::Unshuffle> {
        if self.has(Self::SHUFFLED) && self.element > 1 {
            Some(shuffle::bytes)
        } else if self.has(Self::BITS_SHUFFLED) && (size / self.element).is_multiple_of(8) {
            Some(shuffle::bits)
        } else {
            None
        }
    }
}

/// A buffer of one chunk. At most `most` bytes may come out.
pub(super) fn undo(stored: &Bytes, most: u64) -> Result<Bytes, Refused> {
    let Some(header) = parse(stored, most)? else {
        return Ok(Bytes::new());
    };
    if header.has(Header::STORED) {
        let out = stored.slice(HEADER..);
        return match out.len() == header.size {
            true => Ok(out),
            false => Err(Refused::damaged(format!(
                "its header says {} bytes that are stored as they are, and there are {}",
                header.size,
                out.len()
            ))),
        };
    }
    blocks(header, stored).map(Bytes::from)
}

/// The header, or `None` if nothing comes out.
fn parse(stored: &[u8], most: u64) -> Result<Option<Header>, Refused> {
    let wrong = |what| Err(Refused::damaged(what));
    let Some(&[version, _, flags, element, ref words @ ..]) = stored.first_chunk::<HEADER>() else {
        return wrong(format!("{} bytes are too few for a header", stored.len()));
    };
    let word = |n: usize| {
        words
            .as_chunks()
            .0
            .get(n)
            .map_or(0, |b| u32::from_le_bytes(*b))
    };
    let (size, block, packed) = (word(0), word(1), word(2));
    if packed as usize != stored.len() {
        let found = stored.len();
        return wrong(format!(
            "its header says {packed} bytes, and there are {found}"
        ));
    }
    if u64::from(size) > most {
        return wrong(format!("more than {most} bytes come out"));
    }
    if size == 0 {
        return Ok(None);
    }
    if block == 0 || block > size || element == 0 {
        return wrong(format!(
            "its header says blocks of {block} bytes, in which elements have {element}"
        ));
    }
    let header = Header {
        flags,
        element: element.into(),
        size: size as usize,
        block: block as usize,
    };
    if version != VERSION || header.has(Header::UNKNOWN) {
        return wrong(format!(
            "its header has version {version} and flags {flags:#04x}; C-Blosc 1 writes version {VERSION}, without the flag 0x08"
        ));
    }
    Ok(Some(header))
}

/// Decodes all blocks.
fn blocks(header: Header, stored: &[u8]) -> Result<Vec<u8>, Refused> {
    let count = header.size.div_ceil(header.block);
    let Some(table) = stored[HEADER..].as_chunks().0.get(..count) else {
        let what = format!(
            "{} bytes are too few for a table of {count} blocks",
            stored.len()
        );
        return Err(Refused::damaged(what));
    };
    let no_memory = |_| super::no_memory(header.size);
    let (mut out, mut shuffled) = (Vec::new(), Vec::new());
    let mut codec = Compression::of(header)?;
    let mut left = stored.len() - HEADER - LENGTH * count;
    for (n, start) in table.iter().enumerate() {
        let begin = out.len();
        let size = header.block.min(header.size - begin);
        let start = u32::from_le_bytes(*start) as usize;
        let damaged =
            |why: String| Refused::damaged(format!("block {n} of {count}, at byte {start}: {why}"));
        // Looked at before memory is taken for what the header promises.
        let streams = streams(stored, start, header.streams(size), &mut left);
        let streams = streams.map_err(|why| damaged(why.into()))?;
        out.try_reserve_exact(header.size - begin)
            .map_err(no_memory)?;
        out.resize(begin + size, 0);
        let out = &mut out[begin..];
        if let Some(unshuffle) = header.unshuffle(size) {
            shuffled
                .try_reserve_exact(size.saturating_sub(shuffled.len()))
                .map_err(no_memory)?;
            shuffled.resize(size, 0);
            codec.block(&streams, &mut shuffled).map_err(damaged)?;
            unshuffle(header.element, &shuffled, out);
        } else {
            codec.block(&streams, out).map_err(damaged)?;
        }
    }
    Ok(out)
}

/// The streams of the block that begins at byte `start`. Each has its length before it, which is taken from `left`: streams that overlap
/// would let a short buffer take very long, and no writer makes them.
fn streams<'s>(
    stored: &'s [u8],
    start: usize,
    count: usize,
    left: &mut usize,
) -> Result<Vec<&'s [u8]>, &'static str> {
    let mut rest = stored.get(start..).ok_or("it begins after the end")?;
    let mut stream = || {
        let (length, after) = rest.split_first_chunk().ok_or("it is cut")?;
        let length = u32::from_le_bytes(*length) as usize;
        let (stream, after) = after.split_at_checked(length).ok_or("it is cut")?;
        if stream.is_empty() {
            return Err("a stream is empty");
        }
        rest = after;
        let taken = left.checked_sub(length + LENGTH);
        *left = taken.ok_or("it overlaps other blocks")?;
        Ok(stream)
    };
    (0..count).map(|_| stream()).collect()
}

/// The codec of the streams. Those with a large state keep it: a buffer may have a stream for each byte that comes out.
enum Compression {
    BloscLz,
    Lz4,
    Snappy,
    Zlib(flate2::Decompress),
    Zstd(zstd::bulk::Decompressor<'static>),
}

impl Compression {
    fn of(header: Header) -> Result<Self, Refused> {
        let failed = |e| Refused::damaged(format!("zstd can't begin: {e}"));
        Ok(match header.flags >> 5 {
            0 => Self::BloscLz,
            // LZ4HC, too.
            1 => Self::Lz4,
            2 => Self::Snappy,
            3 => Self::Zlib(flate2::Decompress::new(true)),
            4 => Self::Zstd(zstd::bulk::Decompressor::new().map_err(failed)?),
            n => {
                return Err(Refused::damaged(format!(
                    "C-Blosc 1 has no compression {n}"
                )));
            }
        })
    }

    /// Decompresses the streams of a block, which have to fill `out`. An error says why they do not.
    fn block(&mut self, streams: &[&[u8]], out: &mut [u8]) -> Result<(), String> {
        let each = out.len() / streams.len();
        if each * streams.len() != out.len() {
            let (size, count) = (out.len(), streams.len());
            return Err(format!(
                "its {size} bytes can't be divided into {count} streams"
            ));
        }
        for (stream, out) in streams.iter().zip(out.chunks_exact_mut(each)) {
            if stream.len() == each {
                out.copy_from_slice(stream);
            } else {
                self.stream(stream, out)?;
            }
        }
        Ok(())
    }

    /// Decompresses a stream, which has to fill `out`.
    fn stream(&mut self, stream: &[u8], out: &mut [u8]) -> Result<(), String> {
        let size = out.len();
        let came = match self {
            Self::BloscLz => lz::decompress(stream, out).ok_or("a stream of blosclz is damaged")?,
            Self::Lz4 => {
                lz4_flex::block::decompress_into(stream, out).map_err(|e| format!("lz4: {e}"))?
            }
            Self::Snappy => {
                let done = snap::raw::Decoder::new().decompress(stream, out);
                done.map_err(|e| format!("snappy: {e}"))?
            }
            Self::Zlib(zlib) => {
                zlib.reset(true);
                let all = flate2::FlushDecompress::Finish;
                match zlib.decompress(stream, out, all) {
                    Ok(flate2::Status::StreamEnd) => zlib.total_out() as usize,
                    Ok(_) => return Err("zlib: the stream does not end where it should".into()),
                    Err(e) => return Err(format!("zlib: {e}")),
                }
            }
            Self::Zstd(zstd) => {
                let done = zstd.decompress_to_buffer(stream, out);
                done.map_err(|e| format!("zstd: {e}"))?
            }
        };
        match came == size {
            true => Ok(()),
            false => Err(format!(
                "{came} bytes come out of a stream, and it should have {size}"
            )),
        }
    }
}
