//! What travels on a connection between two ranks, once both have proved that they are members.
//!
//! A frame is a head of 32 bytes and at most [`PART_LIMIT`] bytes. A longer message travels as several parts, without
//! other frames between them. Numbers are little-endian.

use bytes::{Buf as _, BufMut as _, Bytes};
use reshard_comm::mesh::{Call, Kind, Message};
use std::io::{self, Read, Write};

/// The length of a frame's head.
const HEAD: usize = 32;

/// How many bytes one frame may have after its head.
const PART_LIMIT: u32 = 4 << 20;

/// Up to this length, head and bytes are written by one call.
const WRITTEN_AT_ONCE: usize = 16 << 10;

/// The head of a frame, for `length` bytes of the message: kind, method, whether more follows, zero; root; group; number of
/// the call; length; of or for whom.
fn encode(message: &Message, more: bool, length: u32) -> Vec<u8> {
    let Message { kind, call, .. } = message;
    let mut out = Vec::with_capacity(HEAD);
    out.put_slice(&[kind.code(), call.method, more.into(), 0]);
    out.put_u32_le(call.root);
    out.put_u64_le(message.group);
    out.put_u64_le(call.number);
    out.put_u32_le(length);
    out.put_u32_le(message.about);
    out
}

/// The message of a frame without its bytes, whether more parts of it follow, and how many bytes follow.
///
/// # Errors
/// `InvalidData` if the kind is unknown, a reserved byte is not 0 or the length exceeds [`PART_LIMIT`].
fn decode(head: &[u8; HEAD]) -> io::Result<(Message, bool, u32)> {
    let [kind, method, more @ (0 | 1), 0, rest @ ..] = head else {
        return Err(invalid("a frame of no known kind"));
    };
    let kind = Kind::from_code(*kind).ok_or_else(|| invalid("a frame of no known kind"))?;
    let mut rest = &rest[..];
    let (root, group) = (rest.get_u32_le(), rest.get_u64_le());
    let (number, length) = (rest.get_u64_le(), rest.get_u32_le());
    if length > PART_LIMIT {
        return Err(invalid("a frame longer than 4 MiB"));
    }
    let mut message = Message::notice(kind, group, Bytes::new());
    message.call = Call {
        number,
        method: *method,
        root,
    };
    message.about = rest.get_u32_le();
    Ok((message, *more == 1, length))
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes the message, in parts if it is long.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(message: &Message, mut out: impl Write) -> io::Result<()> {
    let mut rest: &[u8] = &message.body;
    loop {
        let (part, later) = rest.split_at(rest.len().min(PART_LIMIT as usize));
        let length = u32::try_from(part.len()).unwrap_or(PART_LIMIT);
        let head = encode(message, !later.is_empty(), length);
        if part.len() <= WRITTEN_AT_ONCE {
            out.write_all(&[&head[..], part].concat())?;
        } else {
            out.write_all(&head)?;
            out.write_all(part)?;
        }
        rest = later;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// Reads a message of at most `limit` bytes. Its memory grows as the bytes arrive. `None` at the end of the stream.
///
/// # Errors
/// Those of `from`; `UnexpectedEof` within a message; `InvalidData` for frames that no rank sends.
pub(crate) fn read(mut from: impl Read, limit: u64) -> io::Result<Option<Message>> {
    let mut body = Vec::new();
    let mut first: Option<Message> = None;
    loop {
        let mut head = [0; HEAD];
        if first.is_none() {
            // The end of the stream is no error between two messages.
            let begun = loop {
                match from.read(&mut head) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            if begun == 0 {
                return Ok(None);
            }
            from.read_exact(head.get_mut(begun..).unwrap_or_default())?;
        } else {
            from.read_exact(&mut head)?;
        }
        let (message, more, length) = decode(&head)?;
        if first.as_ref().is_some_and(|first| *first != message) {
            return Err(invalid("a part of another message"));
        }
        if more && (message.kind != Kind::Data || length == 0) {
            return Err(invalid("a notice in parts"));
        }
        if (body.len() as u64).saturating_add(u64::from(length)) > limit {
            return Err(invalid("a message longer than the limit"));
        }
        let got = (&mut from).take(u64::from(length)).read_to_end(&mut body)?;
        if got < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !more {
            let body = body.into();
            return Ok(Some(Message { body, ..message }));
        }
        first = Some(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        let call = (any::<u64>(), any::<u8>(), any::<u32>());
        let body = prop::collection::vec(any::<u8>(), 0..100);
        (1..=6_u8, any::<u64>(), call, body).prop_map(
            |(kind, group, (number, method, root), body)| Message {
                kind: Kind::from_code(kind).unwrap(),
                group,
                call: Call {
                    number,
                    method,
                    root,
                },
                about: root,
                body: body.into(),
            },
        )
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_is_written_is_read_again(sent in prop::collection::vec(messages(), 0..5)) {
            let mut bytes = Vec::new();
            for message in &sent {
                write(message, &mut bytes).unwrap();
            }
            let mut from = bytes.as_slice();
            let mut got = Vec::new();
            while let Some(message) = read(&mut from, 100).unwrap() {
                got.push(message);
            }
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut from = bytes.as_slice();
            while let Ok(Some(message)) = read(&mut from, 1000) {
                prop_assert!(message.body.len() <= bytes.len());
            }
        }

        #[test]
        fn a_damaged_head_is_read_without_a_panic(
            message in messages(), at in 0..HEAD, byte in any::<u8>(), cut in 0..200_usize
        ) {
            let mut bytes = Vec::new();
            write(&message, &mut bytes).unwrap();
            bytes[at] = byte;
            bytes.truncate(cut);
            drop(read(bytes.as_slice(), 1000));
        }
    }

    #[test]
    fn a_long_message_travels_in_parts() {
        for length in [
            PART_LIMIT - 1,
            PART_LIMIT,
            PART_LIMIT + 1,
            2 * PART_LIMIT,
            2 * PART_LIMIT + 5,
        ] {
            let body: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let sent = Message::notice(Kind::Data, 7, body.into());
            let mut bytes = Vec::new();
            write(&sent, &mut bytes).unwrap();
            let parts = length.div_ceil(PART_LIMIT) as usize;
            assert_eq!(bytes.len(), length as usize + parts * HEAD);
            let got = read(bytes.as_slice(), u64::from(length)).unwrap();
            assert!(
                got == Some(sent.clone()),
                "{length} bytes are not what was sent"
            );
            let error = read(bytes.as_slice(), u64::from(length) - 1).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "beyond the limit");
            let cut = bytes.len() - 1;
            let error = read(&bytes[..cut], u64::MAX).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_length_that_is_not_followed_by_bytes_takes_no_memory() {
        let mut head = Message::notice(Kind::Data, 0, Bytes::new());
        head.call.number = 1;
        let mut bytes = Vec::new();
        write(&head, &mut bytes).unwrap();
        for absurd in [PART_LIMIT + 1, u32::MAX] {
            bytes[24..28].copy_from_slice(&absurd.to_le_bytes());
            let error = read(bytes.as_slice(), u64::MAX).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn only_parts_of_one_message_are_joined() {
        let part = |number, more| {
            let mut message = Message::notice(Kind::Data, 0, Bytes::new());
            message.call.number = number;
            encode(&message, more, 1)
        };
        let bytes = [&part(0, true)[..], b"a", &part(1, false), b"b"].concat();
        assert_eq!(
            read(bytes.as_slice(), 10).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        let bytes = [&part(0, true)[..], b"a", &part(0, false), b"b"].concat();
        assert_eq!(read(bytes.as_slice(), 10).unwrap().unwrap().body, "ab");
    }
}
