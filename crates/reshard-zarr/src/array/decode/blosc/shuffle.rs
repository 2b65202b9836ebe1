//! Orders in which bytes of similar value are neighbours.

/// Puts the elements of a block back in order: bytes of an element, the block as it is stored, and the block. Both have the same
/// length. Bytes after the last whole element stay where they are.
pub(super) type Unshuffle = fn(usize, &[u8], &mut [u8]);

/// All first bytes of elements, then all second bytes, and so on.
pub(in super::super) fn bytes(element: usize, stored: &[u8], out: &mut [u8]) {
    match element {
        2 => of::<2>(stored, out),
        4 => of::<4>(stored, out),
        8 => of::<8>(stored, out),
        16 => of::<16>(stored, out),
        _ => {
            let count = stored.len() / element;
            let tail = count * element;
            for (n, out) in out.chunks_exact_mut(element).enumerate() {
                for (k, out) in out.iter_mut().enumerate() {
                    *out = stored[k * count + n];
                }
            }
            out[tail..].copy_from_slice(&stored[tail..]);
        }
    }
}

/// The same for elements of `N` bytes. The compiler makes it fast.
fn of<const N: usize>(stored: &[u8], out: &mut [u8]) {
    let count = stored.len() / N;
    let planes: [&[u8]; N] = std::array::from_fn(|k| &stored[k * count..][..count]);
    let (elements, tail) = out.as_chunks_mut::<N>();
    for (n, element) in elements[..count].iter_mut().enumerate() {
        *element = std::array::from_fn(|k| planes[k][n]);
    }
    tail.copy_from_slice(&stored[count * N..]);
}

/// Bytes of each row of bits that are put in order together.
const COLUMNS: usize = 512;

/// All first bits of elements, then all second bits, and so on. The count of elements is a multiple of 8.
pub(super) fn bits(element: usize, stored: &[u8], out: &mut [u8]) {
    let row = stored.len() / element / 8;
    let tail = row * 8 * element;
    // Some columns of all rows at a time: they stay in the cache, and take little memory, however large the block is.
    let mut planes = vec![0; element * 8 * row.min(COLUMNS)];
    for begin in (0..row).step_by(COLUMNS) {
        let count = COLUMNS.min(row - begin);
        let planes = &mut planes[..element * 8 * count];
        for (k, plane) in planes.chunks_exact_mut(8 * count).enumerate() {
            let rows: [&[u8]; 8] =
                std::array::from_fn(|bit| &stored[(8 * k + bit) * row + begin..][..count]);
            for (n, eight) in plane.as_chunks_mut().0.iter_mut().enumerate() {
                let bits = u64::from_le_bytes(std::array::from_fn(|bit| rows[bit][n]));
                *eight = transposed(bits).to_le_bytes();
            }
        }
        let elements = 8 * begin * element..8 * (begin + count) * element;
        bytes(element, planes, &mut out[elements]);
    }
    out[tail..].copy_from_slice(&stored[tail..]);
}

/// Bit `i` of byte `k` becomes bit `k` of byte `i`: three rounds that swap squares of 1, 2 and 4 bits.
fn transposed(bits: u64) -> u64 {
    let swap = |bits: u64, by: u32, mask: u64| {
        let change = (bits ^ (bits >> by)) & mask;
        bits ^ change ^ (change << by)
    };
    let bits = swap(bits, 7, 0x00aa_00aa_00aa_00aa);
    let bits = swap(bits, 14, 0x0000_cccc_0000_cccc);
    swap(bits, 28, 0x0000_0000_f0f0_f0f0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_square_of_bits_is_transposed() {
        for (k, i) in (0..64).map(|n| (n / 8, n % 8)) {
            assert_eq!(transposed(1 << (8 * k + i)), 1 << (8 * i + k));
        }
    }
}
