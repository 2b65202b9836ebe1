//! The default mode. All tensors of a task are one row of elements, and the question is only where to cut it.
//!
//! First it is counted how many shards that takes if each is filled as far as it goes. Since the last one is seldom full,
//! some bytes may be left free without one more: so that as many shards as can be end between two tensors, and what is still
//! left of them so that the others end between two indexes of an axis.

use super::{MaxShardSize, warn_too_large};
use crate::{Content, Piece, Result, Shards};
use plan::Plan;
use row::Row;
use std::ops::Range;

mod plan;
mod row;

pub(super) fn fill(
    policy: &MaxShardSize,
    pieces: &[Piece<'_>],
    task: &[usize],
    out: &mut Shards,
) -> Result<()> {
    // What a file has in any case takes away room for everything else.
    let of_file = task.iter().map(|&i| pieces[i].overhead.file).max();
    let limit = policy.max_shard_size.0.saturating_sub(of_file.unwrap_or(0));
    // Objects, which can't be cut, come first, as PyTorch has it; then there are elements for what is left free.
    let objects = |of: bool| {
        task.iter()
            .filter(move |&&i| (pieces[i].content == Content::Object) == of)
    };
    let rows = |of| objects(of).map(|&i| Row::of(&pieces[i], i, policy));
    let plan = Plan::of(rows(true).chain(rows(false)), limit);
    let mut shard = Filler {
        limit,
        plan,
        room: limit,
        empty: true,
        too_large: Vec::new(),
        out,
    };
    for row in rows(true) {
        shard.put(&row)?;
    }
    let segments =
        shard
            .plan
            .segments(shard.room, limit, rows(false).map(|row| row.fitting(limit)));
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
        let one = row.bytes(elements.start..elements.start + 1);
        warn_too_large(row.piece, one, policy.max_shard_size.0);
        for element in elements {
            out.start();
            row.push(element..element + 1, out)?;
        }
    }
    Ok(())
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
                return self.take(row, at..run.end);
            }
            let need = self.plan.need(self.room, self.limit);
            if self.empty || need > 0 {
                let (to, _) = row.cut(at, fit, (need, self.room));
                self.take(row, at..to)?;
                at = to;
            }
            self.close();
        }
    }

    fn take(&mut self, row: &Row<'p>, elements: Range<u64>) -> Result<()> {
        if elements.is_empty() {
            return Ok(());
        }
        // The plan has the overhead of one slice of each row, which its last elements take.
        let last = if elements.end == row.count {
            row.overhead
        } else {
            0
        };
        let taken = u128::from(row.bytes(elements.clone())) + u128::from(last);
        self.plan.left = self.plan.left.saturating_sub(taken);
        self.room = self.room.saturating_sub(row.cost(elements.clone()));
        self.empty = false;
        row.push(elements, self.out)
    }

    fn close(&mut self) {
        self.out.start();
        self.plan.shards = self.plan.shards.saturating_sub(1);
        (self.room, self.empty) = (self.limit, true);
    }
}

#[cfg(test)]
mod tests;
