//! The requests of the TCPStore protocol, as PyTorch 2.1 and later speak it.
//!
//! A request is a byte with its code, and its fields. Numbers are in the order of the machine. Text and bytes have a
//! `u64` with their length before them. The first request of a connection is `Validate`.

use std::io::{self, Read};

/// What `Validate` carries.
pub(crate) const MAGIC: u32 = 0x3C85_F7CE;

/// How long a key may be, in bytes.
const KEY_LIMIT: u64 = 4 << 10;
/// How long a value may be, in bytes.
const VALUE_LIMIT: u64 = 8 << 20;
/// How many keys a request may have.
const KEYS_LIMIT: u64 = 4 << 10;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Opens a connection. No answer.
    Validate(u32),
    /// Stores a value. No answer.
    Set(Vec<u8>, Vec<u8>),
    /// Stores a value if the key has the expected value, or if both are missing. The answer is the value afterwards.
    CompareSet(Vec<u8>, Vec<u8>, Vec<u8>),
    /// The answer is the value.
    Get(Vec<u8>),
    /// Adds to a number, which is 0 at first. The answer is the sum, as `i64`.
    Add(Vec<u8>, i64),
    /// The answer is the byte 0 if all keys exist, else 1.
    Check(Vec<Vec<u8>>),
    /// The answer is the byte 0, as soon as all keys exist.
    Wait(Vec<Vec<u8>>),
    /// The answer is how many keys there are, as `i64`.
    Count,
    /// The answer is how many keys were removed, as `i64`.
    Delete(Vec<u8>),
    /// Ends a `Wait`. The answer is the byte 1.
    CancelWait,
    /// The answer is the same number.
    Ping(u32),
}

/// The code of `CancelWait`, which may come during a `Wait`.
pub(crate) const CANCEL_WAIT: u8 = 12;

impl Request {
    /// The bytes of the request.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.code()];
        match self {
            Self::Validate(number) | Self::Ping(number) => out.extend(number.to_ne_bytes()),
            Self::Set(key, value) => put_all(&mut out, &[key, value]),
            Self::CompareSet(key, expected, value) => put_all(&mut out, &[key, expected, value]),
            Self::Get(key) | Self::Delete(key) => put(&mut out, key),
            Self::Add(key, number) => {
                put(&mut out, key);
                out.extend(number.to_ne_bytes());
            }
            Self::Check(keys) | Self::Wait(keys) => {
                out.extend((keys.len() as u64).to_ne_bytes());
                keys.iter().for_each(|key| put(&mut out, key));
            }
            Self::Count | Self::CancelWait => {}
        }
        out
    }

    fn code(&self) -> u8 {
        match self {
            Self::Validate(_) => 0,
            Self::Set(..) => 1,
            Self::CompareSet(..) => 2,
            Self::Get(_) => 3,
            Self::Add(..) => 4,
            Self::Check(_) => 5,
            Self::Wait(_) => 6,
            Self::Count => 7,
            Self::Delete(_) => 8,
            Self::CancelWait => CANCEL_WAIT,
            Self::Ping(_) => 13,
        }
    }

    /// Reads a request. Memory grows as the bytes arrive. `None` at the end of the stream.
    ///
    /// # Errors
    /// Those of `from`; `InvalidData` for an unknown request, or one beyond the limits.
    pub(crate) fn read(mut from: impl Read) -> io::Result<Option<Self>> {
        let mut code = [0];
        if from.read(&mut code)? == 0 {
            return Ok(None);
        }
        let from = &mut from;
        let [code] = code;
        Ok(Some(match code {
            0 => Self::Validate(u32::from_ne_bytes(take(from)?)),
            1 => Self::Set(key(from)?, value(from)?),
            2 => Self::CompareSet(key(from)?, value(from)?, value(from)?),
            3 => Self::Get(key(from)?),
            4 => Self::Add(key(from)?, i64::from_ne_bytes(take(from)?)),
            5 => Self::Check(keys(from)?),
            6 => Self::Wait(keys(from)?),
            7 => Self::Count,
            8 => Self::Delete(key(from)?),
            CANCEL_WAIT => Self::CancelWait,
            13 => Self::Ping(u32::from_ne_bytes(take(from)?)),
            _ => return Err(invalid(format!("request {code} is not known"))),
        }))
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_ne_bytes());
    out.extend(bytes);
}

fn put_all(out: &mut Vec<u8>, fields: &[&[u8]]) {
    fields.iter().for_each(|field| put(out, field));
}

/// The bytes of a value as an answer.
pub(crate) fn counted(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + value.len());
    put(&mut out, value);
    out
}

/// Reads `N` bytes.
pub(crate) fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads a value with its length.
pub(crate) fn value(from: &mut impl Read) -> io::Result<Vec<u8>> {
    bytes(from, VALUE_LIMIT, "a value")
}

fn key(from: &mut impl Read) -> io::Result<Vec<u8>> {
    bytes(from, KEY_LIMIT, "a key")
}

fn keys(from: &mut impl Read) -> io::Result<Vec<Vec<u8>>> {
    let count = u64::from_ne_bytes(take(from)?);
    if count > KEYS_LIMIT {
        return Err(invalid(format!("{count} keys are too many")));
    }
    (0..count).map(|_| key(from)).collect()
}

fn bytes(from: &mut impl Read, limit: u64, what: &str) -> io::Result<Vec<u8>> {
    let length = u64::from_ne_bytes(take(from)?);
    if length > limit {
        return Err(invalid(format!("{what} of {length} bytes is too long")));
    }
    let mut bytes = Vec::new();
    if from.take(length).read_to_end(&mut bytes)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20);
        let list = || prop::collection::vec(bytes(), 0..4);
        prop_oneof![
            any::<u32>().prop_map(Request::Validate),
            (bytes(), bytes()).prop_map(|(k, v)| Request::Set(k, v)),
            (bytes(), bytes(), bytes()).prop_map(|(k, e, v)| Request::CompareSet(k, e, v)),
            bytes().prop_map(Request::Get),
            (bytes(), any::<i64>()).prop_map(|(k, n)| Request::Add(k, n)),
            list().prop_map(Request::Check),
            list().prop_map(Request::Wait),
            Just(Request::Count),
            bytes().prop_map(Request::Delete),
            Just(Request::CancelWait),
            any::<u32>().prop_map(Request::Ping),
        ]
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_is_written_is_read_again(sent in prop::collection::vec(requests(), 0..5)) {
            let bytes = sent.iter().flat_map(Request::encode).collect::<Vec<u8>>();
            let mut from = bytes.as_slice();
            let mut got = Vec::new();
            while let Some(request) = Request::read(&mut from).unwrap() {
                got.push(request);
            }
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut from = bytes.as_slice();
            while let Ok(Some(_)) = Request::read(&mut from) {}
        }

        #[test]
        fn a_length_beyond_the_limit_is_refused(length in VALUE_LIMIT + 1.., code in 1..9_u8) {
            prop_assume!(code != 7);
            let bytes = [&[code][..], &length.to_ne_bytes(), &[0; 64]].concat();
            let refused = Request::read(bytes.as_slice()).unwrap_err();
            prop_assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }

    /// What PyTorch 2.15 sent to its own store, recorded.
    #[test]
    #[cfg(target_endian = "little")]
    fn the_bytes_are_those_of_torch() {
        let k = || b"/k".to_vec();
        let recorded: [(Request, &str); 8] = [
            (Request::Validate(MAGIC), "00cef7853c"),
            (Request::Ping(0x486), "0d86040000"),
            (
                Request::Set(k(), b"v".to_vec()),
                "0102000000000000002f6b010000000000000076",
            ),
            (Request::Get(k()), "0302000000000000002f6b"),
            (
                Request::Add(b"/n".to_vec(), 2),
                "0402000000000000002f6e0200000000000000",
            ),
            (
                Request::Check(vec![k()]),
                "05010000000000000002000000000000002f6b",
            ),
            (
                Request::Wait(vec![k()]),
                "06010000000000000002000000000000002f6b",
            ),
            (Request::Delete(k()), "0802000000000000002f6b"),
        ];
        for (request, bytes) in recorded {
            let hex: String = request
                .encode()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(hex, bytes, "{request:?}");
        }
    }
}
