//! Reading local files: straight into regions where runs are long enough, through a small block where they are not.

use super::{
    file::{Input, MAX_VECTORS},
    root::Root,
};
use crate::{
    Name, Progress, RecordRead, Result, Traffic,
    pool::{self, Batch, Priority},
    record_read::{
        plan::{Joined, Order, Prepared, join},
        reads::split,
        split::{Split, name_whole, split as split_large},
    },
};
use bytes::Bytes;
use std::{cell::RefCell, ops::Range, sync::Arc};

/// Gaps up to here cost less when they are read than a call of the system more. Measured on page cache.
pub(super) const GAP: u64 = 2 << 10;
/// Runs from here on are read into place; shorter ones are copied there from a block. Measured.
const DIRECT: u64 = 1 << 10;
/// What is copied or hashed after it was read comes in blocks of this size, so that it is still in cache then.
const BLOCK: usize = 256 << 10;
/// What nobody looks at comes in longer ones: progress is told, and stopping is possible, in between.
const STRIDE: usize = 8 << 20;
/// Neighbouring records up to this size are read together.
const SMALL: u64 = 16 << 10;
/// What one task reads at least, when there are more records.
const TASK: u64 = 4 << 20;
/// And when there is little to read.
pub(super) const SHORT: u64 = 64 << 10;
/// What a read or a record costs beside its bytes, in bytes.
const EACH: u64 = 4 << 10;
/// Records up to this size are not cut. One large tensor that is read alone is cut, so that every thread has a part of it.
const PIECE: u64 = 16 << 20;
/// Tasks from here on go first, so that the last one to run is a short one.
const LARGE: u64 = 16 << 20;

/// Takes the memory for blocks of this thread; it is used again and again.
fn with_block<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    // Taken out, so that a check or a progress callback that reads by itself gets memory of its own.
    let mut memory = MEMORY.take();
    memory.resize(BLOCK, 0);
    let out = f(&mut memory);
    MEMORY.set(memory);
    out
}

/// Half of what each thread has to do: two tasks each leave room for one that takes longer.
fn share(total: u64, threads: usize) -> u64 {
    total / (2 * threads as u64)
}

/// What a record may have before it is cut: one that is most of the work is read by several threads.
fn piece(total: u64, threads: usize) -> u64 {
    PIECE.max(share(total, threads))
}

/// Cuts sorted work into tasks of at least `TASK` bytes, each within one file.
fn tasks<T>(
    sorted: Vec<T>,
    same_file: impl Fn(&T, &T) -> bool,
    bytes: impl Fn(&T) -> u64,
) -> Vec<(u64, Vec<T>)> {
    let total: u64 = sorted.iter().map(&bytes).fold(0, u64::saturating_add);
    // Small work is spread over the threads too.
    let least = share(total, pool::width()).clamp(SHORT, TASK);
    let mut out: Vec<(u64, Vec<T>)> = Vec::new();
    for item in sorted {
        let n = bytes(&item);
        match out.last_mut() {
            Some((sum, group))
                if *sum < least && group.last().is_some_and(|l| same_file(l, &item)) =>
            {
                *sum = sum.saturating_add(n);
                group.push(item);
            }
            _ => out.push((n, vec![item])),
        }
    }
    // A stable sort: short tasks stay in the order of files.
    out.sort_by_key(|(sum, _)| std::cmp::Reverse(if *sum >= LARGE { *sum } else { 0 }));
    out
}

pub(super) async fn read_ranges(
    root: Root,
    reads: Vec<(Name, Range<u64>)>,
) -> Result<(Vec<Bytes>, Traffic)> {
    let n = reads.len();
    let reads = Arc::new(reads);
    let all = Arc::clone(&reads);
    let bytes = |(_, r): &(Name, Range<u64>)| r.end.saturating_sub(r.start).saturating_add(EACH);
    let total = all.iter().map(bytes).fold(0, u64::saturating_add);
    let done = pool::run_if_long(total <= 2 * SHORT, move |batch| {
        let joined = join(&all, GAP, BLOCK as u64)?;
        let same = |a: &Joined, b: &Joined| a.name == b.name;
        for (_, group) in tasks(joined, same, |j| j.bytes().saturating_add(EACH)) {
            let root = root.clone();
            batch.spawn(Priority::Main, move |batch| {
                read_joined(&root, group, batch)
            });
        }
        Ok(Vec::new())
    });
    let (mut out, mut stats) = (vec![Bytes::new(); n], Traffic::default());
    for (joined, bytes) in done.await?.into_iter().flatten() {
        split(&reads, &joined.members, &joined.range, &bytes, &mut out)?;
        stats += joined.stats(&reads);
    }
    Ok((out, stats))
}

type Together = Vec<(Joined, Bytes)>;

fn read_joined(root: &Root, group: Vec<Joined>, batch: &Arc<Batch<Together>>) -> Result<Together> {
    let Some(first) = group.first() else {
        return Ok(Vec::new());
    };
    let input = Input::open(root, &first.name)?;
    let mut out = Vec::with_capacity(group.len());
    for j in group {
        if batch.is_stopped() {
            break;
        }
        let bytes = input.read_bytes(&j.range)?;
        out.push((j, bytes));
    }
    Ok(out)
}

pub(super) async fn read_into(
    root: Root,
    reads: Vec<RecordRead>,
    progress: Progress,
) -> Result<Traffic> {
    let total: u64 = reads.iter().map(weight).fold(0, u64::saturating_add);
    let Split {
        reads: mut all,
        cut,
    } = split_large(reads, piece(total, pool::width()))?;
    let stats = pool::run_if_long(total <= 2 * SHORT, move |batch| {
        all.sort_by(|a, b| (&a.name, a.record.start).cmp(&(&b.name, b.record.start)));
        let same = |a: &RecordRead, b: &RecordRead| a.name == b.name;
        for (_, group) in tasks(all, same, weight) {
            let (root, progress) = (root.clone(), progress.clone());
            batch.spawn(Priority::Main, move |batch| {
                read_group(&root, group, &progress, batch)
            });
        }
        Ok(Traffic::default())
    });
    Ok(stats
        .await
        .map_err(|e| name_whole(e, &cut))?
        .into_iter()
        .sum())
}

/// Bytes that a read moves, roughly, with what it costs beside.
fn weight(g: &RecordRead) -> u64 {
    g.weight().saturating_add(EACH)
}

/// Reads records of one file, in the order of the file.
fn read_group(
    root: &Root,
    group: Vec<RecordRead>,
    progress: &Progress,
    batch: &Arc<Batch<Traffic>>,
) -> Result<Traffic> {
    let Some(first) = group.first() else {
        return Ok(Traffic::default());
    };
    let input = Input::open(root, &first.name)?;

    // All reads are checked against the file's length before the first byte moves.
    let mut prepared = Vec::with_capacity(group.len());
    for read in group {
        input.expect(&read.record)?;
        prepared.push(Prepared::new(read)?);
    }
    let mut group = prepared.into_iter().peekable();
    let mut reader = Reader {
        input,
        progress,
        batch,
        stats: Traffic::default(),
    };

    // Small records that lie close together cost one request, although the gaps between them are read too.
    while let Some(p) = group.next() {
        if batch.is_stopped() {
            break;
        }
        let mut near = vec![p];
        while let Some(next) = group.next_if(|next| joins(&near, next)) {
            near.push(next);
        }
        match near.pop() {
            Some(only) if near.is_empty() => reader.one(only)?,
            Some(last) => {
                near.push(last);
                reader.together(near)?;
            }
            None => {}
        }
    }
    Ok(reader.stats)
}

/// Whether `next` is better read in one go with small records before it.
fn joins(near: &[Prepared], next: &Prepared) -> bool {
    let (Some(first), Some(last)) = (near.first(), near.last()) else {
        return false;
    };
    let (start, end, span) = (first.span().start, last.span().end, next.span());
    let dense = |p: &Prepared| {
        let hull = p.hull.end - p.hull.start;
        hull <= SMALL && (p.check.is_some() || hull <= p.needed.saturating_add(GAP))
    };
    dense(last)
        && dense(next)
        && span.start >= end
        && span.start - end <= GAP
        && span.end - start <= BLOCK as u64
}

struct Reader<'a> {
    input: Input,
    progress: &'a Progress,
    batch: &'a Arc<Batch<Traffic>>,
    stats: Traffic,
}

impl Reader<'_> {
    fn together(&mut self, near: Vec<Prepared>) -> Result<()> {
        let start = near.first().map_or(0, |p| p.span().start);
        let end = near.last().map_or(start, |p| p.span().end);
        with_block(|memory| {
            let bytes = &mut memory[..(end - start) as usize];
            self.input.read(start, bytes)?;
            let mut inside = 0;
            for mut p in near {
                let (span, at) = (p.span(), p.hull.start);
                p.feed(
                    at,
                    &bytes[(span.start - start) as usize..(span.end - start) as usize],
                );
                inside += span.end - span.start;
                self.landed(p.needed);
                p.finish()?;
            }
            self.stats.requests += 1;
            self.stats.bytes += inside;
            self.stats.beside += end - start - inside;
            Ok(())
        })
    }

    fn landed(&mut self, bytes: u64) {
        self.stats.needed += bytes;
        if bytes > 0 {
            self.progress.add(bytes);
        }
    }

    fn one(&mut self, mut p: Prepared) -> Result<()> {
        if p.order != Order::Mixed && p.run() >= DIRECT {
            with_block(|memory| self.direct(&mut p, memory))?;
        } else {
            self.blocks(&mut p)?;
        }
        // When called off, the record is not complete.
        if self.batch.is_stopped() {
            Ok(())
        } else {
            p.finish()
        }
    }

    /// Short runs: blocks that are copied from.
    fn blocks(&mut self, p: &mut Prepared) -> Result<()> {
        let mut told = 0;
        while let Some(block) = p.next_block(GAP, BLOCK as u64) {
            if self.batch.is_stopped() {
                return Ok(());
            }
            let (at, len) = (p.record.start + block.start, block.end - block.start);
            let mut read = |memory: &mut [u8]| {
                self.input.read(at, memory)?;
                p.feed(block.start, memory);
                Ok(())
            };
            if len <= BLOCK as u64 {
                with_block(|memory| read(&mut memory[..len as usize]))?;
            } else {
                // Elements that share bytes: all in one block, whose size was limited when it was planned.
                read(&mut vec![0; len as usize])?;
            }
            self.stats.requests += 1;
            self.stats.bytes += len;
            let now = len.min(p.needed - told);
            told += now;
            self.landed(now);
        }
        self.landed(p.needed - told);
        Ok(())
    }

    /// Long runs: read into place, several in one call; what lies between them goes into `spare`.
    fn direct(&mut self, p: &mut Prepared, spare: &mut [u8]) -> Result<()> {
        // Parts that take turns are taken together: so many of their runs fit into one call, since no byte is wanted twice.
        let turn = p.run().saturating_mul(MAX_VECTORS as u64 - 1);
        let Prepared {
            record,
            parts,
            check,
            hull,
            order,
            ..
        } = p;

        // A checksum needs every byte in order, so then each gap is read, however long, and calls are shorter.
        let (gap, stride) = match check {
            Some(_) => (u64::MAX, BLOCK),
            None => (GAP, STRIDE),
        };
        let (mut at, mut filled) = (hull.start, 0);
        loop {
            let mut runs: Vec<(u64, &mut [u8])> = Vec::new();

            // One call of the system takes a limited number of buffers, so the runs come in portions.
            if *order == Order::Woven {
                let first = parts.iter().filter_map(|p| p.copy.next_at()).min();
                let end = first.map_or(0, |first| first.saturating_add(turn));
                for p in parts.iter_mut() {
                    runs.append(&mut p.copy.take_runs_before(end, usize::MAX));
                }
                runs.sort_by_key(|(start, _)| *start);
            } else {
                for p in &mut parts[filled..] {
                    runs.append(&mut p.copy.take_runs(MAX_VECTORS - runs.len()));
                    if runs.len() == MAX_VECTORS {
                        break;
                    }
                    filled += 1;
                }
            }
            let last = runs.is_empty();
            let mut runs = runs.into_iter();
            let mut next = runs.next();
            loop {
                let (mut call, mut free) = (Call::new(stride), &mut *spare);
                while call.has_room() {
                    // Behind the last run only a checksum still needs the rest of the hull.
                    let start = match &next {
                        Some((start, _)) => *start,
                        None if last && check.is_some() => hull.end,
                        None => break,
                    };
                    let skip = start - at;

                    // A gap before a call costs nothing without a checksum: the call just begins later.
                    if skip > 0 && call.is_empty() && check.is_none() {
                        at = start;
                    } else if skip > 0 {
                        // All gaps of a call go into the same spare memory, one behind the other. Once it is full, the
                        // call ends.
                        let n = call.room(skip).min(free.len());
                        if skip > gap || n == 0 {
                            break;
                        }
                        let (fill, rest) = free.split_at_mut(n);
                        free = rest;
                        at = call.push(at, fill);
                    } else if let Some((_, run)) = next.take() {
                        let (fill, rest) = run.split_at_mut(call.room(run.len() as u64));
                        call.landed += fill.len() as u64;
                        at = call.push(at, fill);
                        next = if rest.is_empty() {
                            runs.next()
                        } else {
                            Some((at, rest))
                        };
                    } else {
                        break;
                    }
                }
                if call.is_empty() {
                    break;
                }

                self.input
                    .read_vectored(record.start + call.at, &mut call.buffers)?;
                if let Some(check) = check.as_mut() {
                    call.buffers.iter().for_each(|b| check.update(b));
                }
                self.stats.requests += 1;
                self.stats.bytes += call.len as u64;
                self.landed(call.landed);
                if self.batch.is_stopped() {
                    return Ok(());
                }
            }
            if last {
                return Ok(());
            }
        }
    }
}

/// Buffers that one call of the system fills.
#[derive(Default)]
struct Call<'a> {
    at: u64,
    buffers: Vec<&'a mut [u8]>,
    len: usize,
    stride: usize,
    landed: u64,
}

impl<'a> Call<'a> {
    fn new(stride: usize) -> Self {
        Self {
            stride,
            ..Self::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    fn has_room(&self) -> bool {
        self.len < self.stride && self.buffers.len() < MAX_VECTORS
    }

    /// As many of `want` bytes as fit.
    fn room(&self, want: u64) -> usize {
        want.min((self.stride - self.len) as u64) as usize
    }

    /// Adds a buffer for the bytes from `at` on, and says where the next one starts.
    fn push(&mut self, at: u64, buffer: &'a mut [u8]) -> u64 {
        if self.buffers.is_empty() {
            self.at = at;
        }
        let n = buffer.len();
        self.len += n;
        self.buffers.push(buffer);
        at + n as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use reshard_model::Layout;

    /// Work of so many bytes, in files by number.
    fn cut(work: &[(u32, u64)]) -> Vec<(u64, usize)> {
        let cut = tasks(work.to_vec(), |a, b| a.0 == b.0, |(_, bytes)| *bytes);
        cut.into_iter()
            .map(|(bytes, group)| (bytes, group.len()))
            .collect()
    }

    #[test]
    fn a_share_is_half_of_what_a_thread_has_to_do() {
        assert_eq!((share(0, 3), share(6000, 3), share(5, 3)), (0, 1000, 0));
    }

    #[test]
    fn a_tensor_of_a_few_dozen_megabytes_is_cut_for_all_threads() {
        const MIB: u64 = 1 << 20;
        // Alone, it is worth two pieces for each of two threads.
        assert_eq!(piece(64 * MIB, 2), 16 * MIB);
        assert_eq!(piece(43 * MIB, 2), 16 * MIB);
        // Among many others it stays whole, because the others keep the threads busy.
        assert_eq!(piece(4096 * MIB, 2), 1024 * MIB);
    }

    #[test]
    fn work_is_cut_into_tasks_that_are_neither_tiny_nor_late() {
        // A group is closed when it has the least that a task has.
        assert_eq!(cut(&[(0, SHORT); 3]), [(SHORT, 1); 3]);
        assert_eq!(
            cut(&[(0, SHORT - 1); 3]),
            [(2 * (SHORT - 1), 2), (SHORT - 1, 1)]
        );
        assert_eq!(
            cut(&[(0, 1), (1, 1), (1, 1), (0, 1)]),
            [(1, 1), (2, 2), (1, 1)]
        );
        // Much work: no task has less than 4 MiB.
        let much = cut(&[(0, TASK / 2); 1000]);
        assert!(
            much.len() == 500 && much.iter().all(|task| *task == (TASK, 2)),
            "{much:?}"
        );
        // Large ones first, the largest before all; the others stay in order.
        let sizes = [TASK, LARGE, TASK + 1, LARGE + 1, LARGE - 1];
        let work: Vec<_> = (0..).zip(sizes).collect();
        let order: Vec<u64> = cut(&work).into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(order, [LARGE + 1, LARGE, TASK, TASK + 1, LARGE - 1]);
        assert!(
            cut(&[(0, u64::MAX), (1, u64::MAX)]).len() == 2,
            "sums do not overflow"
        );
    }

    #[test]
    fn a_read_weighs_what_it_moves_and_something_beside() {
        let (_target, into) = crate::testkit::Target::bytes(100);
        let part = Part {
            source: Layout::contiguous(1, &[100]).unwrap(),
            into,
        };
        let read = RecordRead {
            name: Name::new("a").unwrap(),
            record: 0..1000,
            parts: vec![part],
            check: None,
        };
        assert_eq!(weight(&read), 100 + EACH);
    }

    #[test]
    fn a_call_has_room_for_a_stride_and_so_many_buffers() {
        let mut bytes = vec![0u8; 3000];
        let mut call = Call::new(2000);
        let (first, rest) = bytes.split_at_mut(1500);
        assert!(call.has_room() && call.room(5000) == 2000 && call.push(7, first) == 1507);
        assert!(call.has_room() && call.room(5000) == 500 && call.room(3) == 3);
        assert_eq!(
            (call.push(1507, &mut rest[..500]), call.at, call.has_room()),
            (2007, 7, false)
        );

        let mut call = Call::new(1 << 20);
        for (i, byte) in bytes[..MAX_VECTORS].chunks_mut(1).enumerate() {
            assert!(call.has_room());
            call.push(i as u64, byte);
        }
        assert!(!call.has_room());
    }
}
