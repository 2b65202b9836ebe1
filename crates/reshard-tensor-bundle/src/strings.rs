//! The elements of a string tensor: their lengths, a checksum of these, and their bytes.

use crate::{crc::mask, varint};
use std::ops::Range;

/// The order of bytes in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Little,
    Big,
}

/// The checksum of a length counts it as a word, not as it is stored.
fn add_length(crc: u32, length: u64, order: Order) -> u32 {
    match (u32::try_from(length), order) {
        (Ok(n), Order::Little) => crc32c::crc32c_append(crc, &n.to_le_bytes()),
        (Ok(n), Order::Big) => crc32c::crc32c_append(crc, &n.to_be_bytes()),
        (Err(_), Order::Little) => crc32c::crc32c_append(crc, &length.to_le_bytes()),
        (Err(_), Order::Big) => crc32c::crc32c_append(crc, &length.to_be_bytes()),
    }
}

/// Strings as they are stored, and the checksum of their entry.
pub(crate) fn encode<'a>(strings: impl Iterator<Item = &'a [u8]> + Clone) -> (Vec<u8>, u32) {
    let (mut out, mut crc) = (Vec::new(), 0);
    for string in strings.clone() {
        varint::put(&mut out, string.len() as u64);
        crc = add_length(crc, string.len() as u64, Order::Little);
    }
    let of_lengths = mask(crc).to_le_bytes();
    crc = crc32c::crc32c_append(crc, &of_lengths);
    out.extend(of_lengths);
    for string in strings {
        crc = crc32c::crc32c_append(crc, string);
        out.extend(string);
    }
    (out, crc)
}

/// Stored strings, taken apart.
#[derive(Debug)]
pub(crate) struct Strings {
    /// Where each of them lies.
    pub(crate) places: Vec<Range<usize>>,
    /// The checksum of the entry.
    pub(crate) crc: u32,
}

/// Takes stored strings apart. The error says what is wrong with the bytes.
pub(crate) fn decode(stored: &[u8], elements: u64, order: Order) -> Result<Strings, String> {
    // Each length takes a byte, so memory is bounded by what is stored.
    if elements > stored.len() as u64 {
        return Err(format!(
            "{} bytes can't have the lengths of {elements} strings",
            stored.len()
        ));
    }
    let (mut rest, mut lengths, mut crc) = (stored, Vec::new(), 0);
    for _ in 0..elements {
        let length =
            varint::take(&mut rest).ok_or("the lengths of strings are cut or too large")?;
        crc = add_length(crc, length, order);
        lengths.push(length);
    }
    let (of_lengths, bytes) = rest
        .split_first_chunk()
        .ok_or("the checksum of lengths is cut")?;
    let sum = match order {
        Order::Little => u32::from_le_bytes(*of_lengths),
        Order::Big => u32::from_be_bytes(*of_lengths),
    };
    if sum != mask(crc) {
        return Err("the lengths of strings are damaged: their checksum is another one".into());
    }
    crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, of_lengths), bytes);
    let mut at = stored.len() - bytes.len();
    let mut places = Vec::with_capacity(lengths.len());
    for length in lengths {
        let end = usize::try_from(length).ok().and_then(|n| at.checked_add(n));
        let end = end
            .filter(|end| *end <= stored.len())
            .ok_or("the strings are longer than what is stored")?;
        places.push(at..end);
        at = end;
    }
    match stored.len() - at {
        0 => Ok(Strings { places, crc }),
        more => Err(format!("there are {more} bytes after the strings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_strings_are_four_bytes() {
        let (stored, _) = encode([].into_iter());
        assert_eq!(stored, 0xa282_ead8u32.to_le_bytes());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn strings_are_read_as_they_were_written(strings: Vec<Vec<u8>>, at: prop::sample::Index, flip in 1u8..) {
            let (mut stored, crc) = encode(strings.iter().map(|s| &**s));
            let n = strings.len() as u64;
            let found = decode(&stored, n, Order::Little).unwrap();
            prop_assert_eq!(found.crc, crc);
            let found: Vec<&[u8]> = found.places.into_iter().map(|p| &stored[p]).collect();
            prop_assert_eq!(found, strings.iter().map(|s| &**s).collect::<Vec<_>>());
            // Any flipped byte is noticed, here or by the checksum.
            let at = at.index(stored.len());
            stored[at] ^= flip;
            prop_assert!(decode(&stored, n, Order::Little).map_or(true, |found| found.crc != crc));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(stored: Vec<u8>, elements in 0u64..9, many: u64) {
            for order in [Order::Little, Order::Big] {
                drop(decode(&stored, elements, order));
                drop(decode(&stored, many, order));
            }
        }
    }
}
