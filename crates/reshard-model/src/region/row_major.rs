//! The elements of a box, counted in row-major order.

use super::Region;
use crate::Dims;
use std::ops::Range;

impl Region {
    /// For each axis, how many elements one index of it has; `u64::MAX` where 64 bits are too few.
    ///
    /// ```
    /// use reshard_model::Region;
    /// assert_eq!(Region::whole(&[2, 3, 4]).strides(), [12, 4, 1].into());
    /// ```
    pub fn strides(&self) -> Dims {
        let mut strides = Dims::splat(1, self.ndim());
        for a in (1..self.ndim()).rev() {
            strides[a - 1] = strides[a].saturating_mul(self.lengths[a]);
        }
        strides
    }

    /// The elements `range` of the box, counted row-major from its first one, as boxes in order. Each box lies in one run of them.
    /// With `n` axes there are at most `2 * n - 1`. What the range has behind the last element is left out.
    ///
    /// ```
    /// use reshard_model::Region;
    /// let boxes: Vec<String> = Region::whole(&[3, 4]).boxes(2..9).map(|b| b.to_string()).collect();
    /// assert_eq!(boxes, ["[0:1, 2:4]", "[1:2, 0:4]", "[2:3, 0:1]"]);
    /// ```
    pub fn boxes(&self, range: Range<u64>) -> impl Iterator<Item = Self> {
        let strides = self.strides();
        let (mut at, end) = (
            range.start,
            range.end.min(self.volume().unwrap_or(u64::MAX)),
        );
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let mut out = self.clone();
            // The first axis of which an index begins here and is wanted whole. A stride that is cut off at `MAX` tells nothing.
            let whole = |&s: &u64| s < u64::MAX && at % s == 0 && end - at >= s;
            let Some(axis) = strides.iter().position(whole) else {
                at = end; // a scalar
                return Some(out);
            };
            for a in 0..=axis {
                let index = at / strides[a] % self.lengths[a];
                out.offsets[a] += index;
                out.lengths[a] = if a < axis {
                    1
                } else {
                    (self.lengths[a] - index).min((end - at) / strides[a])
                };
            }
            at += out.lengths[axis] * strides[axis];
            Some(out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        #[test]
        fn boxes_of_a_range_are_its_elements_in_order_and_few(
            lengths in prop::collection::vec(0u64..5, 0..5), from in 0u64..700, n in 0u64..700,
        ) {
            let of = Region::new(vec![3; lengths.len()], lengths.as_slice());
            let volume = of.volume().unwrap();
            // A range within the box, and one that may go past it.
            let start = from % (volume + 1);
            for range in [start..start + n % (volume - start + 1), start..start + n] {
                let all: Vec<Region> = of.clone().blocks(1).collect();
                let parts: Vec<Region> = of.boxes(range.clone()).collect();
                let elements: Vec<Region> = parts.iter().flat_map(|b| b.clone().blocks(1)).collect();
                let end = range.end.min(volume).max(range.start);
                prop_assert_eq!(&elements, &all[range.start as usize..end as usize]);
                prop_assert!(parts.len() <= (2 * lengths.len()).saturating_sub(1).max(1));
            }
        }
    }

    #[test]
    fn what_is_too_large_to_count_has_strides_and_boxes() {
        let of = Region::whole(&[4, u64::MAX, u64::MAX]);
        assert_eq!(of.strides(), [u64::MAX, u64::MAX, 1].into());
        let boxes: Vec<String> = of.boxes(5..7).map(|b| b.to_string()).collect();
        assert_eq!(boxes, ["[0:1, 0:1, 5:7]"]);
        let most: Vec<Region> = of.boxes(0..u64::MAX).collect();
        assert_eq!(most, [Region::new([0, 0, 0], [1, 1, u64::MAX])]);
    }
}
