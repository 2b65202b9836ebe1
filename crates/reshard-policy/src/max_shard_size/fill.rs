//! The default mode. All tensors of a task are one row of elements, and the question is only where to cut it.
//!
//! First it is counted how many shards that takes if each is filled as far as it goes. Since the last one is seldom full,
//! some bytes may be left free without one more: so that as many shards as can be end between two tensors, and what is still
//! left of them so that the others end between two indexes of an axis.

use super::{MaxShardSize, warn_too_large};
use crate::{
    Content, Piece, Result, Shards,
    piece::{boxes, strides},
};
use std::ops::Range;

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
        let strides = strides(&self.piece.region.lengths);
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
        boxes(region, elements).try_for_each(|part| out.push(self.number, part))
    }
}

/// How many shards it takes, and what may be left free in them.
#[derive(Debug)]
struct Plan {
    /// Bytes that are not in closed shards.
    left: u128,
    /// Shards for them: the current one and those that may follow.
    shards: u128,
    /// What elements of tensors fill for sure of a shard that is filled as far as it goes.
    sure: u64,
}

impl Plan {
    fn of<'p>(rows: impl Iterator<Item = Row<'p>>, limit: u64) -> Self {
        let mut plan = Self { left: 0, shards: 1, sure: limit };
        let mut room = limit;
        // The largest size of an element, and what all sizes are multiples of.
        let (mut largest, mut step) = (0, 0);
        let mut add = |count: u64, item: u64, object: bool| {
            if count == 0 || item == 0 || item > limit {
                return;
            }
            if !object {
                (largest, step) = (item.max(largest), gcd(item, step));
            }
            plan.left += u128::from(count) * u128::from(item);
            let mut here = count.min(room / item);
            if here < count {
                let each = limit / item;
                let more = (count - here).div_ceil(each);
                plan.shards += u128::from(more);
                here = count - here - (more - 1) * each;
                room = limit;
            }
            room -= here * item;
        };
        for row in rows {
            match row.size {
                Size::Even(item) => add(row.count, item, row.piece.content == Content::Object),
                Size::Each(lengths) => lengths.iter().for_each(|&item| add(1, item, false)),
            }
        }
        if step > 0 {
            // What is free when the next element does not fit is less than that, and differs from the limit by multiples
            // of the step.
            plan.sure = limit - (largest - step + limit % step);
        }
        plan
    }

    /// Parts the rest, of which only tensors are left, where a shard shall end with a tensor: as often as can be.
    ///
    /// If every shard held just `sure` bytes, a shard that ends with a tensor would leave free what is between that and the end
    /// of its `sure` bytes, and those behind it would begin so much later. So what is left free may only grow from one such end
    /// to the next, up to what the last shard leaves free: they are a longest subsequence that does not decrease.
    fn segments(&self, room: u64, limit: u64, rows: impl Iterator<Item = u128>) -> Vec<Segment> {
        let sure = u128::from(self.sure);
        let start = sure - u128::from(room.saturating_sub(limit - self.sure));
        let end = start + self.left;
        let Some(most) = (self.shards * sure).checked_sub(end) else {
            return vec![Segment { rows: usize::MAX, left: self.left, shards: self.shards }];
        };
        let mut ends: Vec<End> = Vec::new();
        // The last one of the best subsequence of each length, by its place in `ends`.
        let mut best: Vec<usize> = Vec::new();
        let (mut at, mut last) = (start, 0);
        for (row, bytes) in rows.enumerate() {
            let free = at.next_multiple_of(sure) - at;
            if at > last && at < end && free <= most {
                let length = best.partition_point(|&i| ends[i].free <= free);
                let before = length.checked_sub(1).map(|i| best[i]);
                match best.get_mut(length) {
                    Some(other) => *other = ends.len(),
                    None => best.push(ends.len()),
                }
                ends.push(End { row, at, free, before });
            }
            last = at.max(last);
            at += bytes;
        }
        let mut chosen: Vec<&End> =
            std::iter::successors(best.last().map(|&i| &ends[i]), |end| Some(&ends[end.before?])).collect();
        chosen.reverse();
        let (mut row, mut at, mut shards) = (0, start, 0);
        let mut segments: Vec<Segment> = Vec::with_capacity(chosen.len() + 1);
        for end in chosen {
            let through = end.at.div_ceil(sure);
            segments.push(Segment { rows: end.row - row, left: end.at - at, shards: through - shards });
            (row, at, shards) = (end.row, end.at, through);
        }
        segments.push(Segment { rows: usize::MAX, left: end - at, shards: self.shards - shards });
        segments
    }

    /// How much a shard with so much room must still take, so that the others can take the rest and may leave as much free.
    fn need(&self, room: u64, limit: u64) -> u64 {
        let others = self.shards.saturating_sub(1);
        let reach = room.saturating_sub(limit - self.sure);
        let free = (others * u128::from(self.sure) + u128::from(reach)).checked_sub(self.left);
        match free {
            // It is not sure that the rest fits, so every byte counts.
            None => u64::MAX,
            Some(free) => {
                let own = free.checked_div(others).unwrap_or(free);
                u64::try_from(u128::from(reach).saturating_sub(own)).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Where a shard may end, before a row.
#[derive(Debug)]
struct End {
    row: usize,
    /// Bytes up to there, with what the first shard had already.
    at: u128,
    /// What is left free then.
    free: u128,
    /// The end before it in the best subsequence.
    before: Option<usize>,
}

/// Rows that end with a shard, their bytes, and how many shards they may take.
#[derive(Debug)]
struct Segment {
    rows: usize,
    left: u128,
    shards: u128,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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
