//! Geometry of many boxes at once: do any two overlap, do they leave a hole.
//!
//! Boxes are given as a function from (box, axis) to its half-open range, so that columns of a million chunks need no copy.

use crate::Region;
use std::ops::Range;

/// Two boxes that share an element, or `None` when all are disjoint. Empty boxes overlap nothing.
///
/// Splits the set again and again at planes that no box crosses, which takes O(n log n) for every set that came from cutting
/// a tensor; what can't be split (pinwheels) is compared by a sweep.
///
/// ```
/// use reshard_model::first_overlap;
/// let rows = [0..3, 2..4, 4..6];
/// assert_eq!(first_overlap(rows.len(), 1, |i, _axis| rows[i].clone()), Some((0, 1)));
/// ```
pub fn first_overlap(
    n: usize,
    ndim: usize,
    range: impl Fn(usize, usize) -> Range<u64>,
) -> Option<(usize, usize)> {
    let mut ids: Vec<usize> = (0..n).filter(|&i| (0..ndim).all(|a| !range(i, a).is_empty())).collect();
    overlap_in(&mut ids, ndim, 0, 0, &range)
}

/// `failed`: how many axes in a row could not split this set.
fn overlap_in(
    ids: &mut [usize],
    ndim: usize,
    axis: usize,
    failed: usize,
    range: &impl Fn(usize, usize) -> Range<u64>,
) -> Option<(usize, usize)> {
    if ids.len() < 2 {
        return None;
    }
    if ndim == 0 {
        return Some((ids[0], ids[1]));
    }
    ids.sort_unstable_by_key(|&i| (range(i, axis).start, i));
    if failed == ndim {
        return sweep(ids, ndim, axis, range);
    }
    let next = (axis + 1) % ndim;
    let (mut from, mut reach) = (0, range(ids[0], axis).end);
    for at in 1..=ids.len() {
        let split = at == ids.len() || range(ids[at], axis).start >= reach;
        if split {
            let group = &mut ids[from..at];
            let failed = if group.len() == at && at == ids.len() { failed + 1 } else { 0 };
            if let Some(pair) = overlap_in(&mut ids[from..at], ndim, next, failed, range) {
                return Some(pair);
            }
            from = at;
        }
        if at < ids.len() {
            reach = if split { range(ids[at], axis).end } else { reach.max(range(ids[at], axis).end) };
        }
    }
    None
}

/// Boxes sorted by their start on `axis`; keeps those that the sweep line still cuts.
fn sweep(
    ids: &[usize],
    ndim: usize,
    axis: usize,
    range: &impl Fn(usize, usize) -> Range<u64>,
) -> Option<(usize, usize)> {
    let mut active: Vec<usize> = Vec::new();
    for &i in ids {
        let start = range(i, axis).start;
        active.retain(|&j| range(j, axis).end > start);
        let meets = |j: usize| {
            (0..ndim).all(|a| {
                let (x, y) = (range(i, a), range(j, a));
                x.start < y.end && y.start < x.end
            })
        };
        if let Some(&j) = active.iter().find(|&&j| meets(j)) {
            return Some((j.min(i), j.max(i)));
        }
        active.push(i);
    }
    None
}

/// A part of `whole` that none of `boxes` covers, or `None` when it is covered. Boxes may overlap and reach outside.
///
/// ```
/// use reshard_model::{Region, first_hole};
/// let whole = Region::whole(&[4, 2]);
/// let top = Region::new([0, 0], [3, 2]);
/// assert_eq!(first_hole(&whole, &[top]), Some(Region::new([3, 0], [1, 2])));
/// ```
pub fn first_hole(whole: &Region, boxes: &[Region]) -> Option<Region> {
    let inside: Vec<Region> = boxes.iter().filter_map(|b| b.intersect(whole)).collect();
    hole_in(whole, &inside.iter().collect::<Vec<_>>(), 0)
}

/// Cuts `whole` along `axis` at every edge of a box, and looks for a hole in each slab with the boxes that reach it.
fn hole_in(whole: &Region, boxes: &[&Region], axis: usize) -> Option<Region> {
    if whole.is_empty() {
        return None;
    }
    if boxes.is_empty() {
        return Some(whole.clone());
    }
    if axis == whole.ndim() {
        return None;
    }
    let mut edges: Vec<u64> = boxes.iter().flat_map(|b| [b.offsets[axis], b.end(axis)]).collect();
    edges.extend([whole.offsets[axis], whole.end(axis)]);
    edges.sort_unstable();
    edges.dedup();
    let mut sorted = boxes.to_vec();
    sorted.sort_by_key(|b| b.offsets[axis]);
    let (mut active, mut next): (Vec<&Region>, usize) = (Vec::new(), 0);
    for pair in edges.windows(2) {
        let (lo, hi) = (pair[0], pair[1]);
        active.retain(|b| b.end(axis) > lo);
        while next < sorted.len() && sorted[next].offsets[axis] <= lo {
            active.push(sorted[next]);
            next += 1;
        }
        let mut slab = whole.clone();
        (slab.offsets[axis], slab.lengths[axis]) = (lo, hi - lo);
        if let Some(hole) = hole_in(&slab, &active, axis + 1) {
            return Some(hole);
        }
    }
    None
}

#[cfg(test)]
fn grid(shape: &[u64], cuts: &[u64]) -> Vec<Region> {
    let mut out = vec![Region::default()];
    for (&extent, &n) in shape.iter().zip(cuts) {
        out = out
            .iter()
            .flat_map(|r| {
                (0..n).map(move |i| {
                    let (lo, hi) = (extent * i / n, extent * (i + 1) / n);
                    let mut r = r.clone();
                    r.offsets.push(lo);
                    r.lengths.push(hi - lo);
                    r
                })
            })
            .collect();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn overlap(boxes: &[Region]) -> Option<(usize, usize)> {
        let ndim = boxes.first().map_or(0, Region::ndim);
        first_overlap(boxes.len(), ndim, |i, a| boxes[i].offsets[a]..boxes[i].end(a))
    }

    fn naive(boxes: &[Region]) -> bool {
        (0..boxes.len()).any(|i| (0..i).any(|j| boxes[i].intersect(&boxes[j]).is_some()))
    }

    fn region(ndim: usize) -> impl Strategy<Value = Region> {
        (prop::collection::vec(0u64..5, ndim), prop::collection::vec(0u64..4, ndim))
            .prop_map(|(o, l)| Region::new(o, l))
    }

    proptest! {
        #[test]
        fn overlap_agrees_with_comparing_all_pairs(ndim in 1usize..4, seed in prop::collection::vec(region(3), 0..12)) {
            let boxes: Vec<Region> = seed.iter().map(|r| Region::new(&r.offsets[..ndim], &r.lengths[..ndim])).collect();
            let found = overlap(&boxes);
            prop_assert_eq!(found.is_some(), naive(&boxes));
            if let Some((i, j)) = found { prop_assert!(boxes[i].intersect(&boxes[j]).is_some()); }
        }

        #[test]
        fn a_hole_is_empty_of_boxes_and_no_hole_means_covered(boxes in prop::collection::vec(region(2), 0..10)) {
            let whole = Region::new([0, 0], [5, 5]);
            let covered = |x: u64, y: u64| boxes.iter().any(|b| b.contains(&Region::new([x, y], [1, 1])) && !b.is_empty());
            match first_hole(&whole, &boxes) {
                Some(h) => prop_assert!(!h.is_empty() && boxes.iter().all(|b| b.intersect(&h).is_none())),
                None => for x in 0..5 { for y in 0..5 { prop_assert!(covered(x, y)); } },
            }
        }
    }

    #[test]
    fn a_pinwheel_is_disjoint_and_a_fifth_box_in_its_eye_too() {
        let mut boxes = vec![
            Region::new([0, 0], [2, 1]),
            Region::new([0, 1], [1, 2]),
            Region::new([1, 2], [2, 1]),
            Region::new([2, 0], [1, 2]),
        ];
        assert_eq!(overlap(&boxes), None);
        assert_eq!(first_hole(&Region::whole(&[3, 3]), &boxes), Some(Region::new([1, 1], [1, 1])));
        boxes.push(Region::new([1, 1], [1, 1]));
        assert_eq!(overlap(&boxes), None);
        assert_eq!(first_hole(&Region::whole(&[3, 3]), &boxes), None);
        boxes.push(Region::new([1, 1], [1, 1]));
        assert!(overlap(&boxes).is_some());
    }

    #[test]
    fn scalars_overlap_each_other() {
        assert_eq!(overlap(&[Region::default(), Region::default()]), Some((0, 1)));
        assert_eq!(first_hole(&Region::default(), &[Region::default()]), None);
        assert_eq!(first_hole(&Region::default(), &[]), Some(Region::default()));
    }

    #[test]
    fn a_large_grid_is_quick() {
        let boxes = grid(&[3000, 3000], &[300, 300]);
        assert_eq!(boxes.len(), 90_000);
        assert_eq!(overlap(&boxes), None);
    }

    #[test]
    fn boxes_beside_each_other_are_asked_few_times_whichever_axis_parts_them() {
        for cuts in [[1, 10_000], [10_000, 1]] {
            let (boxes, asked) = (grid(&[10_000, 10_000], &cuts), std::cell::Cell::new(0));
            let range = |i: usize, a: usize| {
                asked.set(asked.get() + 1);
                boxes[i].offsets[a]..boxes[i].end(a)
            };
            assert_eq!(first_overlap(boxes.len(), 2, range), None);
            assert!(asked.get() < 1_000_000, "{} questions", asked.get());
        }
    }
}
