//! Boxes and their elements in row-major order.

use reshard_model::{Dims, Region};
use std::ops::Range;

/// For each axis, how many elements one index of it has.
pub(crate) fn strides(lengths: &[u64]) -> Dims {
    let mut strides = Dims::splat(1, lengths.len());
    for a in (1..lengths.len()).rev() {
        strides[a - 1] = strides[a].saturating_mul(lengths[a]);
    }
    strides
}

/// Elements of a box, counted row-major, as boxes that are each contiguous: with `n` axes at most `2 n - 1`.
pub(crate) fn boxes(of: &Region, elements: Range<u64>) -> impl Iterator<Item = Region> {
    let strides = strides(&of.lengths);
    let Range { start: mut at, end } = elements;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let mut out = of.clone();
        // The first axis of which an index begins here and is wanted whole.
        let Some(axis) = strides.iter().position(|&s| s > 0 && at % s == 0 && end - at >= s) else {
            at = end; // a scalar
            return Some(out);
        };
        for a in 0..=axis {
            let index = at / strides[a] % of.lengths[a];
            out.offsets[a] += index;
            out.lengths[a] = if a < axis { 1 } else { (of.lengths[a] - index).min((end - at) / strides[a]) };
        }
        at += out.lengths[axis] * strides[axis];
        Some(out)
    })
}

/// Where the elements of `part`, which lies in `whole`, are in a row-major list of those of `whole`: runs, in order.
pub(crate) fn runs(whole: &Region, part: &Region) -> impl Iterator<Item = Range<usize>> {
    let part = part.within(whole);
    let strides = strides(&whole.lengths);
    // The last axis that is not whole; what it has of each index before it lies together.
    let cut = (0..part.ndim()).rev().find(|&a| part.lengths[a] != whole.lengths[a]).unwrap_or(0);
    let run: u64 = part.lengths.get(cut..).unwrap_or_default().iter().product();
    let volume = part.volume().unwrap_or(0);
    (0..volume.checked_div(run).unwrap_or(0)).map(move |mut n| {
        let mut start: u64 = (cut..part.ndim()).map(|a| part.offsets[a] * strides[a]).sum();
        for a in (0..cut).rev() {
            start += (part.offsets[a] + n % part.lengths[a]) * strides[a];
            n /= part.lengths[a];
        }
        start as usize..(start + run) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shapes() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(1u64..5, 0..4)
    }

    proptest! {
        #[test]
        fn boxes_of_a_range_are_its_elements_in_order(lengths in shapes(), from in 0u64..70, n in 0u64..70) {
            let of = Region::new(vec![3; lengths.len()], lengths.as_slice());
            let volume = of.volume().unwrap();
            let range = from.min(volume)..(from + n).min(volume);
            let all: Vec<Region> = of.clone().blocks(1).collect();
            let parts: Vec<Region> = boxes(&of, range.clone()).collect();
            let elements: Vec<Region> = parts.iter().flat_map(|b| b.clone().blocks(1)).collect();
            prop_assert_eq!(&elements, &all[range.start as usize..range.end as usize]);
            prop_assert!(parts.len() <= (2 * lengths.len()).saturating_sub(1).max(1));
        }

        #[test]
        fn runs_of_a_part_are_its_elements_in_order(axes in prop::collection::vec((1u64..5, 0u64..5, 0u64..5), 0..4)) {
            let whole = Region::new(vec![2; axes.len()], axes.iter().map(|a| a.0).collect::<Vec<_>>());
            let mut part = whole.clone();
            for (a, &(length, from, n)) in axes.iter().enumerate() {
                part.offsets[a] += from.min(length);
                part.lengths[a] = n.min(length - from.min(length));
            }
            let all: Vec<Region> = whole.clone().blocks(1).collect();
            let found: Vec<usize> = runs(&whole, &part).flatten().collect();
            let wanted: Vec<usize> = (0..all.len()).filter(|&i| part.contains(&all[i])).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
