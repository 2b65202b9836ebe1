//! Do boxes make up another one, each element in one of them?
//!
//! The question is whether the sum of the boxes' indicator functions is that of the whole. Such a function is known by its
//! mixed difference, which is not zero at the corners only: each box adds 1 at its lower corner, takes 1 away where one
//! coordinate is an upper one, adds 1 where two are, and so on. So the corners are sorted, and at each place their signs have
//! to add up to what the whole has there. At the first place where they don't, in lexicographic order, the difference of the
//! sums is the difference of the functions: there is an overlap, or a hole begins. That takes O(n log n) for boxes in any
//! position, where sweeps need trees.

use reshard_model::{Region, first_overlap};
use std::cmp::Ordering;

/// Why boxes do not make up the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// These two have an element in common.
    Twice(usize, usize),
    /// None has an element of this.
    Hole(Region),
    /// So many elements are in none.
    Short(u128),
}

/// With more corners than that, and so much that no cut of a tensor needs it, a sweep has to do.
const MANY_CORNERS: usize = 1 << 24;

/// The boxes lie in the whole, have its axes, and are not empty.
pub(super) fn fault(whole: &Region, boxes: &[&Region]) -> Option<Fault> {
    let axes: Vec<usize> =
        (0..whole.ndim()).filter(|&a| boxes.iter().any(|b| b.lengths[a] != whole.lengths[a])).collect();
    match axes[..] {
        [] if boxes.is_empty() => return Some(Fault::Hole(whole.clone())),
        [] => return (boxes.len() > 1).then_some(Fault::Twice(0, 1)),
        [axis] => return along(whole, boxes, axis),
        _ => {}
    }
    let corners =
        u32::try_from(axes.len()).ok().and_then(|n| (boxes.len() + 1).checked_mul(1usize.checked_shl(n)?));
    match corners {
        Some(n) if n <= MANY_CORNERS || axes.len() <= 2 => by_corners(whole, boxes, &axes),
        _ => by_sweep(whole, boxes, &axes),
    }
}

/// Boxes that are cut along one axis: each begins where the one before ends.
fn along(whole: &Region, boxes: &[&Region], axis: usize) -> Option<Fault> {
    let mut order: Vec<usize> = (0..boxes.len()).collect();
    order.sort_unstable_by_key(|&i| boxes[i].offsets[axis]);
    let hole = |from: u64, to: u64| {
        let mut hole = whole.clone();
        (hole.offsets[axis], hole.lengths[axis]) = (from, to - from);
        Some(Fault::Hole(hole))
    };
    let (mut reach, mut last) = (whole.offsets[axis], 0);
    for i in order {
        match boxes[i].offsets[axis].cmp(&reach) {
            Ordering::Less => return Some(Fault::Twice(last, i)),
            Ordering::Equal => (reach, last) = (boxes[i].end(axis), i),
            Ordering::Greater => return hole(reach, boxes[i].offsets[axis]),
        }
    }
    if reach < whole.end(axis) { hole(reach, whole.end(axis)) } else { None }
}

fn by_corners(whole: &Region, boxes: &[&Region], axes: &[usize]) -> Option<Fault> {
    // A corner is a box, the last one being the whole, and for each axis whether its upper end is meant.
    let shift = axes.len() as u32;
    let of = |corner: u64| boxes.get((corner >> shift) as usize).copied().unwrap_or(whole);
    let at = |corner: u64, n: usize| {
        let (of, axis) = (of(corner), axes[n]);
        if corner >> n & 1 == 1 { of.end(axis) } else { of.offsets[axis] }
    };
    let place = |corner: u64| (0..axes.len()).map(move |n| at(corner, n));
    let sign = |corner: u64| {
        let upper = (corner & ((1 << shift) - 1)).count_ones();
        let sign = if upper.is_multiple_of(2) { 1i64 } else { -1 };
        if (corner >> shift) as usize == boxes.len() { -sign } else { sign }
    };
    let mut corners: Vec<u64> = (0..(boxes.len() as u64 + 1) << shift).collect();
    corners.sort_unstable_by(|&a, &b| place(a).cmp(place(b)));
    let uneven = corners.chunk_by(|&a, &b| place(a).eq(place(b))).find_map(|same| {
        let sum: i64 = same.iter().map(|&c| sign(c)).sum();
        (sum != 0).then(|| (place(same[0]).collect::<Vec<u64>>(), sum))
    });
    let (place, sum) = uneven?;
    let mut element = whole.clone();
    for (&axis, &at) in axes.iter().zip(&place) {
        (element.offsets[axis], element.lengths[axis]) = (at, 1);
    }
    if sum < 0 {
        return Some(Fault::Hole(widened(element, whole, boxes, axes)));
    }
    let mut both = (0..boxes.len()).filter(|&i| boxes[i].contains(&element));
    Some(Fault::Twice(both.next().unwrap_or(0), both.next().unwrap_or(0)))
}

/// Lets a hole grow until it meets a box, last axis first.
fn widened(mut hole: Region, whole: &Region, boxes: &[&Region], axes: &[usize]) -> Region {
    for &axis in axes.iter().rev() {
        hole.lengths[axis] = whole.end(axis) - hole.offsets[axis];
        let met = boxes.iter().filter(|b| b.intersect(&hole).is_some()).map(|b| b.offsets[axis]).min();
        if let Some(end) = met {
            hole.lengths[axis] = end.saturating_sub(hole.offsets[axis]);
        }
    }
    hole
}

fn by_sweep(whole: &Region, boxes: &[&Region], axes: &[usize]) -> Option<Fault> {
    let range = |i: usize, n: usize| boxes[i].offsets[axes[n]]..boxes[i].end(axes[n]);
    if let Some((a, b)) = first_overlap(boxes.len(), axes.len(), range) {
        return Some(Fault::Twice(a, b));
    }
    let volume = |r: &Region| u128::from(r.volume().unwrap_or(u64::MAX));
    let missing = volume(whole).saturating_sub(boxes.iter().map(|b| volume(b)).sum());
    (missing > 0).then_some(Fault::Short(missing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Boxes that came from cutting, some of them moved, left out or taken twice.
    fn boxes() -> impl Strategy<Value = (Region, Vec<Region>)> {
        let shape = prop::collection::vec(1u64..5, 1..4);
        let cuts = prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, 1u64..4), 0..6);
        let spoil = prop::option::of((any::<prop::sample::Index>(), 0u8..3));
        (shape, cuts, spoil).prop_map(|(shape, cuts, spoil)| {
            let whole = Region::new(vec![7; shape.len()], shape);
            let mut boxes = vec![whole.clone()];
            for (which, axis, at) in cuts {
                let (which, axis) = (which.index(boxes.len()), axis % whole.ndim());
                let length = boxes[which].lengths[axis];
                let low = &mut boxes[which];
                if at < length {
                    let mut high = low.clone();
                    low.lengths[axis] = at;
                    (high.offsets[axis], high.lengths[axis]) = (high.offsets[axis] + at, length - at);
                    boxes.push(high);
                }
            }
            if let Some((which, how)) = spoil {
                let which = which.index(boxes.len());
                match how {
                    0 => drop(boxes.swap_remove(which)),
                    1 => boxes.push(boxes[which].clone()),
                    _ => boxes[which] = whole.clone(),
                }
            }
            (whole, boxes)
        })
    }

    fn elements(r: &Region) -> impl Iterator<Item = Region> {
        r.clone().blocks(1)
    }

    proptest! {
        #[test]
        fn no_fault_means_each_element_once((whole, boxes) in boxes()) {
            let refs: Vec<&Region> = boxes.iter().collect();
            let once = elements(&whole).all(|e| boxes.iter().filter(|b| b.contains(&e)).count() == 1);
            let axes: Vec<usize> = (0..whole.ndim()).collect();
            for found in [fault(&whole, &refs), by_corners(&whole, &refs, &axes), by_sweep(&whole, &refs, &axes)] {
                prop_assert_eq!(found.is_none(), once);
                match found {
                    None => {}
                    Some(Fault::Twice(a, b)) => {
                        prop_assert!(a != b && boxes[a].intersect(&boxes[b]).is_some());
                    }
                    Some(Fault::Hole(hole)) => {
                        prop_assert!(!hole.is_empty() && whole.contains(&hole));
                        prop_assert!(boxes.iter().all(|b| b.intersect(&hole).is_none()));
                    }
                    Some(Fault::Short(n)) => {
                        let bare = elements(&whole).filter(|e| !boxes.iter().any(|b| b.contains(e))).count();
                        prop_assert_eq!(bare as u128, n);
                    }
                }
            }
        }
    }

    #[test]
    fn a_pinwheel_makes_up_its_square_only_with_its_eye() {
        let arms = [
            Region::new([0, 0], [2, 1]),
            Region::new([0, 1], [1, 2]),
            Region::new([1, 2], [2, 1]),
            Region::new([2, 0], [1, 2]),
            Region::new([1, 1], [1, 1]),
        ];
        let whole = Region::whole(&[3, 3]);
        let all: Vec<&Region> = arms.iter().collect();
        assert_eq!(fault(&whole, &all), None);
        assert_eq!(fault(&whole, &all[..4]), Some(Fault::Hole(arms[4].clone())));
    }

    #[test]
    fn a_hole_is_told_as_large_as_it_is() {
        let (top, bottom) = (Region::new([0, 0], [3, 9]), Region::new([7, 0], [2, 9]));
        let hole = fault(&Region::whole(&[9, 9]), &[&bottom, &top]);
        assert_eq!(hole, Some(Fault::Hole(Region::new([3, 0], [4, 9]))));
    }
}
