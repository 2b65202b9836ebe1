use crate::{Dims, ModelError, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Range};

mod row_major;

/// Offsets and lengths of an n-dimensional box, in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Region {
    /// First element per axis.
    pub offsets: Dims,
    /// Elements per axis.
    pub lengths: Dims,
}

impl Region {
    /// A box of `lengths` at `offsets`; both have one number per axis.
    pub fn new(offsets: impl Into<Dims>, lengths: impl Into<Dims>) -> Self {
        Self {
            offsets: offsets.into(),
            lengths: lengths.into(),
        }
    }

    /// All of a tensor of this shape.
    pub fn whole(shape: &[u64]) -> Self {
        Self {
            offsets: Dims::zeros(shape.len()),
            lengths: shape.into(),
        }
    }

    /// Rows of the first axis, whole in the others.
    pub fn rows(rows: Range<u64>) -> Rows {
        Rows(rows)
    }

    /// Number of axes.
    pub fn ndim(&self) -> usize {
        self.lengths.len()
    }

    /// Number of elements; `None` when it does not fit 64 bits.
    pub fn volume(&self) -> Option<u64> {
        self.lengths.volume()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.lengths.contains(&0)
    }

    /// One past the last element of an axis.
    pub fn end(&self, axis: usize) -> u64 {
        self.offsets[axis].saturating_add(self.lengths[axis])
    }

    /// The elements that both hold; `None` when there are none, or the number of axes differs.
    /// Of boxes without axes (scalars) it is the scalar.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.ndim() != other.ndim() {
            return None;
        }
        let mut out = Self::default();
        for a in 0..self.ndim() {
            let lo = self.offsets[a].max(other.offsets[a]);
            let hi = self.end(a).min(other.end(a));
            if hi <= lo {
                return None;
            }
            out.offsets.push(lo);
            out.lengths.push(hi - lo);
        }
        Some(out)
    }

    /// Whether every element of `other` lies in this box.
    pub fn contains(&self, other: &Self) -> bool {
        self.ndim() == other.ndim()
            && (0..self.ndim())
                .all(|a| other.offsets[a] >= self.offsets[a] && other.end(a) <= self.end(a))
    }

    /// Whether it lies inside a tensor of this shape.
    pub fn fits(&self, shape: &[u64]) -> bool {
        self.ndim() == shape.len()
            && self.offsets.len() == shape.len()
            && (0..shape.len()).all(|a| {
                self.offsets[a]
                    .checked_add(self.lengths[a])
                    .is_some_and(|end| end <= shape[a])
            })
    }

    /// Boxes of at most `max` elements (at least one) that follow each other in row-major order and make up this one.
    ///
    /// ```
    /// use reshard_model::Region;
    /// let blocks: Vec<String> = Region::whole(&[3, 4]).blocks(8).map(|b| b.to_string()).collect();
    /// assert_eq!(blocks, ["[0:2, 0:4]", "[2:3, 0:4]"]);
    /// ```
    pub fn blocks(self, max: u64) -> impl Iterator<Item = Self> + Send {
        let max = max.max(1);
        // Axes after `cut` are whole in a block; `cut` itself is cut; those before it go one by one.
        let (mut axis, mut inner) = (self.ndim(), 1u64);
        while axis > 0 && inner.saturating_mul(self.lengths[axis - 1]) <= max {
            axis -= 1;
            inner = inner.saturating_mul(self.lengths[axis]);
        }
        let cut = axis.checked_sub(1);
        let step = (max / inner.max(1)).max(1);
        let mut at = (!self.is_empty()).then(|| self.offsets.clone());
        std::iter::from_fn(move || {
            let mut out = Self {
                offsets: at.take()?,
                lengths: self.lengths.clone(),
            };
            let Some(cut) = cut else { return Some(out) };
            out.lengths[..cut].fill(1);
            out.lengths[cut] = step.min(self.end(cut) - out.offsets[cut]);
            let mut next = out.offsets.clone();
            next[cut] += out.lengths[cut];
            let mut a = cut;
            while next[a] >= self.end(a) && a > 0 {
                next[a] = self.offsets[a];
                a -= 1;
                next[a] += 1;
            }
            at = (next[a] < self.end(a)).then_some(next);
            Some(out)
        })
    }

    /// The same box, whose offsets are counted from the start of a box at `at`, in what that box lies in.
    #[must_use]
    pub fn shifted(&self, at: &[u64]) -> Self {
        let offsets = self.offsets.iter().zip(at);
        let offsets: Dims = offsets.map(|(a, b)| a.saturating_add(*b)).collect();
        Self::new(offsets, self.lengths.clone())
    }

    /// The same box with offsets counted from the start of `origin`, which must contain it.
    pub fn within(&self, origin: &Self) -> Self {
        Self {
            offsets: (0..self.ndim())
                .map(|a| self.offsets[a].saturating_sub(origin.offsets[a]))
                .collect(),
            lengths: self.lengths.clone(),
        }
    }
}

/// As Python writes slices: `[0:2, 3:5]`. A number that is missing, because offsets and lengths are not as many, is `?`.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for a in 0..self.offsets.len().max(self.lengths.len()) {
            f.write_str(if a == 0 { "" } else { ", " })?;
            match (self.offsets.get(a), self.lengths.get(a)) {
                (Some(from), Some(len)) => write!(f, "{from}:{}", from.saturating_add(*len))?,
                (Some(from), None) => write!(f, "{from}:?")?,
                (None, _) => f.write_str("?:?")?,
            }
        }
        f.write_str("]")
    }
}

/// What to read of a tensor whose shape the caller may not know: a [`Region`], some rows, or `..` for all of it.
pub trait Select {
    /// The region of a tensor of `shape`.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the selection does not lie in the shape.
    fn resolve(&self, key: &str, shape: &[u64]) -> Result<Region>;
}

impl Select for Region {
    fn resolve(&self, key: &str, shape: &[u64]) -> Result<Region> {
        if self.fits(shape) {
            return Ok(self.clone());
        }
        Err(ModelError::invalid(
            key,
            format!("region {self} does not lie in shape {}", Dims::from(shape)),
        ))
    }
}

impl<S: Select + ?Sized> Select for &S {
    fn resolve(&self, key: &str, shape: &[u64]) -> Result<Region> {
        (**self).resolve(key, shape)
    }
}

impl Select for std::ops::RangeFull {
    fn resolve(&self, _: &str, shape: &[u64]) -> Result<Region> {
        Ok(Region::whole(shape))
    }
}

/// Rows of the first axis; made by [`Region::rows`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows(Range<u64>);

impl Select for Rows {
    fn resolve(&self, key: &str, shape: &[u64]) -> Result<Region> {
        let Range { start, end } = self.0;
        if shape.is_empty() || start > end || end > shape[0] {
            let shape = Dims::from(shape);
            return Err(ModelError::invalid(
                key,
                format!("rows {start}..{end} do not lie in shape {shape}"),
            ));
        }
        let mut r = Region::whole(shape);
        (r.offsets[0], r.lengths[0]) = (start, end - start);
        Ok(r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        #[test]
        fn blocks_follow_each_other_and_cover_the_region(
            lengths in prop::collection::vec(0u64..6, 0..4), max in 1u64..40, offset in 0u64..4,
        ) {
            let region = Region::new(vec![offset; lengths.len()], lengths);
            let blocks: Vec<Region> = region.clone().blocks(max).collect();
            for pair in blocks.windows(2) {
                let (a, b) = (&pair[0], &pair[1]);
                let other: Vec<usize> = (0..region.ndim()).filter(|&x| (a.offsets[x], a.lengths[x]) != (b.offsets[x], b.lengths[x])).collect();
                if let [axis] = other[..] && a.end(axis) == b.offsets[axis] {
                    prop_assert!(a.volume().unwrap() + b.volume().unwrap() > max, "{a} and {b} could be one block");
                }
            }
            let mut seen = Vec::new();
            for b in blocks {
                prop_assert!(region.contains(&b));
                prop_assert!(b.volume().unwrap() <= max);
                seen.extend(b.blocks(1).map(|r| r.offsets.to_vec()));
            }
            prop_assert_eq!(seen.len() as u64, region.volume().unwrap());
            prop_assert!(seen.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn a_region_whose_numbers_do_not_fit_is_shown() {
        let shown = |offsets: &[u64], lengths: &[u64]| Region::new(offsets, lengths).to_string();
        assert_eq!(
            shown(&[1, u64::MAX], &[2, 3]),
            format!("[1:3, {0}:{0}]", u64::MAX)
        );
        assert_eq!(shown(&[1], &[2, 3]), "[1:3, ?:?]");
        assert_eq!(shown(&[1, 4], &[2]), "[1:3, 4:?]");
        assert_eq!(shown(&[], &[]), "[]");
    }

    #[test]
    fn a_selection_is_a_region_of_the_shape_or_an_error() {
        let shape = [5, 3];
        let inner = Region::new([1, 0], [4, 2]);
        assert_eq!(inner.resolve("w", &shape).unwrap(), inner);
        assert_eq!(
            <&Region as Select>::resolve(&&inner, "w", &shape).unwrap(),
            inner
        );
        assert_eq!((..).resolve("w", &shape).unwrap(), Region::whole(&shape));
        for outer in [Region::new([1, 0], [5, 2]), Region::new([1], [4])] {
            let error = outer.resolve("w", &shape).unwrap_err().to_string();
            assert!(error.contains("does not lie in shape [5, 3]"), "{error}");
        }
        for (from, to) in [(0, 5), (1, 3), (2, 2), (5, 5), (4, 5)] {
            let rows = Region::rows(from..to).resolve("w", &shape).unwrap();
            assert_eq!(rows, Region::new([from, 0], [to - from, 3]));
        }
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        for rows in [3..2, 0..6, 6..6] {
            let error = Region::rows(rows)
                .resolve("w", &shape)
                .unwrap_err()
                .to_string();
            assert!(error.contains("do not lie in shape [5, 3]"), "{error}");
        }
        assert!(
            Region::rows(0..0).resolve("w", &[]).is_err(),
            "a scalar has no rows"
        );
    }

    #[test]
    fn what_two_boxes_share_begins_at_the_later_start_and_ends_at_the_earlier_end() {
        let (a, b) = (Region::new([2, 0], [5, 9]), Region::new([4, 3], [7, 2]));
        let both = Some(Region::new([4, 3], [3, 2]));
        assert_eq!((a.intersect(&b), b.intersect(&a)), (both.clone(), both));
        assert_eq!(
            a.intersect(&Region::new([7, 3], [1, 1])),
            None,
            "boxes that only touch"
        );
    }

    #[test]
    fn a_box_is_counted_from_the_start_of_another() {
        let inner = Region::new([4, 7], [2, 1]).within(&Region::new([3, 5], [9, 9]));
        assert_eq!(inner, Region::new([1, 2], [2, 1]));
    }

    #[test]
    fn a_box_holds_what_lies_in_it_on_every_axis() {
        let outer = Region::new([2, 2], [4, 4]);
        assert!(outer.contains(&outer) && outer.contains(&Region::new([3, 4], [3, 1])));
        for (offsets, lengths) in [
            ([1, 3], [2, 1]),
            ([3, 1], [1, 2]),
            ([5, 3], [2, 1]),
            ([3, 5], [1, 2]),
        ] {
            let outside = Region::new(offsets, lengths);
            assert!(!outer.contains(&outside), "{outer} holds {outside}");
        }
        assert!(
            !outer.contains(&Region::new([3], [1])),
            "another number of axes"
        );
    }
}
