//! Whether many boxes make up a whole, or leave a hole or overlap.
//!
//! The caller passes boxes as a function from (box, axis) to a half-open range, so columns of a million chunks need no copy.

use crate::Region;
use std::{
    hash::{BuildHasher as _, RandomState},
    ops::Range,
};

/// Why boxes do not make up a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoxFault {
    /// No box covers this part.
    Hole(Region),
    /// Two boxes share an element.
    Overlap(usize, usize),
}

/// Checks that boxes make up a whole. `None` if each element of the whole lies in exactly one box. Otherwise the first part
/// that no box covers, or more than one. The edges of the boxes cut the whole into cells; "first" means their row-major order.
/// Parts of boxes outside the whole are ignored.
///
/// It takes O(n log n) per axis, however the boxes lie. It compares how often elements are covered by random fingerprints,
/// which are wrong once in 2^100 times.
///
/// ```
/// use reshard_model::{BoxFault, Region, first_fault};
/// let rows = [0..3, 3..4, 3..6];
/// let fault = |n, whole| first_fault(&Region::whole(&[whole]), n, |i, _axis| rows[i].clone());
/// assert_eq!(fault(2, 4), None);
/// assert_eq!(fault(3, 6), Some(BoxFault::Overlap(1, 2)));
/// assert_eq!(fault(1, 6), Some(BoxFault::Hole(Region::new([3], [3]))));
/// ```
pub fn first_fault(
    whole: &Region,
    n: usize,
    range: impl Fn(usize, usize) -> Range<u64>,
) -> Option<BoxFault> {
    if whole.is_empty() {
        return None;
    }
    let part = |i: usize, a: usize| {
        let r = range(i, a);
        r.start.max(whole.offsets[a])..r.end.min(whole.end(a))
    };
    let ndim = whole.ndim();
    let ids: Vec<usize> = (0..n)
        .filter(|&i| (0..ndim).all(|a| !part(i, a).is_empty()))
        .collect();
    loop {
        if let Ok(fault) = fault_by(&mut Lengths::of(ndim), whole, &ids, &part) {
            return fault;
        }
    }
}

/// Fails when two edges have the same key, which other keys mend.
fn fault_by(
    lengths: &mut Lengths,
    whole: &Region,
    ids: &[usize],
    part: &impl Fn(usize, usize) -> Range<u64>,
) -> Result<Option<BoxFault>, SameKey> {
    let of_whole = |a: usize| whole.offsets[a]..whole.end(a);
    // What all boxes fill parts nothing.
    let axes = (0..whole.ndim()).filter(|&a| ids.iter().any(|&i| part(i, a) != of_whole(a)));
    let axes: Vec<usize> = axes.collect();
    let mut of_all = |bounds: &dyn Fn(usize) -> Range<u64>| {
        axes.iter().fold(Print::ONE, |print, &a| {
            print.times(lengths.at(a, bounds(a)))
        })
    };
    let mut boxes: Vec<(usize, Print)> =
        ids.iter().map(|&i| (i, of_all(&|a| part(i, a)))).collect();
    let mut want = [of_all(&of_whole)];
    let mut cell = whole.clone();
    for &axis in &axes {
        if boxes.is_empty() {
            break;
        }
        // In each slab between two edges the cross-sections of the boxes in it have to add up to that of the whole.
        divide(
            &mut want,
            |print| print,
            |_| lengths.at(axis, of_whole(axis)),
        )?;
        divide(
            &mut boxes,
            |(_, print)| print,
            |(i, _)| lengths.at(axis, part(*i, axis)),
        )?;
        let edges = |of: fn(Range<u64>) -> u64| {
            let mut edges: Vec<(u64, usize)> = boxes
                .iter()
                .enumerate()
                .map(|(at, (i, _))| (of(part(*i, axis)), at))
                .collect();
            edges.sort_unstable();
            edges
        };
        let (starts, ends) = (edges(|r| r.start), edges(|r| r.end));
        let (mut begun, mut ended, mut sum) = (0, 0, Print::default());
        let Range { start: mut lo, end } = of_whole(axis);
        let slab = loop {
            if lo == end {
                return Ok(None);
            }
            while let Some(&(_, at)) = starts.get(begun).filter(|(start, _)| *start <= lo) {
                (begun, sum) = (begun + 1, sum.plus(boxes[at].1));
            }
            while let Some(&(_, at)) = ends.get(ended).filter(|(end, _)| *end <= lo) {
                (ended, sum) = (ended + 1, sum.minus(boxes[at].1));
            }
            let next = [starts.get(begun), ends.get(ended)]
                .into_iter()
                .flatten()
                .map(|(edge, _)| *edge);
            let hi = next.min().unwrap_or(end);
            if sum != want[0] {
                break lo..hi;
            }
            lo = hi;
        };
        boxes.retain(|(i, _)| part(*i, axis).start <= slab.start && slab.end <= part(*i, axis).end);
        (cell.offsets[axis], cell.lengths[axis]) = (slab.start, slab.end - slab.start);
    }
    Ok(match *boxes {
        [] => Some(BoxFault::Hole(cell)),
        [_] => None,
        [(i, _), (j, _), ..] => Some(BoxFault::Overlap(i, j)),
    })
}

/// Two numbers below 2^61 - 1, which is prime: a box's is the product over its axes of differences of random numbers, one for each
/// edge. So that of a box is the sum of those of its parts, and sums of different coverings differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Print([u64; 2]);

const PRIME: u64 = (1 << 61) - 1;

impl Print {
    const ONE: Self = Self([1, 1]);

    fn with(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self([f(self.0[0], other.0[0]), f(self.0[1], other.0[1])])
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, |a, b| reduced(a + b))
    }

    fn minus(self, other: Self) -> Self {
        self.with(other, |a, b| reduced(a + PRIME - b))
    }

    fn times(self, other: Self) -> Self {
        self.with(other, |a, b| {
            let product = u128::from(a) * u128::from(b);
            reduced((product as u64 & PRIME) + (product >> 61) as u64)
        })
    }

    /// By Fermat: `self` to the power of two less than the prime.
    fn inverse(self) -> Self {
        (0..61).rev().fold(Self::ONE, |power, bit| {
            let squared = power.times(power);
            if (PRIME - 2) >> bit & 1 == 1 {
                squared.times(self)
            } else {
                squared
            }
        })
    }
}

/// Of a number below twice the prime.
fn reduced(number: u64) -> u64 {
    if number < PRIME {
        number
    } else {
        number - PRIME
    }
}

/// Two edges of a box have one key, so that nothing can be divided by their difference.
#[derive(Debug)]
struct SameKey;

/// Divides prints, with one inverse for all of them: that of the product of all that they are divided by.
fn divide<T>(
    all: &mut [T],
    print: impl Fn(&mut T) -> &mut Print,
    by: impl FnMut(&T) -> Print,
) -> Result<(), SameKey> {
    let by: Vec<Print> = all.iter().map(by).collect();
    if by.iter().any(|print| print.0.contains(&0)) {
        return Err(SameKey);
    }
    let (mut before, mut product) = (Vec::with_capacity(by.len()), Print::ONE);
    for print in &by {
        before.push(product);
        product = product.times(*print);
    }
    let mut inverse = product.inverse();
    for ((one, before), by) in all.iter_mut().zip(before).zip(by).rev() {
        let print = print(one);
        *print = print.times(inverse).times(before);
        inverse = inverse.times(by);
    }
    Ok(())
}

/// Differences of the random numbers of edges. Nobody can know these beforehand, and make boxes that deceive them.
struct Lengths {
    keys: [RandomState; 2],
    /// The last box of each axis: boxes that follow each other mostly differ in one.
    last: Vec<Last>,
}

/// A range along an axis, with the number of its end: the next box mostly begins there.
#[derive(Clone, Default)]
struct Last {
    range: Range<u64>,
    end: Print,
    length: Print,
}

impl Lengths {
    fn of(ndim: usize) -> Self {
        Self {
            keys: Default::default(),
            last: vec![Last::default(); ndim],
        }
    }

    fn at(&mut self, axis: usize, range: Range<u64>) -> Print {
        let Self { keys, last } = self;
        let last = &mut last[axis];
        if last.range != range {
            let key = |at: u64| Print([0, 1].map(|k: usize| keys[k].hash_one((axis, at)) % PRIME));
            // The default is no box's, and has no number.
            let follows = !last.range.is_empty() && last.range.end == range.start;
            let start = if follows { last.end } else { key(range.start) };
            let end = key(range.end);
            let length = end.minus(start);
            *last = Last { range, end, length };
        }
        last.length
    }
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
    use crate::overlap::tests::overlap;
    use proptest::prelude::*;

    fn region(ndim: usize) -> impl Strategy<Value = Region> {
        (
            prop::collection::vec(0u64..5, ndim),
            prop::collection::vec(0u64..4, ndim),
        )
            .prop_map(|(o, l)| Region::new(o, l))
    }

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        #[test]
        fn a_fault_is_where_an_element_is_not_in_one_box(
            (shape, boxes) in (1usize..4).prop_flat_map(|ndim| (
                prop::collection::vec(0u64..5, ndim),
                prop::collection::vec(region(ndim), 0..10),
            ))
        ) {
            let whole = Region::whole(&shape);
            let in_boxes = |at: &Region| boxes.iter().filter(|b| b.contains(at)).count();
            let ones = vec![1; shape.len()];
            let mut cells = vec![Vec::new()];
            for &n in &shape {
                cells = cells.iter().flat_map(|c: &Vec<u64>| (0..n).map(|x| [&c[..], &[x]].concat())).collect();
            }
            match fault(&whole, &boxes) {
                None => for c in cells { prop_assert_eq!(in_boxes(&Region::new(c, &ones[..])), 1); },
                Some(BoxFault::Overlap(i, j)) => {
                    let both = boxes[i].intersect(&boxes[j]).and_then(|r| r.intersect(&whole));
                    prop_assert!(i < j && both.is_some_and(|r| !r.is_empty()));
                }
                Some(BoxFault::Hole(h)) => {
                    prop_assert!(!h.is_empty() && whole.contains(&h));
                    prop_assert!(boxes.iter().all(|b| b.intersect(&h).is_none_or(|r| r.is_empty())));
                }
            }
        }

        #[test]
        fn a_cut_whole_has_no_fault_and_one_without_a_box_has_that_hole(
            cuts in prop::collection::vec(1u64..5, 1..5), leave in any::<prop::sample::Index>(), twice: bool,
        ) {
            let shape: Vec<u64> = cuts.iter().map(|n| n * 3 + 1).collect();
            let (whole, mut boxes) = (Region::whole(&shape), grid(&shape, &cuts));
            prop_assert_eq!(fault(&whole, &boxes), None);
            let at = leave.index(boxes.len());
            let one = boxes[at].clone();
            if twice {
                boxes.push(one);
                prop_assert_eq!(fault(&whole, &boxes), Some(BoxFault::Overlap(at, boxes.len() - 1)));
            } else {
                boxes.remove(at);
                let hole = fault(&whole, &boxes);
                prop_assert!(matches!(&hole, Some(BoxFault::Hole(h)) if one.contains(h)), "{:?}", hole);
            }
        }
    }

    fn fault(whole: &Region, boxes: &[Region]) -> Option<BoxFault> {
        first_fault(whole, boxes.len(), |i, a| {
            boxes[i].offsets[a]..boxes[i].end(a)
        })
    }

    #[test]
    fn a_hole_between_boxes_of_many_axes_is_found_at_once() {
        // Each box has half of what those before it left; the last element is nobody's.
        for ndim in [24, 64] {
            let boxes: Vec<Region> = (0..ndim)
                .map(|axis| {
                    let mut r = Region::whole(&vec![2; ndim]);
                    (0..=axis)
                        .for_each(|a| (r.offsets[a], r.lengths[a]) = (u64::from(a < axis), 1));
                    r
                })
                .collect();
            let whole = Region::whole(&vec![2; ndim]);
            let last = Region::new(vec![1; ndim], vec![1; ndim]);
            assert_eq!(fault(&whole, &boxes), Some(BoxFault::Hole(last.clone())));
            assert_eq!(fault(&whole, &[boxes, vec![last]].concat()), None);
        }
    }

    #[test]
    fn a_spiral_is_looked_at_in_one_pass() {
        // Each box is a side of what is left, so that no plane parts two sets of them.
        let (n, mut boxes) = (20_000u64, Vec::new());
        let (mut x, mut y) = (0..n, 0..n);
        for side in 0..n {
            let (a, b) = match side % 4 {
                0 => (x.start..x.start + 1, y.start..y.end - 1),
                1 => (x.start..x.end - 1, y.end - 1..y.end),
                2 => (x.end - 1..x.end, y.start + 1..y.end),
                _ => (x.start + 1..x.end, y.start..y.start + 1),
            };
            boxes.push(Region::new(
                [a.start, b.start],
                [a.end - a.start, b.end - b.start],
            ));
            if side % 4 == 3 {
                (x, y) = (x.start + 1..x.end - 1, y.start + 1..y.end - 1);
            }
        }
        boxes.push(Region::new(
            [x.start, y.start],
            [x.end - x.start, y.end - y.start],
        ));
        let asked = std::cell::Cell::new(0u64);
        let range = |i: usize, a: usize| {
            asked.set(asked.get() + 1);
            boxes[i].offsets[a]..boxes[i].end(a)
        };
        assert_eq!(
            first_fault(&Region::whole(&[n, n]), boxes.len(), range),
            None
        );
        let each = asked.get() / boxes.len() as u64;
        assert!(boxes.len() > 10_000 && each < 50, "{each} questions a box");
    }

    #[test]
    fn a_pinwheel_is_disjoint_and_a_fifth_box_in_its_eye_too() {
        let mut boxes = vec![
            Region::new([0, 0], [2, 1]),
            Region::new([0, 1], [1, 2]),
            Region::new([1, 2], [2, 1]),
            Region::new([2, 0], [1, 2]),
        ];
        let whole = Region::whole(&[3, 3]);
        assert_eq!(overlap(&boxes), None);
        assert_eq!(
            fault(&whole, &boxes),
            Some(BoxFault::Hole(Region::new([1, 1], [1, 1])))
        );
        boxes.push(Region::new([1, 1], [1, 1]));
        assert_eq!(overlap(&boxes), None);
        assert_eq!(fault(&whole, &boxes), None);
        boxes.push(Region::new([1, 1], [1, 1]));
        assert!(overlap(&boxes).is_some());
        assert_eq!(fault(&whole, &boxes), Some(BoxFault::Overlap(4, 5)));
    }

    #[test]
    fn scalars_overlap_each_other() {
        assert_eq!(
            overlap(&[Region::default(), Region::default()]),
            Some((0, 1))
        );
        let scalar = Region::default;
        assert_eq!(
            fault(&scalar(), &[scalar(), scalar()]),
            Some(BoxFault::Overlap(0, 1))
        );
        assert_eq!(fault(&scalar(), &[scalar()]), None);
        assert_eq!(fault(&scalar(), &[]), Some(BoxFault::Hole(scalar())));
    }

    #[test]
    fn numbers_of_the_field_have_one_form() {
        assert_eq!(
            [0, PRIME - 1, PRIME, 2 * PRIME - 1].map(reduced),
            [0, PRIME - 1, 0, PRIME - 1]
        );
        for number in [1, 2, PRIME - 1] {
            let print = Print([number; 2]);
            assert_eq!(print.times(print.inverse()).0, [1, 1], "{number}");
        }
    }
}
