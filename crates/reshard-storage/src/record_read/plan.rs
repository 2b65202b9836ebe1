//! Plans which blocks of a record are read.

use crate::{Checksum, Name, Part, RecordRead, Result, StorageError, Traffic};
use reshard_model::{Layout, Segments, StridedCopy};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    ops::Range,
};

/// If elements share bytes, the record is read in one block. This is the largest such block.
const MAX_BLOCK: u64 = 64 << 20;

/// A read whose parts are checked against the record and their regions.
pub(crate) struct Prepared {
    pub(crate) name: Name,
    pub(crate) record: Range<u64>,
    /// The parts that want at least one element, sorted by their start.
    pub(crate) parts: Vec<CheckedPart>,
    pub(crate) check: Option<Box<dyn Checksum>>,
    /// The bytes that go into regions.
    pub(crate) needed: u64,
    /// The range that is read at most, relative to the start of the record.
    pub(crate) hull: Range<u64>,
    /// How the wanted bytes lie.
    pub(crate) order: Order,
    /// Whether the whole hull is read in one block, which has to be fed at once.
    pub(crate) single: bool,
    /// Made at the first call of `next_block`.
    wanted: Option<Wanted>,
}

/// How the bytes that parts want lie in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// They ascend within each part, and from part to part. So they can be read directly into the regions.
    Ascending,
    /// They ascend within each part, and no byte is wanted twice, but parts take turns, as columns of rows do. So they can be read
    /// directly into the regions, run by run.
    Woven,
    /// They can only be copied from blocks.
    Mixed,
}

/// A part that waits for its bytes.
pub(crate) struct CheckedPart {
    hull: Range<u64>,
    source: Layout,
    pub(crate) copy: StridedCopy,
}

impl Prepared {
    pub(crate) fn new(read: RecordRead) -> Result<Self> {
        let RecordRead {
            name,
            record,
            parts: given,
            check,
        } = read;
        let Some(len) = record.end.checked_sub(record.start) else {
            let what = format!(
                "{name}: record {}..{} ends before it starts",
                record.start, record.end
            );
            return Err(StorageError::invalid(what));
        };
        // Checks each part against its region and the record, before any byte is read.
        let mut parts: Vec<CheckedPart> = Vec::with_capacity(given.len());
        let mut needed = 0u64;
        for Part { source, into } in given {
            let bytes = into.bytes();
            let fit = |e| StorageError::Region {
                name: name.clone(),
                range: record.clone(),
                source: e,
            };
            let copy = into.strided_copy(&source).map_err(fit)?;
            if bytes == 0 {
                continue;
            }
            needed = needed.saturating_add(bytes);
            let hull = source.hull();
            if hull.end > len {
                return Err(StorageError::Record {
                    name,
                    range: record,
                    need: hull.end,
                });
            }
            parts.push(CheckedPart { hull, source, copy });
        }
        // How the wanted bytes lie decides how they can be read: a check needs the whole record; elements that share bytes need
        // one block, because each byte is read only once.
        parts.sort_by_key(|p| p.hull.start);
        let injective = parts.iter().all(|p| p.source.is_injective());
        let disjoint = parts.windows(2).all(|w| w[0].hull.end <= w[1].hull.start);
        let hull = match check {
            Some(_) => 0..len,
            None => {
                parts.first().map_or(0, |p| p.hull.start)
                    ..parts.iter().map(|p| p.hull.end).max().unwrap_or(0)
            }
        };
        if !injective && hull.end - hull.start > MAX_BLOCK {
            let what = format!(
                "{name}: reading {} bytes at {}",
                hull.end - hull.start,
                record.start
            );
            let why = format!(
                "its elements share bytes, and at most {MAX_BLOCK} bytes of such a tensor are read"
            );
            return Err(StorageError::unsupported(what, why));
        }
        let twins = parts.iter().any(|p| !p.copy.has_runs());
        let order = match () {
            () if !injective || twins => Order::Mixed,
            () if disjoint => Order::Ascending,
            () if are_woven(&parts) => Order::Woven,
            () => Order::Mixed,
        };
        Ok(Self {
            name,
            record,
            parts,
            check,
            needed,
            hull,
            order,
            single: !injective,
            wanted: None,
        })
    }

    /// The shortest run that is contiguous in the record and in memory, in bytes.
    pub(crate) fn run(&self) -> u64 {
        self.parts
            .iter()
            .map(|p| p.copy.run())
            .min()
            .unwrap_or(u64::MAX)
    }

    /// The range of the file that is read at most.
    pub(crate) fn span(&self) -> Range<u64> {
        self.record.start + self.hull.start..self.record.start + self.hull.end
    }

    /// The next block to read, relative to the start of the record. It has at most `max` bytes, unless everything has to be one
    /// block.
    pub(crate) fn next_block(&mut self, gap: u64, max: u64) -> Option<Range<u64>> {
        let wanted = self.wanted.get_or_insert_with(|| Wanted {
            runs: Runs::of(&self.parts),
            whole: self.single || self.check.is_some(),
            hull: self.hull.clone(),
        });
        wanted.next_block(gap, if self.single { u64::MAX } else { max })
    }

    /// Takes a block, which starts at byte `at` of the record. Blocks come in order.
    pub(crate) fn feed(&mut self, at: u64, bytes: &[u8]) {
        if let Some(check) = &mut self.check {
            check.update(bytes);
        }
        for p in &mut self.parts {
            p.copy.feed(at, bytes);
        }
    }

    /// Finishes the read: checks that everything was read, and that the check is satisfied.
    pub(crate) fn finish(self) -> Result<()> {
        if let Some(missing) = self.parts.iter().find_map(|p| p.copy.next_at()) {
            let what = format!(
                "{}: byte {missing} of the record at {} was not read",
                self.name, self.record.start
            );
            return Err(StorageError::Internal { what });
        }
        match self.check.map(Checksum::finish) {
            Some(Err(source)) => Err(StorageError::Check {
                name: self.name,
                range: self.record,
                source,
            }),
            _ => Ok(()),
        }
    }
}

/// Parts are not looked at for turns if their runs are shorter, since they will be copied from blocks anyway.
const WOVEN: u64 = 512;

/// Whether parts take turns, and none wants a byte of another. Each part is injective.
fn are_woven(parts: &[CheckedPart]) -> bool {
    if parts.iter().any(|p| p.copy.run() < WOVEN) {
        return false;
    }
    let (mut runs, mut end) = (Runs::of(parts), 0);
    while let Some(run) = runs.peek() {
        if run.start < end {
            return false;
        }
        end = run.end;
        runs.advance();
    }
    true
}

/// The runs of all parts, merged in the order of their starts.
struct Runs {
    segments: Vec<Segments>,
    /// The start of the next run of each segment list.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Runs {
    fn of(parts: &[CheckedPart]) -> Self {
        let segments = parts
            .iter()
            .map(|p| Segments::source_order(&p.source, &p.source));
        Self::new(segments.collect())
    }

    fn new(segments: Vec<Segments>) -> Self {
        let starts = segments.iter().enumerate();
        let next = starts
            .filter_map(|(i, s)| Some(Reverse((s.peek()?.0, i))))
            .collect();
        Self { segments, next }
    }

    fn peek(&self) -> Option<Range<u64>> {
        let &Reverse((start, i)) = self.next.peek()?;
        Some(start..start + self.segments[i].run())
    }

    fn advance(&mut self) {
        let Some(mut top) = self.next.peek_mut() else {
            return;
        };
        let segments = &mut self.segments[top.0.1];
        segments.next();
        match segments.peek() {
            Some((start, ..)) => top.0.0 = start,
            None => drop(PeekMut::pop(top)),
        }
    }
}

/// Makes the blocks that contain all wanted bytes. They are ascending and disjoint, and have no inner gap that is too long.
struct Wanted {
    runs: Runs,
    /// Whether the whole hull is wanted.
    whole: bool,
    hull: Range<u64>,
}

impl Wanted {
    fn next_block(&mut self, gap: u64, max: u64) -> Option<Range<u64>> {
        let max = max.max(1);
        if self.whole {
            let start = self.hull.start;
            self.hull.start = self.hull.end.min(start.saturating_add(max));
            return (start < self.hull.end).then_some(start..self.hull.start);
        }
        // Bytes of earlier blocks are not read again.
        let done = self.hull.start;
        let mut block: Option<Range<u64>> = None;
        // The block grows over short gaps, and ends at a long gap or at `max` bytes.
        while let Some(run) = self.runs.peek() {
            let (start, end) = (run.start.max(done), run.end);
            match &mut block {
                None if end <= done => {}
                None => block = Some(start..end),
                Some(b) if end <= b.end => {}
                Some(b) if start > b.end.saturating_add(gap) => break,
                Some(b) => b.end = end,
            }
            if let Some(b) = &mut block
                && b.end - b.start > max
            {
                b.end = b.start + max;
                break;
            }
            self.runs.advance();
        }
        if let Some(b) = &block {
            self.hull.start = b.end;
        }
        block
    }
}

/// Ranges of one file that are read together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) name: Name,
    pub(crate) range: Range<u64>,
    /// The ranges that lie in it, by position.
    pub(crate) members: Vec<usize>,
    /// The bytes in it that none of the ranges wants.
    pub(crate) between: u64,
}

impl Joined {
    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The statistics of reading it.
    pub(crate) fn stats(&self, reads: &[(Name, Range<u64>)]) -> Traffic {
        let asked = self
            .members
            .iter()
            .map(|&i| reads[i].1.end - reads[i].1.start);
        Traffic {
            needed: asked.fold(0, u64::saturating_add),
            bytes: self.bytes() - self.between,
            beside: self.between,
            requests: 1,
            ..Traffic::default()
        }
    }
}

/// Joins ranges that are at most `gap` bytes apart, as long as the joined range has at most `max` bytes.
pub(crate) fn join(reads: &[(Name, Range<u64>)], gap: u64, max: u64) -> Result<Vec<Joined>> {
    if let Some((name, r)) = reads.iter().find(|(_, r)| r.start > r.end) {
        return Err(StorageError::invalid(format!(
            "{name}: range {}..{} ends before it starts",
            r.start, r.end
        )));
    }
    let mut order: Vec<usize> = (0..reads.len()).collect();
    order.sort_by_key(|&i| (&reads[i].0, reads[i].1.start, reads[i].1.end));
    let mut out: Vec<Joined> = Vec::new();
    for i in order {
        let (name, r) = &reads[i];
        match out.last_mut() {
            Some(j)
                if j.name == *name
                    && r.start <= j.range.end.saturating_add(gap)
                    && r.end.max(j.range.end) - j.range.start
                        <= max.max(j.range.end - j.range.start) =>
            {
                j.between += r.start.saturating_sub(j.range.end);
                j.range.end = j.range.end.max(r.end);
                j.members.push(i);
            }
            _ => out.push(Joined {
                name: name.clone(),
                range: r.clone(),
                members: vec![i],
                between: 0,
            }),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(s: &str) -> Name {
        Name::new(s).unwrap()
    }

    fn wanted(layouts: &[Layout]) -> Wanted {
        let segments = layouts
            .iter()
            .map(|l| Segments::source_order(l, l))
            .collect();
        Wanted {
            runs: Runs::new(segments),
            whole: false,
            hull: 0..1 << 20,
        }
    }

    fn strided() -> impl Strategy<Value = Layout> {
        (0u64..40, 1u64..6, 1u64..6, 0u64..9, 0u64..50).prop_map(
            |(start, rows, cols, pad, pad2)| {
                let step = cols + pad;
                Layout::new(
                    2,
                    start,
                    [2, rows, cols].into(),
                    [rows * step + pad2, step, 1].into(),
                )
                .unwrap()
            },
        )
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn blocks_hold_all_that_is_wanted_and_no_byte_twice(
            layouts in prop::collection::vec(strided(), 0..4), gap in 0u64..20, max in 1u64..64,
        ) {
            let mut bytes: Vec<u64> = layouts.iter()
                .flat_map(|l| Segments::source_order(l, l).flat_map(|(s, _, n)| s..s + n)).collect();
            bytes.sort_unstable();
            bytes.dedup();
            let mut w = wanted(&layouts);
            let blocks: Vec<_> = std::iter::from_fn(|| w.next_block(gap, max)).collect();
            for b in &blocks {
                prop_assert!(b.start < b.end && b.end - b.start <= max);
                prop_assert!(bytes.binary_search(&b.start).is_ok() || blocks.iter().any(|c| c.end == b.start));
            }
            prop_assert!(blocks.windows(2).all(|w| w[0].end <= w[1].start));
            prop_assert!(bytes.iter().all(|b| blocks.iter().any(|r| r.contains(b))));
            if gap == 0 {
                prop_assert_eq!(blocks.iter().map(|b| b.end - b.start).sum::<u64>(), bytes.len() as u64);
            }
        }
    }

    #[test]
    fn near_ranges_of_one_file_are_joined() {
        let (a, b) = (name("a"), name("b"));
        let reads = [
            (b.clone(), 0..5),
            (a.clone(), 20..30),
            (a.clone(), 0..10),
            (a.clone(), 40..60),
            (a.clone(), 5..6),
        ];
        let joined = join(&reads, 10, 35).unwrap();
        let stats: Vec<_> = joined
            .iter()
            .map(|j| j.stats(&reads))
            .map(|s| (s.needed, s.bytes, s.beside))
            .collect();
        assert_eq!(stats, [(21, 20, 10), (20, 20, 0), (5, 5, 0)]);
        let got: Vec<_> = joined
            .into_iter()
            .map(|j| (j.name.to_string(), j.range, j.members))
            .collect();
        assert_eq!(
            got,
            [
                ("a".into(), 0..30, vec![2, 4, 1]),
                ("a".into(), 40..60, vec![3]),
                ("b".into(), 0..5, vec![0])
            ]
        );
    }
}
