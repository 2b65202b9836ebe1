//! A piece as a row of elements, and where it may be cut.

use super::super::MaxShardSize;
use crate::{Content, Piece, Result, Shards};
use std::ops::Range;

/// A piece as a row of elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'p> {
    pub(super) piece: &'p Piece<'p>,
    pub(super) number: usize,
    pub(super) count: u64,
    pub(super) size: Size<'p>,
    /// Bytes that each slice takes in addition to its elements. A whole piece has them in its size.
    pub(super) overhead: u64,
    /// One element that is the whole piece, whatever its shape.
    pub(super) whole: bool,
}

/// Bytes of elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size<'p> {
    Even(u64),
    Each(&'p [u64]),
}

impl<'p> Row<'p> {
    pub(super) fn of(piece: &'p Piece<'p>, number: usize, policy: &MaxShardSize) -> Self {
        let count = piece.region.volume().unwrap_or(0);
        let overhead = piece.overhead.slice;
        let row = |count, size, whole| Self {
            piece,
            number,
            count,
            size,
            overhead: if whole { 0 } else { overhead },
            whole,
        };
        match piece.content {
            // A piece without elements takes only what describes it.
            Content::Strings(lengths) if count > 0 && !policy.keeps_whole(piece) => {
                row(lengths.len() as u64, Size::Each(lengths), false)
            }
            Content::Tensor(dtype) if count > 0 && !policy.keeps_whole(piece) => {
                row(count, Size::Even(dtype.size()), false)
            }
            _ => row(1, Size::Even(piece.bytes.saturating_add(overhead)), true),
        }
    }

    /// Bytes of a slice with these elements, which may be several boxes.
    pub(super) fn cost(&self, elements: Range<u64>) -> u64 {
        let boxes = self.boxes(elements.clone());
        let overhead = self.overhead.saturating_mul(boxes);
        self.bytes(elements).saturating_add(overhead)
    }

    /// How many slices elements become.
    fn boxes(&self, elements: Range<u64>) -> u64 {
        match elements == (0..self.count) {
            _ if elements.is_empty() => 0,
            true => 1,
            false => self.piece.region.boxes(elements).count() as u64,
        }
    }

    /// Whether not even one of the elements fits, each of this size.
    fn is_too_large(&self, item: u64, limit: u64) -> bool {
        item.saturating_add(self.overhead) > limit
    }

    pub(super) fn bytes(&self, elements: Range<u64>) -> u64 {
        match self.size {
            Size::Even(item) => (elements.end - elements.start).saturating_mul(item),
            Size::Each(lengths) => {
                let of = lengths
                    .get(elements.start as usize..elements.end as usize)
                    .unwrap_or_default();
                of.iter().fold(0, |sum, &n| sum.saturating_add(n))
            }
        }
    }

    /// Bytes of the elements that are not too large, in one slice.
    pub(super) fn fitting(&self, limit: u64) -> u128 {
        let fits = |item: &u64| !self.is_too_large(*item, limit);
        let bytes = match self.size {
            Size::Even(item) if !fits(&item) => 0,
            Size::Even(item) => u128::from(self.count) * u128::from(item),
            Size::Each(lengths) => {
                let fitting = lengths.iter().filter(|n| fits(n));
                fitting.map(|&n| u128::from(n)).sum()
            }
        };
        match bytes {
            0 => 0,
            _ => bytes + u128::from(self.overhead),
        }
    }

    /// Up to which element those from `from` on fit into `room`, and their bytes. Each slice that they become takes its
    /// overhead from the room.
    pub(super) fn fit(&self, from: u64, room: u64) -> (u64, u64) {
        if self.overhead == 0 {
            return self.fit_elements(from, room);
        }
        let (mut best, most) = (from, 2 * self.piece.region.ndim() + 1);
        for slices in 1..=most {
            let overhead = self.overhead.saturating_mul(slices as u64);
            let Some(left) = room.checked_sub(overhead) else {
                break;
            };
            let (to, _) = self.fit_elements(from, left);
            // The first of these slices fit in any case.
            let boxes = self.piece.region.boxes(from..to).take(slices);
            let end = boxes.fold(from, |end, b| end + b.volume().unwrap_or(0));
            best = end.max(best);
            if end == to {
                break;
            }
        }
        (best, self.bytes(from..best))
    }

    fn fit_elements(&self, from: u64, room: u64) -> (u64, u64) {
        match self.size {
            Size::Even(item) => {
                let n = room
                    .checked_div(item)
                    .unwrap_or(u64::MAX)
                    .min(self.count - from);
                (from + n, n * item)
            }
            Size::Each(lengths) => {
                let mut bytes = 0u64;
                let rest = lengths.get(from as usize..).unwrap_or_default();
                let n = rest.iter().take_while(|&&n| {
                    let fits = n <= room - bytes;
                    bytes += if fits { n } else { 0 };
                    fits
                });
                let n = n.count() as u64;
                (from + n, bytes)
            }
        }
    }

    /// From `from` on, elements that are all larger than the limit, or of which none is; and whether they are.
    pub(super) fn run(&self, from: u64, limit: u64) -> (Range<u64>, bool) {
        let (n, too_large) = match self.size {
            Size::Even(item) => (self.count - from, self.is_too_large(item, limit)),
            Size::Each(lengths) => {
                let rest = lengths.get(from as usize..).unwrap_or_default();
                let too_large = |n: &u64| self.is_too_large(*n, limit);
                let first = rest.first().is_some_and(too_large);
                (
                    rest.iter().take_while(|n| too_large(n) == first).count() as u64,
                    first,
                )
            }
        };
        (from..from + n, too_large)
    }

    /// Of the places at which elements from `from` on may be cut, `to` being the last: the last one between two indexes of
    /// the first axis on which there is one behind at least `need` bytes. With the bytes before it.
    pub(super) fn cut(
        &self,
        from: u64,
        (to, bytes): (u64, u64),
        (need, room): (u64, u64),
    ) -> (u64, u64) {
        if bytes <= need || self.whole {
            return (to, bytes);
        }
        let strides = self.piece.region.strides();
        let mut cuts = strides
            .iter()
            .filter_map(|&s| Some(to.checked_div(s)? * s))
            .filter(|&at| at > from && (self.overhead == 0 || self.cost(from..at) <= room))
            .map(|at| (at, self.bytes(from..at)));
        cuts.find(|&(_, bytes)| bytes >= need)
            .unwrap_or((to, bytes))
    }

    pub(super) fn push(&self, elements: Range<u64>, out: &mut Shards) -> Result<()> {
        let region = self.piece.region;
        if self.whole || elements == (0..self.count) {
            return out.push(self.number, region.clone());
        }
        region
            .boxes(elements)
            .try_for_each(|part| out.push(self.number, part))
    }
}
