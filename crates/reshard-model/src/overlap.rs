//! Whether any two of many boxes overlap, which may lie anywhere.
//!
//! The caller passes boxes as a function from (box, axis) to a half-open range, as to [`first_fault`](crate::first_fault).

use std::ops::Range;

/// Finds two boxes that share an element. `None` if all boxes are disjoint. An empty box overlaps nothing. Of several such pairs
/// it returns any.
///
/// It takes O(n log^k n), however the boxes lie, and never more than O(k n^2 log n); k counts the axes along which the boxes are
/// not all alike. For a grid it takes O(n log n) per axis. It calls `range` at most twice per box and axis, and does not recurse.
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
    let ids: Vec<usize> = (0..n)
        .filter(|&i| (0..ndim).all(|a| !range(i, a).is_empty()))
        .collect();
    if ids.len() < 2 {
        return None;
    }
    let axes = (0..ndim).filter_map(|axis| Axis::of(&ids, |i| range(i, axis)));
    let axes: Vec<Axis> = axes.collect();
    let (i, j) = Search::new(&axes, FEW).first(ids.len())?;
    let (i, j) = (ids[i], ids[j]);
    Some((i.min(j), i.max(j)))
}

/// Where boxes lie along an axis: between which of the distinct starts of all boxes. A box has the number of its own start, and
/// the number of starts before its end. These numbers compare as the ranges do.
struct Axis(Vec<Range<usize>>);

impl Axis {
    /// `None` if all boxes have the same range, which parts nothing.
    fn of(ids: &[usize], range: impl Fn(usize) -> Range<u64>) -> Option<Self> {
        let ranges: Vec<Range<u64>> = ids.iter().map(|&i| range(i)).collect();
        if ranges.iter().all(|r| *r == ranges[0]) {
            return None;
        }
        let mut starts: Vec<u64> = ranges.iter().map(|r| r.start).collect();
        starts.sort_unstable();
        starts.dedup();
        let before = |at: u64| starts.partition_point(|start| *start < at);
        Some(Self(
            ranges
                .iter()
                .map(|r| before(r.start)..before(r.end))
                .collect(),
        ))
    }

    fn meet(&self, i: usize, j: usize) -> bool {
        let (x, y) = (&self.0[i], &self.0[j]);
        x.start < y.end && y.start < x.end
    }
}

/// If one of two sets has no more boxes than this, all pairs are compared.
const FEW: usize = 8;

/// Looks for a pair of boxes that meet, by segment trees that exist only while they are walked (Zomorodian and Edelsbrunner, "Fast
/// software for box intersections"). Along one axis two ranges meet if one of them contains the start of the other.
struct Search<'a> {
    axes: &'a [Axis],
    few: usize,
    /// How many boxes were looked at, each time that they were.
    looked: u64,
}

/// Looks for a box of `outer` that meets one of `inner`. Along all axes before `axis` each of `outer` meets each of `inner`.
/// Along `axis` only the ranges of `outer` that contain the start of the range of `inner` count.
struct Task {
    axis: usize,
    /// In ascending order, as `inner`.
    outer: Vec<usize>,
    inner: Vec<usize>,
    /// Whether equal starts count. They need not if `outer` and `inner` are looked at the other way round, too.
    ties: bool,
}

impl<'a> Search<'a> {
    fn new(axes: &'a [Axis], few: usize) -> Self {
        let looked = 0;
        Self { axes, few, looked }
    }

    /// Of so many boxes. The tasks wait on a stack of their own, because boxes may be nested as deep as they like.
    fn first(&mut self, boxes: usize) -> Option<(usize, usize)> {
        let all: Vec<usize> = (0..boxes).collect();
        let mut waiting = vec![Task {
            axis: 0,
            outer: all.clone(),
            inner: all,
            ties: true,
        }];
        while let Some(task) = waiting.pop() {
            let Task { outer, inner, .. } = &task;
            if outer.is_empty() || inner.is_empty() {
                continue;
            }
            self.looked += (outer.len() + inner.len()) as u64;
            let found = if outer.len().min(inner.len()) <= self.few {
                self.by_pairs(&task)
            } else if self.axes.len() <= task.axis + 1 {
                self.by_last(&task)
            } else {
                self.part(task, &mut waiting);
                None
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn by_pairs(&mut self, task: &Task) -> Option<(usize, usize)> {
        let (axes, mut looked) = (self.axes.get(task.axis..).unwrap_or_default(), 0);
        let mut meet = |i: usize, j: usize| {
            looked += 1;
            i != j && axes.iter().all(|axis| axis.meet(i, j))
        };
        let found = task.outer.iter().find_map(|&i| {
            let j = task.inner.iter().copied().find(|&j| meet(i, j))?;
            Some((i, j))
        });
        self.looked += looked;
        found
    }

    /// Along the last axis the next start tells.
    fn by_last(&self, task: &Task) -> Option<(usize, usize)> {
        // Without axes each box is the one element, so any two overlap.
        let Some(Axis(ranges)) = self.axes.get(task.axis) else {
            let [i, j, ..] = task.outer[..] else {
                return None;
            };
            return Some((i, j));
        };
        let mut starts: Vec<(usize, usize)> =
            task.inner.iter().map(|&j| (ranges[j].start, j)).collect();
        starts.sort_unstable();
        task.outer.iter().find_map(|&i| {
            let range = task.counted(&ranges[i]);
            let next = starts.partition_point(|(start, _)| *start < range.start);
            // One of the two may be the box itself.
            let mut next = starts[next..].iter().take(2);
            let (_, j) = next.find(|(start, j)| *start < range.end && *j != i)?;
            Some((i, *j))
        })
    }

    /// Ranges that contain all starts meet all of them, so that the next axis decides. The others are looked at again with either
    /// half of the starts.
    fn part(&self, task: Task, waiting: &mut Vec<Task>) {
        let Axis(ranges) = &self.axes[task.axis];
        let mut starts: Vec<usize> = task.inner.iter().map(|&j| ranges[j].start).collect();
        let middle = starts.len() / 2;
        let (low, &mut median, high) = starts.select_nth_unstable(middle);
        let least = low.iter().copied().min().unwrap_or(median);
        let most = high.iter().copied().max().unwrap_or(median);
        // Starts below `middle` are one half. Neither half is empty, unless all starts are equal.
        let middle = if least < median {
            median
        } else {
            let above = high.iter().copied().filter(|&start| start > least);
            above.min().unwrap_or(median)
        };

        let (mut through, mut below, mut above) = (Vec::new(), Vec::new(), Vec::new());
        for &i in &task.outer {
            let range = task.counted(&ranges[i]);
            if range.contains(&least) && range.contains(&most) {
                through.push(i);
                continue;
            }
            if range.start < middle.min(range.end) && range.end > least {
                below.push(i);
            }
            if range.end > middle.max(range.start) && range.start <= most {
                above.push(i);
            }
        }
        let (axis, ties) = (task.axis, task.ties);
        if !below.is_empty() || !above.is_empty() {
            let inner = task.inner.iter().copied();
            let (low, high): (Vec<usize>, Vec<usize>) =
                inner.partition(|&j| ranges[j].start < middle);
            for (outer, inner) in [(above, high), (below, low)] {
                waiting.push(Task {
                    axis,
                    outer,
                    inner,
                    ties,
                });
            }
        }
        if through.is_empty() {
            return;
        }
        let axis = axis + 1;
        // Of one set, one of the two ways finds every pair.
        if through != task.inner {
            waiting.push(Task {
                axis,
                outer: task.inner.clone(),
                inner: through.clone(),
                ties: false,
            });
        }
        waiting.push(Task {
            axis,
            outer: through,
            inner: task.inner,
            ties: true,
        });
    }
}

impl Task {
    /// The starts that count, of those in a range.
    fn counted(&self, range: &Range<usize>) -> Range<usize> {
        range.start + usize::from(!self.ties)..range.end
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Region;
    use proptest::prelude::*;
    use std::cell::Cell;

    pub(crate) fn overlap(boxes: &[Region]) -> Option<(usize, usize)> {
        let ndim = boxes.first().map_or(0, Region::ndim);
        first_overlap(boxes.len(), ndim, |i, a| {
            boxes[i].offsets[a]..boxes[i].end(a)
        })
    }

    /// The same without comparing pairs of small sets, and how many boxes were looked at.
    fn by_trees(
        n: usize,
        ndim: usize,
        range: impl Fn(usize, usize) -> Range<u64>,
    ) -> (Option<(usize, usize)>, u64) {
        let ids: Vec<usize> = (0..n).collect();
        let axes = (0..ndim).filter_map(|axis| Axis::of(&ids, |i| range(i, axis)));
        let axes: Vec<Axis> = axes.collect();
        let mut search = Search::new(&axes, 0);
        (search.first(n), search.looked)
    }

    fn naive(boxes: &[Region]) -> bool {
        (0..boxes.len()).any(|i| (0..i).any(|j| boxes[i].intersect(&boxes[j]).is_some()))
    }

    fn agrees(boxes: &[Region]) -> Result<(), TestCaseError> {
        let ndim = boxes.first().map_or(0, Region::ndim);
        let full: Vec<&Region> = boxes.iter().filter(|b| !b.is_empty()).collect();
        let range = |i: usize, a: usize| full[i].offsets[a]..full[i].end(a);
        let by_trees = (full.len() > 1)
            .then(|| by_trees(full.len(), ndim, range).0)
            .flatten();
        let found = overlap(boxes);
        prop_assert_eq!(
            (found.is_some(), by_trees.is_some()),
            (naive(boxes), naive(boxes))
        );
        if let Some((i, j)) = found {
            prop_assert!(i < j && boxes[i].intersect(&boxes[j]).is_some());
        }
        if let Some((i, j)) = by_trees {
            prop_assert!(i != j && full[i].intersect(full[j]).is_some());
        }
        Ok(())
    }

    fn region(most: u64) -> impl Strategy<Value = Region> {
        (
            prop::collection::vec(0..most, 4),
            prop::collection::vec(0u64..4, 4),
        )
            .prop_map(|(o, l)| Region::new(o, l))
    }

    fn of_axes(region: &Region, ndim: usize) -> Region {
        Region::new(&region.offsets[..ndim], &region.lengths[..ndim])
    }

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        #[test]
        fn overlap_agrees_with_comparing_all_pairs(
            ndim in 1usize..5, few in prop::collection::vec(region(5), 0..12), far in prop::collection::vec(region(40), 0..40),
        ) {
            for boxes in [few, far] {
                let boxes: Vec<Region> = boxes.iter().map(|r| of_axes(r, ndim)).collect();
                agrees(&boxes)?;
            }
        }

        #[test]
        fn parts_of_a_whole_with_holes_and_perhaps_another_box_are_told_as_all_pairs_are(
            ndim in 1usize..5,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, any::<prop::sample::Index>()), 0..80),
            holes in 0usize..10, more in prop::option::of(region(12)),
        ) {
            let mut boxes = vec![Region::whole(&vec![12; ndim])];
            for (which, axis, at) in cuts {
                let (which, axis) = (which.index(boxes.len()), axis % ndim);
                let mut rest = boxes[which].clone();
                let length = rest.lengths[axis];
                if length > 1 {
                    let at = 1 + at.index(length as usize - 1) as u64;
                    boxes[which].lengths[axis] = at;
                    (rest.offsets[axis], rest.lengths[axis]) = (rest.offsets[axis] + at, length - at);
                    boxes.push(rest);
                }
            }
            boxes.truncate(boxes.len().saturating_sub(holes).max(1));
            prop_assert_eq!(overlap(&boxes), None);
            boxes.extend(more.map(|r| of_axes(&r, ndim)));
            agrees(&boxes)?;
        }
    }

    /// Of `n` boxes each is a row or a column of what those before it left.
    fn in_turns(n: usize) -> impl Fn(usize, usize) -> Range<u64> {
        let end = n as u64;
        move |i, axis| {
            let (at, is_column) = (i as u64 / 2, i % 2);
            match (axis == is_column, is_column) {
                (true, _) => at..at + 1,
                (false, 0) => at..end,
                (false, _) => at + 1..end,
            }
        }
    }

    #[test]
    fn rows_and_columns_that_are_cut_off_in_turns_need_no_deep_stack_and_little_time() {
        const BOXES: usize = 100_000;
        let work = || {
            let (range, asked) = (in_turns(BOXES), Cell::new(0u64));
            let asking = |i: usize, axis: usize| {
                asked.set(asked.get() + 1);
                range(i, axis)
            };
            assert_eq!(first_overlap(BOXES, 2, asking), None);
            let (found, looked) = by_trees(BOXES, 2, &range);
            assert_eq!(found, None);
            // The last one is found below all the others.
            let last = |i: usize, axis: usize| range(i.min(BOXES - 1), axis);
            assert_eq!(first_overlap(BOXES + 1, 2, last), Some((BOXES - 1, BOXES)));
            (asked.get() / BOXES as u64, looked / BOXES as u64)
        };
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let (asked, looked) = small.spawn(work).unwrap().join().unwrap();
        assert!(
            asked <= 4 && looked < 120,
            "{asked} questions and {looked} looks a box"
        );
    }

    #[test]
    fn rods_along_three_axes_that_no_plane_parts_take_little_time() {
        // Ends of the rods along one axis are a grid on the other two; none meets those along another axis.
        const SIDE: u64 = 80;
        let n = 3 * (SIDE * SIDE) as usize;
        let range = |i: usize, axis: usize| {
            let (i, along) = (i as u64 / 3, i % 3);
            let (u, v) = (2 * (i / SIDE), 2 * (i % SIDE));
            let [x, y, z] = match along {
                0 => [None, Some(u), Some(v)],
                1 => [Some(u), None, Some(v + 1)],
                _ => [Some(u + 1), Some(v + 1), None],
            };
            [x, y, z][axis].map_or(0..2 * SIDE, |at| at..at + 1)
        };
        assert_eq!(first_overlap(n, 3, range), None);
        let (found, looked) = by_trees(n, 3, range);
        assert!(
            found.is_none() && looked / (n as u64) < 90,
            "{} looks a rod",
            looked / n as u64
        );
        let twice = |i: usize, axis: usize| range(i % n, axis);
        let (i, j) = first_overlap(n + 1, 3, twice).unwrap();
        assert_eq!((i, j), (0, n));
    }

    #[test]
    fn all_kinds_of_equal_boxes_overlap() {
        for ndim in 0..3 {
            for n in [2, 100] {
                let (i, j) = first_overlap(n, ndim, |_, _| 3..5).unwrap();
                assert!(i < j && j < n);
            }
        }
        assert_eq!(first_overlap(1, 1, |_, _| 0..1), None);
        assert_eq!(first_overlap(100, 1, |_, _| 3..3), None);
    }

    #[test]
    fn a_grid_is_asked_and_looked_at_few_times_whichever_axis_parts_it() {
        for cuts in [[1, 10_000], [10_000, 1], [300, 300]] {
            let n = cuts[0] * cuts[1];
            let asked = Cell::new(0);
            let range = |i: usize, axis: usize| {
                asked.set(asked.get() + 1);
                let at = if axis == 0 { i / cuts[1] } else { i % cuts[1] } as u64;
                at * 10..at * 10 + 10
            };
            assert_eq!(first_overlap(n, 2, range), None);
            assert!(asked.get() <= 4 * n, "{} questions", asked.get());
            let looked = by_trees(n, 2, range).1;
            assert!(looked < 30 * n as u64, "{looked} looks");
        }
    }
}
