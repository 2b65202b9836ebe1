//! DCP's stream transforms: what was done to an item's archive before it was stored.

use bytes::Bytes;
use reshard_model::shortened;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
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
            "its stream transforms are described in a form that this version does not know".into(),
        ));
    }
    match descriptor.split_once('/') {
        Some(("stream.zstd", version)) if version.split('.').next() == Some("1") => {
            zstd(stored, most)
        }
        _ => Err(Refused::Unknown(format!(
            "this version does not know the stream transform {:?}, only stream.zstd/1",
            shortened(descriptor)
        ))),
    }
}

/// Unpacked at a time.
const BLOCK: usize = 256 << 10;
/// What a frame begins with.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A frame of a larger window is not read: the `zstd` program wants to be asked for more than 128 MiB, too.
const WINDOW: u64 = 100 << 20;
/// No block has more, before it is compressed and after.
const LARGEST_BLOCK: u64 = 128 << 10;

/// What the header of a zstd frame says (RFC 8878).
#[derive(Debug, PartialEq, Eq)]
struct Header {
    /// Bytes that come out, if it says so.
    content: Option<u64>,
    /// Bytes that have to stay in memory for what follows.
    window: u64,
    /// Its own length.
    bytes: usize,
}

impl Header {
    fn parse(stored: &[u8]) -> Result<Self, Refused> {
        let unknown = |what: &str| Refused::Unknown(format!("a zstd stream has {what}"));
        let mut at = stored;
        let mut take = |n: usize| match at.split_at_checked(n) {
            Some((bytes, rest)) => {
                at = rest;
                Ok(bytes
                    .iter()
                    .rev()
                    .fold(0u64, |all, b| all << 8 | u64::from(*b)))
            }
            None => Err(damaged("it ends in the header of a frame")),
        };
        let magic = take(4)?.to_le_bytes();
        if magic[..4] != MAGIC {
            return Err(match magic {
                [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => unknown("a frame that is to be skipped"),
                _ => damaged("no frame begins where one should"),
            });
        }
        let said = take(1)?;
        let (single, dictionary) = (said & 0x20 != 0, [0, 1, 2, 4][said as usize & 3]);
        if said & 0x08 != 0 {
            return Err(damaged("the header of a frame has a bit that is reserved"));
        }
        let window = if single { None } else { Some(take(1)?) };
        if take(dictionary)? != 0 {
            return Err(unknown("a frame that needs a dictionary"));
        }
        let content = match said >> 6 {
            0 if single => Some(take(1)?),
            0 => None,
            1 => Some(take(2)? + 256),
            n => Some(take(if n == 2 { 4 } else { 8 })?),
        };
        let window = match window {
            // 2 to the power of 10 to 41, and some eighths of that.
            Some(byte) => {
                let base = 1u64 << (10 + (byte >> 3));
                if byte >> 3 > 21 {
                    return Err(damaged("a frame has a window that no program writes"));
                }
                base + (base >> 3) * (byte & 7)
            }
            None => content.unwrap_or(0),
        };
        let bytes = stored.len() - at.len();
        Ok(Self {
            content,
            window,
            bytes,
        })
    }

    /// That `got` bytes can have come out of the blocks of this frame: none has more bytes than the window, or 128 KiB. The decoder
    /// does not look; the `zstd` program does.
    fn check_blocks(&self, frame: &[u8], got: u64) -> Result<(), Refused> {
        let most = self.window.min(LARGEST_BLOCK);
        let (mut at, mut room) = (frame.get(self.bytes..).unwrap_or_default(), 0u64);
        while let Some((&[a, b, c], rest)) = at.split_first_chunk() {
            let said = u32::from_le_bytes([a, b, c, 0]);
            let (last, repeated, size) = (said & 1 == 1, said >> 1 & 3 == 1, u64::from(said >> 3));
            if size > most {
                return Err(damaged(
                    "a block has more bytes than the window of its frame",
                ));
            }
            room += most;
            let stored = if repeated { 1 } else { size as usize };
            at = rest.get(stored..).filter(|_| !last).unwrap_or_default();
        }
        if got > room {
            return Err(damaged(
                "its blocks have more bytes than the window of their frame",
            ));
        }
        Ok(())
    }
}

fn damaged(what: impl Display) -> Refused {
    Refused::Damaged(format!("a zstd stream can't be decoded: {what}"))
}

/// Undoes zstd. Memory is taken for what came out and for the window of a frame, which is looked at before.
fn zstd(stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    let mut out = Vec::new();
    let mut rest = stored;
    // There may be millions of frames, so what one needs the next one uses, too.
    let (mut decoder, mut block, mut had_room) = (FrameDecoder::new(), vec![0; BLOCK], 0);
    loop {
        let had = out.len();
        let frame = Header::parse(rest)?;
        let left = most.saturating_sub(had as u64);
        if frame.content.is_some_and(|bytes| bytes > left) {
            return Err(Refused::More);
        }
        // A frame in one segment is its own window, and no longer than was allowed.
        if frame.content != Some(frame.window) && frame.window > WINDOW {
            return Err(Refused::Unknown(format!(
                "a zstd stream has a frame with a window of {} bytes",
                frame.window
            )));
        }
        // The decoder takes memory for the window, and aborts where there is none: its buffer is made larger by copying.
        let room = frame.window.saturating_mul(4).saturating_add(1 << 20);
        if room > had_room {
            let room = usize::try_from(room).ok();
            room.and_then(|n| Vec::<u8>::new().try_reserve_exact(n).ok())
                .ok_or(Refused::NoMemory(had))?;
        }
        had_room = had_room.max(room);
        let this = rest;
        rest = decoded(this, most, &mut decoder, &mut block, &mut out)?;
        let got = (out.len() - had) as u64;
        frame.check_blocks(this.get(..this.len() - rest.len()).unwrap_or_default(), got)?;
        if let Some(bytes) = frame.content.filter(|bytes| *bytes != got) {
            let what = format!("a frame has {got} bytes and says that it has {bytes}");
            return Err(damaged(&what));
        }
        if rest.is_empty() {
            return Ok(out.into());
        }
    }
}

/// Decodes a frame, and returns what follows it.
fn decoded<'s>(
    stored: &'s [u8],
    most: u64,
    decoder: &mut FrameDecoder,
    block: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<&'s [u8], Refused> {
    let mut decoder = StreamingDecoder::new_with_decoder(stored, decoder).map_err(damaged)?;
    loop {
        let n = decoder.read(block).map_err(damaged)?;
        if n == 0 {
            break;
        }
        if (out.len() + n) as u64 > most {
            return Err(Refused::More);
        }
        out.try_reserve(n)
            .map_err(|_| Refused::NoMemory(out.len()))?;
        out.extend_from_slice(&block[..n]);
    }
    let (rest, frame) = decoder.into_parts();
    let (said, is) = (
        frame.get_checksum_from_data(),
        frame.get_calculated_checksum(),
    );
    match said.zip(is) {
        Some((said, is)) if said != is => Err(damaged("the checksum of a frame is wrong")),
        _ => Ok(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame: what its header says behind the magic number, one raw block, and what follows.
    fn frame(header: &[u8], block: &[u8], behind: &[u8]) -> Vec<u8> {
        let size = (block.len() as u32) << 3 | 1;
        [&MAGIC, header, &size.to_le_bytes()[..3], block, behind].concat()
    }

    fn told(stored: &[u8], most: u64) -> Result<Vec<u8>, Refused> {
        zstd(stored, most).map(Vec::from)
    }

    #[test]
    fn frames_are_decoded_one_after_the_other() {
        // In one segment of three bytes; with a window of 1 KiB; of no bytes, with their checksum.
        let [one, two] = [frame(&[0x20, 3], b"abc", b""), frame(&[0, 0], b"de", b"")];
        let empty = frame(&[0x24, 0], b"", &[0x99, 0xe9, 0xd8, 0x51]);
        assert_eq!(told(&[one, two, empty].concat(), 5).unwrap(), b"abcde");
    }

    #[test]
    fn what_comes_out_is_what_was_allowed_and_what_the_header_says() {
        assert_eq!(told(&frame(&[0x20, 3], b"abc", b""), 2), Err(Refused::More));
        assert_eq!(told(&frame(&[0, 0], b"abc", b""), 2), Err(Refused::More));
        // Gigabytes are refused by the header alone.
        let gigabytes = [&[0xa0][..], &(1u32 << 31).to_le_bytes()].concat();
        assert_eq!(
            told(&frame(&gigabytes, b"abc", b""), 1 << 20),
            Err(Refused::More)
        );
        for (header, behind) in [
            // Another length, a bit that is reserved, a window of 2^32.
            (&[0x20, 4][..], &b""[..]),
            (&[0x28, 3], b""),
            (&[0, 22 << 3], b""),
            // Bytes of no frame, the beginning of one, a wrong checksum.
            (&[0x20, 3], b"garbage"),
            (&[0x20, 3], &MAGIC),
            (&[0x24, 3], b"1234"),
        ] {
            let outcome = told(&frame(header, b"abc", behind), 100);
            assert!(
                matches!(outcome, Err(Refused::Damaged(_))),
                "{header:?} {behind:?}: {outcome:?}"
            );
        }
    }

    #[test]
    fn a_block_is_no_larger_than_the_window() {
        let fits = vec![7; 1024];
        assert_eq!(told(&frame(&[0, 0], &fits, b""), 2000).unwrap(), fits);
        let larger = told(&frame(&[0, 0], &[7; 1025], b""), 2000);
        assert!(matches!(larger, Err(Refused::Damaged(_))), "{larger:?}");
        // One byte that is repeated, in a window of 1 KiB and of 2 KiB.
        let repeated = |window: u8| {
            [
                &MAGIC[..],
                &[0, window, (1100 << 3 | 3) as u8, (1100 >> 5) as u8, 0, 9],
            ]
            .concat()
        };
        assert!(matches!(told(&repeated(0), 2000), Err(Refused::Damaged(_))));
        assert_eq!(told(&repeated(1 << 3), 2000).unwrap(), vec![9; 1100]);
        // Of compressed blocks only the number tells how much can come out.
        let header = Header {
            content: None,
            window: 1024,
            bytes: 0,
        };
        let two = [
            &[5 << 3 | 4, 0, 0][..],
            &[0; 5],
            &[2 << 3 | 5, 0, 0],
            &[0; 2],
        ]
        .concat();
        assert!(header.check_blocks(&two, 2048).is_ok());
        assert!(matches!(
            header.check_blocks(&two, 2049),
            Err(Refused::Damaged(_))
        ));
    }

    #[test]
    fn what_only_this_version_does_not_know_is_no_damage() {
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 7];
        let (dictionary, window) = (
            frame(&[0x21, 9, 3], b"abc", b""),
            frame(&[0, 20 << 3], b"abc", b""),
        );
        for stored in [&skipped[..], &dictionary, &window] {
            let outcome = told(stored, 100);
            assert!(matches!(outcome, Err(Refused::Unknown(_))), "{outcome:?}");
        }
        // A dictionary of the number 0 is none.
        assert_eq!(
            told(&frame(&[0x21, 0, 3], b"abc", b""), 100).unwrap(),
            b"abc"
        );
    }
}
