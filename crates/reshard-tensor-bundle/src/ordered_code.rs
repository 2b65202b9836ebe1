//! OrderedCode: numbers and text as bytes that sort like them. The keys of slices in an index are made of it.

use reshard_model::Region;

/// The key of a slice: of a tensor's name, and of start and length on each axis as the entry of the tensor gives them. An axis that the entry
/// gives as a whole has start 0 and length -1.
pub(crate) fn slice_key(name: &[u8], extents: impl IntoIterator<Item = (i64, i64)>) -> Vec<u8> {
    let extents: Vec<(i64, i64)> = extents.into_iter().collect();
    let mut out = Vec::with_capacity(name.len() + 8 + 4 * extents.len());
    unsigned(&mut out, 0);
    text(&mut out, name);
    unsigned(&mut out, extents.len() as u64);
    for (start, length) in extents {
        signed(&mut out, start);
        signed(&mut out, length);
    }
    out
}

/// The extents of a region, all of them explicit. `None` if a number does not fit.
pub(crate) fn extents(region: &Region) -> Option<Vec<(i64, i64)>> {
    let axes = region.offsets.iter().zip(&region.lengths);
    axes.map(|(start, length)| Some((i64::try_from(*start).ok()?, i64::try_from(*length).ok()?)))
        .collect()
}

fn unsigned(out: &mut Vec<u8>, n: u64) {
    let bytes = n.to_be_bytes();
    let zeros = n.leading_zeros() as usize / 8;
    out.push((8 - zeros) as u8);
    out.extend(&bytes[zeros..]);
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            0 => out.extend([0, 0xff]),
            0xff => out.extend([0xff, 0]),
            byte => out.push(byte),
        }
    }
    out.extend([0, 1]);
}

fn signed(out: &mut Vec<u8>, n: i64) {
    let bits = 64 - if n < 0 { !n } else { n }.leading_zeros();
    let length = bits as usize / 7 + 1;
    if length == 1 {
        out.push(0x80 ^ n as u8);
        return;
    }
    // Big-endian with the sign extended to ten bytes; the header is as many one bits as there are bytes.
    let mut wide = [if n < 0 { 0xff } else { 0 }; 10];
    wide[2..].copy_from_slice(&n.to_be_bytes());
    let header = (!0u16) << (16 - length);
    let [high, low] = header.to_be_bytes();
    let from = out.len();
    out.extend(&wide[10 - length..]);
    out[from] ^= high;
    out[from + 1] ^= low;
}

/// The name in the key of a slice. `None` if the bytes are no such key. The rest is not looked at: a key is found by making it, not by
/// reading it.
pub(crate) fn name_of(key: &[u8]) -> Option<Vec<u8>> {
    let (0, mut rest) = (*key.first()?, key.get(1..)?) else {
        return None;
    };
    let mut out = Vec::new();
    loop {
        let (byte, tail) = match rest {
            [0, 1, ..] => return Some(out),
            [0, 0xff, tail @ ..] => (0, tail),
            [0xff, 0, tail @ ..] => (0xff, tail),
            [0 | 0xff, ..] | [] => return None,
            [byte, tail @ ..] => (*byte, tail),
        };
        out.push(byte);
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_coded_as_in_the_reference() {
        let coded = |n| {
            let mut out = Vec::new();
            signed(&mut out, n);
            out
        };
        assert_eq!(coded(0), [0x80]);
        assert_eq!(coded(5), [0x85]);
        assert_eq!(coded(63), [0xbf]);
        assert_eq!(coded(64), [0xc0, 0x40]);
        assert_eq!(coded(-1), [0x7f]);
        assert_eq!(coded(-64), [0x40]);
        assert_eq!(coded(0x42_4242), [0xf0, 0x42, 0x42, 0x42]);
        assert_eq!(coded(-0x800), [0x38, 0]);
        assert_eq!(coded(i64::MAX).len(), 10);
        assert_eq!(coded(i64::MIN).len(), 10);
        let key = slice_key(b"a/w", [(0, 3), (0, 4)]);
        assert_eq!(key, *b"\0a/w\0\x01\x01\x02\x80\x83\x80\x84");
        assert_eq!(name_of(&key).as_deref(), Some(&b"a/w"[..]));
    }

    #[test]
    fn numbers_sort_as_their_codes_do() {
        let mut all: Vec<i64> = vec![i64::MIN, i64::MAX, 0];
        for bits in 0..63 {
            all.extend([1i64 << bits, -(1i64 << bits), (1i64 << bits) - 1]);
        }
        all.sort_unstable();
        all.dedup();
        let coded = all.iter().map(|n| {
            let mut out = Vec::new();
            signed(&mut out, *n);
            out
        });
        assert!(coded.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_name_with_any_bytes_is_found_in_its_key() {
        for name in [&b""[..], b"\0", b"\xff\0\xff", b"a\x01\0b"] {
            assert_eq!(name_of(&slice_key(name, [])).as_deref(), Some(name));
        }
        for bad in [&b""[..], b"a", b"\0", b"\0a", b"\0a\0", b"\0\xff\x01"] {
            assert_eq!(name_of(bad), None);
        }
    }
}
