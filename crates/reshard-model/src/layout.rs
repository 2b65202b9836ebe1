//! Where the elements of a tensor lie in a run of bytes, and how to walk two such arrangements at once.

use crate::{Dims, Region};
use smallvec::SmallVec;

mod flat_view;

pub use flat_view::FlatView;

/// Shape, strides and start of a tensor in a buffer or a stored record. Shape, strides and start count elements.
///
/// In every layout the offset of the last byte fits `i64`, so arithmetic on it never overflows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    item: u64,
    start: u64,
    shape: Dims,
    strides: Dims,
}

impl Layout {
    /// A row-major layout from element 0. `item` is the size of an element in bytes. `None` if the total size does not fit 63
    /// bits.
    pub fn contiguous(item: u64, shape: &[u64]) -> Option<Self> {
        let mut strides = Dims::splat(1, shape.len());
        for a in (1..shape.len()).rev() {
            match strides[a].checked_mul(shape[a].max(1)) {
                Some(stride) => strides[a - 1] = stride,
                // Without elements nothing is strided over, however long the other axes are.
                None if shape.contains(&0) => strides = Dims::zeros(shape.len()),
                None => return None,
            }
        }
        Self::new(item, 0, shape.into(), strides)
    }

    /// A layout with any strides. `None` if the offset of its last byte does not fit 63 bits, or shape and strides differ in
    /// length.
    pub fn new(item: u64, start: u64, shape: Dims, strides: Dims) -> Option<Self> {
        let out = Self {
            item,
            start,
            shape,
            strides,
        };
        (out.shape.len() == out.strides.len()).then_some(())?;
        let elements = out.shape.volume()?;
        let end = if elements == 0 {
            out.start
        } else {
            out.last()?.checked_add(1)?
        };
        let bytes = end.max(elements).checked_mul(item.max(1))?;
        (bytes <= i64::MAX as u64).then_some(out)
    }

    /// Index of the last element, in elements from the buffer's start.
    fn last(&self) -> Option<u64> {
        self.shape
            .iter()
            .zip(&self.strides)
            .try_fold(self.start, |at, (&n, &s)| {
                at.checked_add(n.saturating_sub(1).checked_mul(s)?)
            })
    }

    /// Bytes per element.
    pub fn item(&self) -> u64 {
        self.item
    }

    /// Elements per axis.
    pub fn shape(&self) -> &Dims {
        &self.shape
    }

    /// The distance between neighbours along each axis, in elements.
    pub fn strides(&self) -> &Dims {
        &self.strides
    }

    /// First element, in elements from the buffer's start.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.volume().unwrap_or(0)
    }

    /// Bytes of all elements, without gaps between them.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.item
    }

    /// The range of bytes from the first element to the end of the last one. A buffer must contain it.
    pub fn hull(&self) -> std::ops::Range<u64> {
        let first = self.start * self.item;
        if self.elements() == 0 {
            first..first
        } else {
            first..(self.last().unwrap_or(0) + 1) * self.item
        }
    }

    /// Whether the elements lie one after the other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut want = 1;
        for (&n, &s) in self.shape.iter().zip(&self.strides).rev() {
            if n == 0 {
                return true;
            }
            if n != 1 && s != want {
                return false;
            }
            want *= n;
        }
        true
    }

    /// Whether no two elements share a byte (an expanded tensor shares).
    pub fn is_injective(&self) -> bool {
        if self.elements() == 0 {
            return true;
        }
        let mut axes: SmallVec<[(u64, u64); 4]> = self
            .strides
            .iter()
            .zip(&self.shape)
            .filter(|(_, n)| **n > 1)
            .map(|(&s, &n)| (s, n))
            .collect();
        axes.sort_unstable();
        // Enough, though not needed for odd overlaps that happen to interleave: each axis steps over all that lies within it.
        let mut reach = 0u64;
        axes.iter().all(|&(s, n)| {
            let ok = s > reach;
            reach += (n - 1) * s;
            ok
        })
    }

    /// The same elements with another shape. `None` if the shapes differ in more than axes of length 1.
    pub fn squeeze_to(&self, shape: &[u64]) -> Option<Self> {
        let mut own = self
            .shape
            .iter()
            .zip(&self.strides)
            .filter(|(n, _)| **n != 1);
        let mut strides = Dims::default();
        for &n in shape {
            match n {
                1 => strides.push(1),
                _ => strides.push(own.next().filter(|(m, _)| **m == n).map(|(_, &s)| s)?),
            }
        }
        own.next().is_none().then(|| Self {
            item: self.item,
            start: self.start,
            shape: shape.into(),
            strides,
        })
    }

    /// The part that `region` selects. The region must fit the shape.
    pub fn narrow(&self, region: &Region) -> Self {
        debug_assert!(region.fits(&self.shape), "{region} in {}", self.shape);
        let start = region
            .offsets
            .iter()
            .zip(&self.strides)
            .map(|(&o, &s)| o * s)
            .sum::<u64>()
            + self.start;
        // An empty region may start past the last element; nothing is ever read there.
        let start = if region.is_empty() { self.start } else { start };
        Self {
            item: self.item,
            start,
            shape: region.lengths.clone(),
            strides: self.strides.clone(),
        }
    }
}

impl Layout {
    /// Joins the layouts of parts. `None` if the parts do not follow each other along the first axis, as narrowing makes them.
    pub(crate) fn stacked<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let mut out = parts.next()?.clone();
        for part in parts {
            let alike = out.item == part.item
                && out.strides == part.strides
                && out.shape.get(1..)? == part.shape.get(1..)?;
            if !alike {
                return None;
            }
            let rows = out.shape[0];
            if out.elements() == 0 {
                out.start = part.start;
            } else if part.elements() > 0
                && part.start != out.start.checked_add(rows.checked_mul(out.strides[0])?)?
            {
                return None;
            }
            out.shape[0] = rows.checked_add(part.shape[0])?;
        }
        Self::new(out.item, out.start, out.shape, out.strides)
    }
}

#[derive(Clone, Debug)]
struct Axis {
    len: u64,
    src: u64,
    dst: u64,
    at: u64,
}

/// The runs of bytes to copy from one layout to another of the same shape and item size. Each run is (source, destination,
/// length), in bytes. Neighbouring runs are merged, so a contiguous tensor is one run.
#[derive(Clone, Debug)]
pub struct Segments {
    axes: SmallVec<[Axis; 4]>,
    run: u64,
    src: u64,
    dst: u64,
    done: bool,
}

impl Segments {
    /// In row-major order of the common shape.
    pub fn row_major(src: &Layout, dst: &Layout) -> Self {
        Self::walk(src, dst, false)
    }

    /// In ascending order of the source, which is the order for reading files. If the source is not
    /// [injective](Layout::is_injective), runs may overlap. Then the source ascends
    /// anew for each place along axes that go over the same bytes again, so that runs stay long.
    pub fn source_order(src: &Layout, dst: &Layout) -> Self {
        Self::walk(src, dst, true)
    }

    fn walk(src: &Layout, dst: &Layout, sort: bool) -> Self {
        debug_assert_eq!((src.shape(), src.item), (dst.shape(), dst.item));
        let item = src.item;

        // Axes of extent 1 move nothing, and would keep their neighbours from being merged.
        let mut axes: SmallVec<[Axis; 4]> = (0..src.shape.len())
            .filter(|&a| src.shape[a] != 1)
            .map(|a| Axis {
                len: src.shape[a],
                src: src.strides[a] * item,
                dst: dst.strides[a] * item,
                at: 0,
            })
            .collect();

        // The largest step goes outermost. Axes that repeat the same bytes go further out still, so runs stay long.
        if sort {
            axes.sort_by_key(|a| std::cmp::Reverse(if a.src == 0 { u64::MAX } else { a.src }));
        }

        // Two axes are one if the outer step is the whole inner axis on both sides.
        let mut merged: SmallVec<[Axis; 4]> = SmallVec::new();
        for inner in axes {
            match merged.last_mut() {
                Some(outer)
                    if outer.src == inner.src * inner.len && outer.dst == inner.dst * inner.len =>
                {
                    *outer = Axis {
                        len: outer.len * inner.len,
                        ..inner
                    };
                }
                _ => merged.push(inner),
            }
        }

        // An innermost axis that is dense on both sides is copied in one piece.
        let mut run = item;
        if merged
            .last()
            .is_some_and(|a| a.src == item && a.dst == item)
        {
            run *= merged.pop().map_or(1, |a| a.len);
        }
        let done = src.shape.contains(&0);
        Self {
            axes: merged,
            run,
            src: src.start * item,
            dst: dst.start * item,
            done,
        }
    }

    /// Length of each run in bytes (all are equal).
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The run that comes next, without taking it.
    pub fn peek(&self) -> Option<(u64, u64, u64)> {
        (!self.done).then_some((self.src, self.dst, self.run))
    }
}

impl Iterator for Segments {
    type Item = (u64, u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let out = self.peek()?;
        for axis in self.axes.iter_mut().rev() {
            axis.at += 1;
            if axis.at < axis.len {
                self.src += axis.src;
                self.dst += axis.dst;
                return Some(out);
            }
            axis.at = 0;
            self.src -= (axis.len - 1) * axis.src;
            self.dst -= (axis.len - 1) * axis.dst;
        }
        self.done = true;
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A dense layout of `shape` whose axes lie in memory in the order `order`, with `pad` elements before it.
    fn permuted(shape: &[u64], order: &[usize], pad: u64) -> Layout {
        let mut strides = Dims::zeros(shape.len());
        let mut step = 1;
        for &a in order.iter().rev() {
            strides[a] = step;
            step *= shape[a].max(1);
        }
        Layout::new(2, pad, shape.into(), strides).unwrap()
    }

    fn elements(l: &Layout) -> Vec<u64> {
        let flat = Layout::contiguous(2, l.shape()).unwrap();
        let mut out = vec![0; l.elements() as usize];
        for (s, d, n) in Segments::row_major(l, &flat) {
            for k in 0..n / 2 {
                out[(d / 2 + k) as usize] = s / 2 + k;
            }
        }
        out
    }

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        #[test]
        fn any_order_of_copying_gives_the_same_elements(
            shape in prop::collection::vec(0u64..4, 0..4), a in Just(vec![0usize, 1, 2]).prop_shuffle(),
            b in Just(vec![0usize, 1, 2]).prop_shuffle(), pad in 0u64..3,
        ) {
            let keep = |o: &[usize]| o.iter().copied().filter(|&x| x < shape.len()).collect::<Vec<_>>();
            let (src, dst) = (permuted(&shape, &keep(&a), pad), permuted(&shape, &keep(&b), 1));
            prop_assert!(src.is_injective());
            let (from, to) = (elements(&src), elements(&dst));
            for segments in [Segments::row_major(&src, &dst), Segments::source_order(&src, &dst)] {
                let lengths: Vec<u64> = segments.clone().map(|(_, _, n)| n).collect();
                prop_assert!(lengths.iter().all(|&n| n == segments.run()));
                let mut pairs: Vec<(u64, u64)> = segments.clone()
                    .flat_map(|(s, d, n)| (0..n / 2).map(move |k| (s / 2 + k, d / 2 + k))).collect();
                prop_assert_eq!(pairs.len() as u64, src.elements());
                pairs.sort_unstable();
                let mut want: Vec<(u64, u64)> = from.iter().copied().zip(to.iter().copied()).collect();
                want.sort_unstable();
                prop_assert_eq!(pairs, want);
            }
            let starts: Vec<u64> = Segments::source_order(&src, &dst).map(|s| s.0).collect();
            prop_assert!(starts.is_sorted());
        }
    }

    #[test]
    fn what_is_read_again_is_copied_in_long_runs() {
        let expanded = Layout::new(1, 0, [3, 100].into(), [0, 1].into()).unwrap();
        let to = Layout::contiguous(1, &[3, 100]).unwrap();
        let runs: Vec<_> = Segments::source_order(&expanded, &to).collect();
        assert_eq!(runs, [(0, 0, 100), (0, 100, 100), (0, 200, 100)]);
    }

    #[test]
    fn a_contiguous_copy_is_one_run() {
        let l = Layout::contiguous(4, &[3, 1, 5]).unwrap();
        assert_eq!(
            Segments::row_major(&l, &l).collect::<Vec<_>>(),
            [(0, 0, 60)]
        );
        let rows = l.narrow(&Region::new([1, 0, 0], [2, 1, 5]));
        assert_eq!(rows.hull(), 20..60);
    }

    #[test]
    fn a_layout_tells_what_it_was_made_of() {
        let l = Layout::new(2, 5, [3, 4].into(), [9, 2].into()).unwrap();
        assert_eq!(
            (l.item(), l.start(), l.elements(), l.bytes()),
            (2, 5, 12, 24)
        );
        assert_eq!(
            (&l.shape()[..], &l.strides()[..]),
            (&[3, 4][..], &[9, 2][..])
        );
        assert_eq!(l.hull(), 10..2 * (5 + 18 + 6 + 1));
    }

    #[test]
    fn axes_of_extent_1_come_and_go() {
        let l = Layout::new(2, 7, [2, 1, 3].into(), [9, 5, 2].into()).unwrap();
        for shape in [&[2, 3][..], &[2, 1, 3], &[1, 2, 3, 1]] {
            let other = l.squeeze_to(shape).unwrap();
            assert_eq!(
                (other.item(), other.start(), &other.shape()[..]),
                (2, 7, shape)
            );
            assert_eq!(elements(&other), elements(&l));
        }
        for shape in [&[3, 2][..], &[2], &[2, 3, 2], &[6], &[]] {
            assert_eq!(l.squeeze_to(shape), None);
        }
    }

    #[test]
    fn only_parts_of_one_arrangement_are_stacked() {
        let part = |item, start, shape: [u64; 2], strides: [u64; 2]| {
            Layout::new(item, start, shape.into(), strides.into()).unwrap()
        };
        let first = part(2, 0, [2, 3], [3, 1]);
        let whole = Layout::stacked([&first, &part(2, 6, [1, 3], [3, 1])]);
        assert_eq!(whole, Some(part(2, 0, [3, 3], [3, 1])));
        for other in [
            part(4, 6, [2, 3], [3, 1]),
            part(2, 6, [2, 3], [6, 1]),
            part(2, 6, [2, 2], [3, 1]),
            part(2, 7, [2, 3], [3, 1]),
        ] {
            assert_eq!(Layout::stacked([&first, &other]), None, "{other:?}");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert!(Layout::contiguous(8, &[u64::MAX / 4, 3]).is_none());
        assert!(Layout::contiguous(1, &[1 << 62]).is_some());
        assert!(Layout::new(1, 0, [2].into(), [u64::MAX].into()).is_none());
        assert!(Layout::contiguous(8, &[u64::MAX, 0]).is_some());
        let long = Layout::contiguous(8, &[0, 3, u64::MAX / 2, u64::MAX]).unwrap();
        assert_eq!((long.bytes(), long.elements()), (0, 0));
        let end = Region::new([0, 2, 1, u64::MAX - 1], [0, 1, 1, 1]);
        assert_eq!(long.narrow(&end).bytes(), 0);
    }

    #[test]
    fn an_expanded_tensor_is_not_injective() {
        assert!(
            Layout::new(4, 0, [1, 3].into(), [0, 1].into())
                .unwrap()
                .is_injective(),
            "nothing is expanded"
        );
        assert!(
            !Layout::new(4, 0, [3, 2].into(), [0, 1].into())
                .unwrap()
                .is_injective()
        );
        assert!(
            !Layout::new(4, 0, [3, 2].into(), [1, 1].into())
                .unwrap()
                .is_injective()
        );
    }
}
