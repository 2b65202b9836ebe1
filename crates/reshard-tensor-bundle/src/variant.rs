//! The elements of a variant tensor. What is in them only TensorFlow's C++ knows, so they are kept as they are.

use crate::{crc::mask, strings::Order, varint};

/// Checks stored elements, of which each has its length before it and a checksum behind it. Returns the checksum of the entry.
pub(crate) fn check(stored: &[u8], elements: u64, order: Order) -> Result<u32, String> {
    if elements > stored.len() as u64 {
        return Err(format!(
            "{} bytes can't have {elements} variants",
            stored.len()
        ));
    }
    let (mut rest, mut crc) = (stored, 0);
    for _ in 0..elements {
        let length =
            varint::take(&mut rest).ok_or("the length of a variant is cut or too large")?;
        let word = match order {
            Order::Little => length.to_le_bytes(),
            Order::Big => length.to_be_bytes(),
        };
        crc = crc32c::crc32c_append(crc, &word);
        let bytes = usize::try_from(length)
            .ok()
            .and_then(|n| rest.split_at_checked(n));
        let (bytes, tail) = bytes.ok_or("a variant is longer than what is stored")?;
        crc = crc32c::crc32c_append(crc, bytes);
        let (sum, tail) = tail
            .split_first_chunk()
            .ok_or("the checksum of a variant is cut")?;
        let found = match order {
            Order::Little => u32::from_le_bytes(*sum),
            Order::Big => u32::from_be_bytes(*sum),
        };
        if found != mask(crc) {
            return Err("a variant is damaged: its checksum is another one".into());
        }
        crc = crc32c::crc32c_append(crc, sum);
        rest = tail;
    }
    match rest.len() {
        0 => Ok(crc),
        more => Err(format!("there are {more} bytes after the variants")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(elements: &[Vec<u8>]) -> (Vec<u8>, u32) {
        let (mut out, mut crc) = (Vec::new(), 0);
        for element in elements {
            varint::put(&mut out, element.len() as u64);
            crc = crc32c::crc32c_append(crc, &(element.len() as u64).to_le_bytes());
            crc = crc32c::crc32c_append(crc, element);
            let sum = mask(crc).to_le_bytes();
            crc = crc32c::crc32c_append(crc, &sum);
            out.extend(element);
            out.extend(sum);
        }
        (out, crc)
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn a_flipped_byte_of_variants_is_noticed(elements: Vec<Vec<u8>>, at: prop::sample::Index, flip in 1u8..) {
            let (mut stored, crc) = encode(&elements);
            let n = elements.len() as u64;
            prop_assert_eq!(check(&stored, n, Order::Little), Ok(crc));
            if !stored.is_empty() {
                let at = at.index(stored.len());
                stored[at] ^= flip;
                prop_assert!(check(&stored, n, Order::Little).is_err());
            }
        }

        #[test]
        fn no_bytes_make_the_check_panic(stored: Vec<u8>, elements in 0u64..9) {
            drop(check(&stored, elements, Order::Big));
        }
    }
}
