//! The default mode. All tensors of a task are one row of elements, and the question is only where to cut it.
//!
//! First it is counted how many shards that takes if each is filled as far as it goes. Since the last one is seldom full,
//! some bytes may be left free without one more: so that as many shards as can be end between two tensors, and what is still
//! left of them so that the others end between two indexes of an axis.

use super::{MaxShardSize, warn_too_large};
use crate::{Content, Piece, Result, Shards};
use plan::Plan;
use std::ops::Range;

mod plan;

pub(super) fn fill(
    policy: &MaxShardSize,
    pieces: &[Piece<'_>],
    task: &[usize],
    out: &mut Shards,
) -> Result<()> {
    let limit = policy.max_shard_size.0;
    // Objects, which can't be cut, come first, as PyTorch has it; then there are elements for what is left free.
    let objects = |of: bool| task.iter().filter(move |&&i| (pieces[i].content == Content::Object) == of);
    let rows = |of| objects(of).map(|&i| Row::of(&pieces[i], i, policy));
    let plan = Plan::of(rows(true).chain(rows(false)), limit);
    let mut shard = Filler { limit, plan, room: limit, empty: true, too_large: Vec::new(), out };
    for row in rows(true) {
        shard.put(&row)?;
    }
    let segments = shard.plan.segments(shard.room, limit, rows(false).map(|row| row.fitting(limit)));
    let mut tensors = rows(false);
    for (number, segment) in segments.into_iter().enumerate() {
        if number > 0 {
            shard.close();
        }
        (shard.plan.left, shard.plan.shards) = (segment.left, segment.shards);
        for row in tensors.by_ref().take(segment.rows) {
            shard.put(&row)?;
        }
    }
    let Filler { too_large, out, .. } = shard;
    for (row, elements) in too_large {
        warn_too_large(row.piece, row.bytes(elements.start..elements.start + 1), limit);
        for element in elements {
            out.start();
            row.push(element..element + 1, out)?;
        }
    }
    Ok(())
}

/// A piece as a row of elements.
#[derive(Clone, Copy, Debug)]
struct Row<'p> {
    piece: &'p Piece<'p>,
    number: usize,
    count: u64,
    size: Size<'p>,
    /// One element that is the whole piece, whatever its shape.
    whole: bool,
}

/// Bytes of elements.
#[derive(Clone, Copy, Debug)]
enum Size<'p> {
    Even(u64),
    Each(&'p [u64]),
}

impl<'p> Row<'p> {
    fn of(piece: &'p Piece<'p>, number: usize, policy: &MaxShardSize) -> Self {
        let count = piece.region.volume().unwrap_or(0);
        let row = |count, size, whole| Self { piece, number, count, size, whole };
        match piece.content {
            _ if count > 0 && policy.keeps_whole(piece) => row(1, Size::Even(piece.bytes), true),
            Content::Tensor(dtype) => row(count, Size::Even(dtype.size()), false),
            Content::Strings(lengths) => row(lengths.len() as u64, Size::Each(lengths), false),
            Content::Object => row(1, Size::Even(piece.bytes), true),
        }
    }

    fn bytes(&self, elements: Range<u64>) -> u64 {
        match self.size {
            Size::Even(item) => (elements.end - elements.start).saturating_mul(item),
            Size::Each(lengths) => {
                let of = lengths.get(elements.start as usize..elements.end as usize).unwrap_or_default();
                of.iter().fold(0, |sum, &n| sum.saturating_add(n))
            }
        }
    }

    /// Bytes of the elements that are not too large.
    fn fitting(&self, limit: u64) -> u128 {
        match self.size {
            Size::Even(item) if item > limit => 0,
            Size::Even(item) => u128::from(self.count) * u128::from(item),
            Size::Each(lengths) => lengths.iter().filter(|&&n| n <= limit).map(|&n| u128::from(n)).sum(),
        }
    }

    /// Up to which element those from `from` on fit into `room`, and their bytes.
    fn fit(&self, from: u64, room: u64) -> (u64, u64) {
        match self.size {
            Size::Even(item) => {
                let n = room.checked_div(item).unwrap_or(u64::MAX).min(self.count - from);
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
    fn run(&self, from: u64, limit: u64) -> (Range<u64>, bool) {
        let (n, too_large) = match self.size {
            Size::Even(item) => (self.count - from, item > limit),
            Size::Each(lengths) => {
                let rest = lengths.get(from as usize..).unwrap_or_default();
                let too_large = rest.first().is_some_and(|&n| n > limit);
                (rest.iter().take_while(|&&n| (n > limit) == too_large).count() as u64, too_large)
            }
        };
        (from..from + n, too_large)
    }

    /// Of the places at which elements from `from` on may be cut, `to` being the last: the last one between two indexes of
    /// the first axis on which there is one behind at least `need` bytes. With the bytes before it.
    fn cut(&self, from: u64, (to, bytes): (u64, u64), need: u64) -> (u64, u64) {
        if bytes <= need || self.whole {
            return (to, bytes);
        }
        let strides = self.piece.region.strides();
        let mut cuts = strides
            .iter()
            .filter_map(|&s| Some(to.checked_div(s)? * s))
            .filter(|&at| at > from)
            .map(|at| (at, self.bytes(from..at)));
        cuts.find(|&(_, bytes)| bytes >= need).unwrap_or((to, bytes))
    }

    fn push(&self, elements: Range<u64>, out: &mut Shards) -> Result<()> {
        let region = self.piece.region;
        if self.whole || elements == (0..self.count) {
            return out.push(self.number, region.clone());
        }
        region.boxes(elements).try_for_each(|part| out.push(self.number, part))
    }
}

/// Fills shards one after the other.
#[derive(Debug)]
struct Filler<'p, 'o> {
    limit: u64,
    plan: Plan,
    /// Bytes that still fit into the current shard.
    room: u64,
    empty: bool,
    /// Elements that fit nowhere.
    too_large: Vec<(Row<'p>, Range<u64>)>,
    out: &'o mut Shards,
}

impl<'p> Filler<'p, '_> {
    fn put(&mut self, row: &Row<'p>) -> Result<()> {
        if row.count == 0 {
            self.empty = false;
            return row.push(0..0, self.out);
        }
        let mut at = 0;
        while at < row.count {
            let (run, too_large) = row.run(at, self.limit);
            at = run.end;
            if too_large {
                self.too_large.push((*row, run));
            } else {
                self.put_run(row, run)?;
            }
        }
        Ok(())
    }

    fn put_run(&mut self, row: &Row<'p>, run: Range<u64>) -> Result<()> {
        let mut at = run.start;
        loop {
            let fit = row.fit(at, self.room);
            if fit.0 >= run.end {
                return self.take(row, at..run.end, fit.1);
            }
            let need = self.plan.need(self.room, self.limit);
            if self.empty || need > 0 {
                let (to, bytes) = row.cut(at, fit, need);
                self.take(row, at..to, bytes)?;
                at = to;
            }
            self.close();
        }
    }

    fn take(&mut self, row: &Row<'p>, elements: Range<u64>, bytes: u64) -> Result<()> {
        if elements.is_empty() {
            return Ok(());
        }
        row.push(elements, self.out)?;
        self.plan.left -= u128::from(bytes);
        self.room -= bytes;
        self.empty = false;
        Ok(())
    }

    fn close(&mut self) {
        self.out.start();
        self.plan.shards = self.plan.shards.saturating_sub(1);
        (self.room, self.empty) = (self.limit, true);
    }
}

#[cfg(test)]
mod tests;
