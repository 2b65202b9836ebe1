//! LEB128 numbers.

/// Takes a number off the front of `bytes`. `None` if it ends early or does not fit 64 bits.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut out = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if i == 9 && part > 1 {
            return None;
        }
        out |= part << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = bytes.get(i + 1..)?;
            return Some(out);
        }
    }
    None
}

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn a_number_is_read_as_it_was_written(n: u64, small in 0u64..300) {
            for n in [n, small, n >> 33] {
                let mut out = Vec::new();
                put(&mut out, n);
                out.push(7);
                let mut rest = &*out;
                prop_assert_eq!(take(&mut rest), Some(n));
                prop_assert_eq!(rest, [7]);
            }
        }
    }

    #[test]
    fn numbers_that_end_early_or_are_too_large_are_none() {
        for bad in [&[][..], &[0x80], &[0xff; 9], &[0xff; 11]] {
            assert_eq!(take(&mut { bad }), None);
        }
        let mut most = vec![0xff; 9];
        most.push(1);
        assert_eq!(take(&mut &*most), Some(u64::MAX));
        most[9] = 2;
        assert_eq!(take(&mut &*most), None);
    }
}
