//! Do boxes make up another one, each element in one of them?
//!
//! The question is whether the sum of the boxes' indicator functions is that of the whole. Along an axis such a sum changes only
//! where a box begins, which adds the box's section by the other axes, or ends, which takes it away. So the boxes, with the whole
//! taken away from them, are sorted by these places, and at each of them the sections have to add up to nothing, which is the same
//! question with an axis less. At the first place where they don't, in lexicographic order, the sum is that of one element: there
//! is an overlap, or a hole begins. Sections that are alike add up at once; what is left at most doubles with each axis. So it takes
//! O(n log n) for boxes in any position, where sweeps need trees.

use reshard_model::Region;
use std::cmp::Ordering;

/// Why boxes do not make up the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// These two have an element in common.
    Twice(usize, usize),
    /// None has an element of this.
    Hole(Region),
}

/// The boxes lie in the whole, have its axes, and are not empty.
pub(super) fn fault(whole: &Region, boxes: &[&Region]) -> Option<Fault> {
    let axes: Vec<usize> = (0..whole.ndim())
        .filter(|&a| boxes.iter().any(|b| b.lengths[a] != whole.lengths[a]))
        .collect();
    match axes[..] {
        [] if boxes.is_empty() => Some(Fault::Hole(whole.clone())),
        [] => (boxes.len() > 1).then_some(Fault::Twice(0, 1)),
        [axis] => along(whole, boxes, axis),
        _ => by_sections(whole, boxes, &axes),
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
    if reach < whole.end(axis) {
        hole(reach, whole.end(axis))
    } else {
        None
    }
}

fn by_sections(whole: &Region, boxes: &[&Region], axes: &[usize]) -> Option<Fault> {
    let all: Vec<&Region> = boxes.iter().copied().chain([whole]).collect();
    let sections = (0..all.len()).map(|i| Section {
        of: i,
        times: if i < boxes.len() { 1 } else { -1 },
    });
    let mut place = Vec::with_capacity(axes.len());
    let sum = uneven(&all, sections.collect(), axes, &mut place)?;
    let mut element = whole.clone();
    for (&axis, &at) in axes.iter().zip(&place) {
        (element.offsets[axis], element.lengths[axis]) = (at, 1);
    }
    if sum < 0 {
        return Some(Fault::Hole(widened(element, whole, boxes, axes)));
    }
    let mut both = (0..boxes.len()).filter(|&i| boxes[i].contains(&element));
    Some(Fault::Twice(
        both.next().unwrap_or(0),
        both.next().unwrap_or(0),
    ))
}

/// A box, seen along the axes that are left, and how often it counts.
#[derive(Clone, Copy, Debug)]
struct Section {
    of: usize,
    times: i64,
}

/// The first place, in lexicographic order, at which sections do not add up to nothing, and their sum there.
fn uneven(
    all: &[&Region],
    sections: Vec<Section>,
    axes: &[usize],
    place: &mut Vec<u64>,
) -> Option<i64> {
    // Without axes left there is one element, and the sum says how often it is covered beyond what is right.
    let Some((&axis, axes)) = axes.split_first() else {
        let sum = sections.iter().map(|s| s.times).sum();
        return (sum != 0).then_some(sum);
    };

    // A box adds its section where it begins, and takes it away where it ends.
    let ends = |s: Section| {
        [
            (all[s.of].offsets[axis], s),
            (
                all[s.of].end(axis),
                Section {
                    times: -s.times,
                    ..s
                },
            ),
        ]
    };
    let mut changes: Vec<(u64, Section)> = sections.into_iter().flat_map(ends).collect();

    // Sorting by place and then by section makes equal sections neighbours, so they add up before the next axis.
    let of = |s: Section| {
        axes.iter()
            .map(move |&a| (all[s.of].offsets[a], all[s.of].lengths[a]))
    };
    changes.sort_unstable_by(|(x, a), (y, b)| x.cmp(y).then_with(|| of(*a).cmp(of(*b))));

    // `place` holds the path to the fault, so a place comes off again only if nothing was found there.
    for here in changes.chunk_by(|(x, _), (y, _)| x == y) {
        let alike = here.chunk_by(|(_, a), (_, b)| of(*a).eq(of(*b)));
        let added = alike.map(|s| Section {
            of: s[0].1.of,
            times: s.iter().map(|(_, s)| s.times).sum(),
        });
        place.push(here[0].0);
        let found = uneven(all, added.filter(|s| s.times != 0).collect(), axes, place);
        if found.is_some() {
            return found;
        }
        place.pop();
    }
    None
}

/// Lets a hole grow until it meets a box, last axis first.
fn widened(mut hole: Region, whole: &Region, boxes: &[&Region], axes: &[usize]) -> Region {
    for &axis in axes.iter().rev() {
        hole.lengths[axis] = whole.end(axis) - hole.offsets[axis];
        let met = boxes
            .iter()
            .filter(|b| b.intersect(&hole).is_some())
            .map(|b| b.offsets[axis])
            .min();
        if let Some(end) = met {
            hole.lengths[axis] = end.saturating_sub(hole.offsets[axis]);
        }
    }
    hole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::time::{ClockId, clock_gettime};

    /// Boxes that came from cutting, some of them moved, left out or taken twice.
    fn boxes() -> impl Strategy<Value = (Region, Vec<Region>)> {
        let shape = prop::collection::vec(1u64..5, 1..6);
        let cuts = prop::collection::vec((any::<prop::sample::Index>(), 0usize..5, 1u64..4), 0..12);
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
                    (high.offsets[axis], high.lengths[axis]) =
                        (high.offsets[axis] + at, length - at);
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
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_fault_means_each_element_once((whole, boxes) in boxes()) {
            let refs: Vec<&Region> = boxes.iter().collect();
            let once = elements(&whole).all(|e| boxes.iter().filter(|b| b.contains(&e)).count() == 1);
            let axes: Vec<usize> = (0..whole.ndim()).collect();
            for found in [fault(&whole, &refs), by_sections(&whole, &refs, &axes)] {
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

    #[test]
    fn boxes_that_no_plane_parts_take_no_longer_than_others() {
        // A pinwheel in two axes, whose arms are rods and whose eye goes through all of them.
        let n = if reshard_model::testkit::is_thorough() {
            40
        } else {
            20
        };
        let mut boxes = vec![Region::new([1, 1, 0, 0, 0], [1, 1, n, n, n])];
        for arm in [
            ([0, 0], [2, 1]),
            ([2, 0], [1, 2]),
            ([1, 2], [2, 1]),
            ([0, 1], [1, 2]),
        ] {
            let ([x, y], [w, h]) = arm;
            let rod = |i: u64| Region::new([x, y, i / n / n, i / n % n, i % n], [w, h, 1, 1, 1]);
            boxes.extend((0..n * n * n).map(rod));
        }
        let whole = Region::whole(&[3, 3, n, n, n]);
        let mut refs: Vec<&Region> = boxes.iter().collect();
        let cpu = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
        let start = cpu();
        assert_eq!(fault(&whole, &refs), None);
        let lost = refs.swap_remove(refs.len() / 2);
        assert_eq!(fault(&whole, &refs), Some(Fault::Hole(lost.clone())));
        refs.extend([lost, lost]);
        assert!(matches!(fault(&whole, &refs), Some(Fault::Twice(a, b)) if refs[a] == refs[b]));
        // 32,001 boxes, or 256,001 at night: seconds, where each of them beside each would be many minutes.
        assert!(cpu() - start < 120, "{} s", cpu() - start);
    }
}
