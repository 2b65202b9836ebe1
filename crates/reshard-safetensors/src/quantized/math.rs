//! What quantised elements stand for.

/// The numbers of 4 bits: two of the exponent, one of the mantissa, and the sign.
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Multiplies rows of numbers with the scales of their blocks. Both begin at the given row and column of the whole tensor, in elements.
pub(super) fn scale_blocks(
    numbers: &mut [f32],
    columns: usize,
    at: (u64, u64),
    scales: &[f32],
    scale_columns: usize,
    block: (u64, u64),
) {
    let (first_row, first_column) = (at.0 / block.0, at.1 / block.1);
    for (row, numbers) in (at.0..).zip(numbers.chunks_mut(columns.max(1))) {
        let from = (row / block.0 - first_row) as usize * scale_columns;
        let scales = scales.get(from..).unwrap_or_default();
        for (column, number) in (at.1..).zip(numbers) {
            let scale = scales.get((column / block.1 - first_column) as usize);
            *number *= scale.copied().unwrap_or(1.0);
        }
    }
}

/// The numbers `from..to` of a row of groups, each of `group` bytes, of which `bytes` are the first ones and `scales` the exponents.
pub(super) fn e2m1(bytes: &[u8], scales: &[u8], group: usize, from: usize, to: usize) -> Vec<f32> {
    let number = |n: usize| {
        let byte = bytes.get(n / 2).copied().unwrap_or(0);
        let bits = if n.is_multiple_of(2) {
            byte & 15
        } else {
            byte >> 4
        };
        let exponent = scales.get(n / 2 / group.max(1)).copied().unwrap_or(127);
        let scale = f64::from(2).powi(i32::from(exponent) - 127);
        (f64::from(E2M1[usize::from(bits)]) * scale) as f32
    };
    (from..to).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_half_of_a_byte_comes_first_and_groups_have_their_scales() {
        let bytes = [0x21, 0xf7];
        assert_eq!(e2m1(&bytes, &[127, 128], 1, 0, 4), [0.5, 1.0, 12.0, -12.0]);
        assert_eq!(e2m1(&bytes, &[126], 2, 1, 3), [0.5, 3.0]);
    }

    #[test]
    fn each_element_has_the_scale_of_its_block() {
        // Rows 1..4 and columns 1..4 of a tensor with blocks of 2 x 2.
        let mut numbers = [1.0; 9];
        scale_blocks(&mut numbers, 3, (1, 1), &[1.0, 2.0, 3.0, 4.0], 2, (2, 2));
        assert_eq!(numbers, [1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 3.0, 4.0, 4.0]);
    }
}
