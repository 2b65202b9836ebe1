//! How many shards there are, and which of them end with a tensor.

use super::row::{Row, Size};
use crate::Content;

/// How many shards it takes, and what may be left free in them.
#[derive(Debug)]
pub(super) struct Plan {
    /// Bytes that are not in closed shards.
    pub(super) left: u128,
    /// Shards for them: the current one and those that may follow.
    pub(super) shards: u128,
    /// What elements of tensors fill for sure of a shard that is filled as far as it goes.
    sure: u64,
}

impl Plan {
    pub(super) fn of<'p>(rows: impl Iterator<Item = Row<'p>>, limit: u64) -> Self {
        let mut plan = Self {
            left: 0,
            shards: 1,
            sure: limit,
        };
        let mut room = limit;
        // The largest size of an element, what all sizes are multiples of, and the largest overhead of a row.
        let (mut largest, mut step, mut extra) = (0, 0, 0);
        let mut add = |count: u64, item: u64, overhead: u64, whole: bool| {
            if count == 0 || item == 0 || item.saturating_add(overhead) > limit {
                return false;
            }
            if !whole {
                (largest, step) = (item.max(largest), gcd(item, step));
                extra = overhead.max(extra);
            }
            plan.left += u128::from(count) * u128::from(item);
            let mut here = count.min(room.saturating_sub(overhead) / item);
            if here < count {
                let each = (limit - overhead) / item;
                let more = (count - here).div_ceil(each);
                plan.shards += u128::from(more);
                here = count - here - (more - 1) * each;
                room = limit;
            }
            room = room.saturating_sub(here * item + overhead);
            true
        };
        let mut overheads = 0u128;
        for row in rows {
            let whole = row.piece.content == Content::Object;
            let added = match row.size {
                Size::Even(item) => add(row.count, item, row.overhead, whole),
                // All of them are added, also if the first one fits.
                Size::Each(lengths) => {
                    let fits = |&&item: &&u64| add(1, item, row.overhead, false);
                    lengths.iter().filter(fits).count() > 0
                }
            };
            overheads += u128::from(if added { row.overhead } else { 0 });
        }
        plan.left += overheads;
        if step > 0 {
            // What is free when the next element does not fit is less than that, and differs from the limit by multiples
            // of the step.
            plan.sure = limit - (largest - step + limit % step);
            // A cut takes overhead once more, and the next row begins only where it has room for its own.
            plan.sure = plan.sure.saturating_sub(extra.saturating_mul(2));
        }
        plan
    }

    /// Parts the rest, of which only tensors are left, where a shard shall end with a tensor: as often as can be.
    ///
    /// If every shard held just `sure` bytes, a shard that ends with a tensor would leave free what is between that and the end
    /// of its `sure` bytes, and those behind it would begin so much later. So what is left free may only grow from one such end
    /// to the next, up to what the last shard leaves free: they are a longest subsequence that does not decrease.
    pub(super) fn segments(
        &self,
        room: u64,
        limit: u64,
        rows: impl Iterator<Item = u128>,
    ) -> Vec<Segment> {
        let sure = u128::from(self.sure);
        let whole = || {
            vec![Segment {
                rows: usize::MAX,
                left: self.left,
                shards: self.shards,
            }]
        };
        if sure == 0 {
            return whole();
        }
        let start = sure - u128::from(room.saturating_sub(limit - self.sure));
        let end = start + self.left;

        // The rest needs more than all shards surely hold, so no end can be chosen.
        let Some(most) = (self.shards * sure).checked_sub(end) else {
            return whole();
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
                ends.push(End {
                    row,
                    at,
                    free,
                    before,
                });
            }
            last = at.max(last);
            at += bytes;
        }

        // The chain leads from the last end to the first.
        let mut chosen: Vec<&End> = std::iter::successors(best.last().map(|&i| &ends[i]), |end| {
            Some(&ends[end.before?])
        })
        .collect();
        chosen.reverse();

        let (mut row, mut at, mut shards) = (0, start, 0);
        let mut segments: Vec<Segment> = Vec::with_capacity(chosen.len() + 1);
        for end in chosen {
            let through = end.at.div_ceil(sure);
            segments.push(Segment {
                rows: end.row - row,
                left: end.at - at,
                shards: through - shards,
            });
            (row, at, shards) = (end.row, end.at, through);
        }

        // The last segment takes all rows that are left.
        segments.push(Segment {
            rows: usize::MAX,
            left: end - at,
            shards: self.shards - shards,
        });
        segments
    }

    /// How much a shard with so much room must still take, so that the others can take the rest and may leave as much free.
    pub(super) fn need(&self, room: u64, limit: u64) -> u64 {
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
pub(super) struct Segment {
    pub(super) rows: usize,
    pub(super) left: u128,
    pub(super) shards: u128,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
