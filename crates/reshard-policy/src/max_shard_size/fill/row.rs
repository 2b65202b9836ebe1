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
        let row = |count, size, whole| Self {
            piece,
            number,
            count,
            size,
            whole,
        };
        match piece.content {
            _ if count > 0 && policy.keeps_whole(piece) => row(1, Size::Even(piece.bytes), true),
            Content::Tensor(dtype) => row(count, Size::Even(dtype.size()), false),
            Content::Strings(lengths) => row(lengths.len() as u64, Size::Each(lengths), false),
            Content::Object => row(1, Size::Even(piece.bytes), true),
        }
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

    /// Bytes of the elements that are not too large.
    pub(super) fn fitting(&self, limit: u64) -> u128 {
        match self.size {
            Size::Even(item) if item > limit => 0,
            Size::Even(item) => u128::from(self.count) * u128::from(item),
            Size::Each(lengths) => lengths
                .iter()
                .filter(|&&n| n <= limit)
                .map(|&n| u128::from(n))
                .sum(),
        }
    }

    /// Up to which element those from `from` on fit into `room`, and their bytes.
    pub(super) fn fit(&self, from: u64, room: u64) -> (u64, u64) {
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
            Size::Even(item) => (self.count - from, item > limit),
            Size::Each(lengths) => {
                let rest = lengths.get(from as usize..).unwrap_or_default();
                let too_large = rest.first().is_some_and(|&n| n > limit);
                (
                    rest.iter()
                        .take_while(|&&n| (n > limit) == too_large)
                        .count() as u64,
                    too_large,
                )
            }
        };
        (from..from + n, too_large)
    }

    /// Of the places at which elements from `from` on may be cut, `to` being the last: the last one between two indexes of
    /// the first axis on which there is one behind at least `need` bytes. With the bytes before it.
    pub(super) fn cut(&self, from: u64, (to, bytes): (u64, u64), need: u64) -> (u64, u64) {
        if bytes <= need || self.whole {
            return (to, bytes);
        }
        let strides = self.piece.region.strides();
        let mut cuts = strides
            .iter()
            .filter_map(|&s| Some(to.checked_div(s)? * s))
            .filter(|&at| at > from)
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
