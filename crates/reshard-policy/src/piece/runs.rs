//! Parts of a box in a row-major list of its elements.

use reshard_model::{Layout, Region, Segments};
use std::ops::Range;

/// Where the elements of `part`, which lies in `whole`, are in a row-major list of those of `whole`: runs, in order.
pub(crate) fn runs(whole: &Region, part: &Region) -> impl Iterator<Item = Range<usize>> {
    let part = part.within(whole);
    // Nobody has a list that is too long for a layout.
    let layouts = Layout::contiguous(1, &whole.lengths).zip(Layout::contiguous(1, &part.lengths));
    let runs = layouts.map(|(list, own)| Segments::row_major(&list.narrow(&part), &own));
    runs.into_iter()
        .flatten()
        .map(|(from, _, n)| from as usize..(from + n) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
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
