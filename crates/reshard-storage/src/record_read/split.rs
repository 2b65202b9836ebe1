//! Cuts reads that would take too long on one thread, or with one request at a time.

use crate::{Name, Part, RecordRead, Result, StorageError};
use reshard_model::{Layout, Region};
use std::{cmp::Reverse, ops::Range};

/// Cuts reads so that none of them moves many more bytes than `share`, as far as they can be cut.
pub(crate) fn split(reads: Vec<RecordRead>, share: u64) -> Result<Split> {
    let mut out = Split {
        reads: Vec::with_capacity(reads.len()),
        cut: Vec::new(),
    };
    for read in reads {
        if read.weight() <= share {
            out.reads.push(read);
            continue;
        }
        let whole = (read.name.clone(), read.record.clone());
        let (mut left, before) = (vec![read], out.reads.len());
        while let Some(read) = left.pop() {
            let (first, second) = match read.weight() > share {
                true => halve(read)?,
                false => (read, None),
            };
            match second {
                None => out.reads.push(first),
                Some(second) => left.extend([second, first]),
            }
        }
        if out.reads.len() > before + 1 {
            out.cut.push(whole);
        }
    }
    Ok(out)
}

/// Reads, some of which are parts of the original ones.
pub(crate) struct Split {
    pub(crate) reads: Vec<RecordRead>,
    /// The records that were cut.
    pub(crate) cut: Vec<(Name, Range<u64>)>,
}

/// Makes the error of a check name the whole record, even if the record was cut.
pub(crate) fn name_whole(e: StorageError, cut: &[(Name, Range<u64>)]) -> StorageError {
    let StorageError::Check {
        name,
        range,
        source,
    } = e
    else {
        return e;
    };
    let whole = cut
        .iter()
        .find(|(n, r)| *n == name && r.start <= range.start && range.end <= r.end);
    let range = whole.map_or(range, |(_, whole)| whole.clone());
    StorageError::Check {
        name,
        range,
        source,
    }
}

impl RecordRead {
    /// The number of bytes that it moves, roughly.
    pub(crate) fn weight(&self) -> u64 {
        match self.check {
            Some(_) => self.record.end.saturating_sub(self.record.start),
            None => wanted(&self.parts),
        }
    }
}

/// The number of bytes that parts want.
fn wanted(parts: &[Part]) -> u64 {
    let bytes = parts.iter().map(|p| p.into.bytes());
    bytes.fold(0, u64::saturating_add)
}

/// Where to cut.
struct Place {
    /// Byte of the record.
    at: u64,
    /// What becomes of each part.
    sides: Vec<Side>,
}

#[derive(Clone, Copy)]
enum Side {
    /// It goes to the first half.
    First,
    /// It goes to the second half.
    Second,
    /// It is cut itself, at this index of this axis.
    Both(usize, u64),
}

/// Cuts a read at about the middle of its wanted bytes, and returns both halves. It does not cut if no byte is found at which all parts can be cut, or if a
/// single check has to see all bytes.
fn halve(mut read: RecordRead) -> Result<(RecordRead, Option<RecordRead>)> {
    // Finds the cut first, then asks the check, because a check that can't be split keeps the read whole.
    read.parts.retain(|p| p.into.bytes() > 0);
    read.parts.sort_by_key(|p| p.source.hull().start);
    let Some(place) = place(&read.parts) else {
        return Ok((read, None));
    };
    let rest = match &mut read.check {
        None => None,
        Some(check) => match check.split(place.at) {
            Some(rest) => Some(rest),
            None => return Ok((read, None)),
        },
    };
    // Distributes the parts. Of one that crosses the cut, source and destination are cut at the same element.
    let RecordRead {
        name,
        record,
        parts,
        check,
    } = read;
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    for (part, side) in parts.into_iter().zip(place.sides) {
        match side {
            Side::First => before.push(part),
            Side::Second => behind.push(part),
            Side::Both(axis, index) => {
                let (low, high) = halves(&part.source, axis, index);
                let fit = |source| StorageError::Region {
                    name: name.clone(),
                    range: record.clone(),
                    source,
                };
                let (first, second) = part.into.split(axis, index).map_err(fit)?;
                before.push(Part {
                    source: low,
                    into: first,
                });
                behind.push(Part {
                    source: high,
                    into: second,
                });
            }
        }
    }
    // The second half has a record of its own, so its sources count from the cut.
    for p in &mut behind {
        // `place` has chosen the cut so that all of them start at or after it, at a whole element.
        let start = p.source.start() - place.at / p.source.item().max(1);
        let moved = Layout::new(
            p.source.item(),
            start,
            p.source.shape().clone(),
            p.source.strides().clone(),
        );
        p.source = moved.ok_or_else(|| StorageError::Internal {
            what: format!("{name}: a cut moved a part"),
        })?;
    }
    let middle = record.start + place.at;
    let first = RecordRead {
        name: name.clone(),
        record: record.start..middle,
        parts: before,
        check,
    };
    let second = RecordRead {
        name,
        record: middle..record.end,
        parts: behind,
        check: rest,
    };
    Ok((first, Some(second)))
}

fn halves(source: &Layout, axis: usize, index: u64) -> (Layout, Layout) {
    let (mut low, mut high) = (Region::whole(source.shape()), Region::whole(source.shape()));
    low.lengths[axis] = index;
    high.offsets[axis] = index;
    high.lengths[axis] -= index;
    (source.narrow(&low), source.narrow(&high))
}

/// Finds the cut. Each of the `parts` wants at least one element, and they are sorted. `None` if they can't be cut.
fn place(parts: &[Part]) -> Option<Place> {
    let item = parts.first()?.source.item();
    if item == 0
        || parts
            .iter()
            .any(|p| p.source.item() != item || !p.source.is_injective())
    {
        return None;
    }
    let apart = parts
        .windows(2)
        .all(|w| w[0].source.hull().end <= w[1].source.hull().start);
    if !apart {
        return across(parts);
    }
    let total = wanted(parts);
    let sides = |within: Option<(usize, u64)>, first: usize| {
        let side = |i: usize| match within {
            _ if i < first => Side::First,
            Some((axis, index)) if i == first => Side::Both(axis, index),
            _ => Side::Second,
        };
        (0..parts.len()).map(side).collect()
    };
    let mut before = 0;
    for (first, p) in parts.iter().enumerate() {
        let bytes = p.into.bytes();
        // A cut between two parts is the cheapest. It is taken if both sides get at least about a quarter.
        if first > 0 && before >= total / 4 {
            return Some(Place {
                at: p.source.hull().start,
                sides: sides(None, first),
            });
        }
        if before + bytes > total / 4 * 3 {
            let (axis, index) = cut(&p.source, total / 2 - before, bytes)?;
            let at = halves(&p.source, axis, index).1.hull().start;
            return Some(Place {
                at,
                sides: sides(Some((axis, index)), first),
            });
        }
        before += bytes;
    }
    None
}

/// Finds the cut of parts that lie among each other, such as columns of the same rows: in the middle of the largest; of equal ones it is
/// the first, so that columns are cut between rows.
fn across(parts: &[Part]) -> Option<Place> {
    let largest = parts.iter().min_by_key(|p| Reverse(p.into.bytes()))?;
    let bytes = largest.into.bytes();
    let (axis, index) = cut(&largest.source, bytes / 2, bytes)?;
    let at = halves(&largest.source, axis, index).1.hull().start;
    let sides = parts.iter().map(|p| side(&p.source, at));
    Some(Place {
        at,
        sides: sides.collect::<Option<_>>()?,
    })
}

/// What becomes of a part at a cut. `None` if it can't be cut there.
fn side(source: &Layout, at: u64) -> Option<Side> {
    let hull = source.hull();
    if hull.end <= at {
        return Some(Side::First);
    }
    if hull.start >= at {
        return Some(Side::Second);
    }
    let axis = longest(source)?;
    let step = source.strides()[axis].saturating_mul(source.item());
    let index = (at - hull.start).div_ceil(step.max(1));
    let inside = (1..source.shape()[axis]).contains(&index);
    let (low, high) = inside.then(|| halves(source, axis, index))?;
    (low.hull().end <= at && high.hull().start >= at).then_some(Side::Both(axis, index))
}

/// The axis along which elements lie farthest apart.
fn longest(source: &Layout) -> Option<usize> {
    let axes = (0..source.shape().len()).filter(|&a| source.shape()[a] > 1);
    axes.max_by_key(|&a| source.strides()[a])
}

/// The axis and index at which to cut a part, so that about `want` of its `bytes` come before the cut, and the two halves do not
/// interleave.
fn cut(source: &Layout, want: u64, bytes: u64) -> Option<(usize, u64)> {
    let axis = longest(source)?;
    let extent = source.shape()[axis];
    let index = (u128::from(extent) * u128::from(want) / u128::from(bytes.max(1))) as u64;
    let index = index.clamp(1, extent - 1);
    let (low, high) = halves(source, axis, index);
    (low.hull().end <= high.hull().start).then_some((axis, index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checksum, record_read::plan::Prepared};
    use proptest::prelude::*;
    use reshard_model::{BoxError, DType, Dims, LentBuffer, Tensor};
    use std::sync::{Arc, Mutex};

    fn name() -> Name {
        Name::new("a").unwrap()
    }

    type Pieces = Vec<(u64, Vec<u8>)>;

    /// Remembers which bytes of a record were seen, and what they were.
    struct Seen {
        at: u64,
        bytes: Vec<u8>,
        all: Arc<Mutex<Pieces>>,
    }

    impl Checksum for Seen {
        fn update(&mut self, bytes: &[u8]) {
            self.bytes.extend_from_slice(bytes);
        }

        fn finish(self: Box<Self>) -> std::result::Result<(), BoxError> {
            self.all.lock().unwrap().push((self.at, self.bytes));
            Ok(())
        }

        fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
            Some(Box::new(Self {
                at: self.at + at,
                bytes: Vec::new(),
                all: Arc::clone(&self.all),
            }))
        }
    }

    /// Reads the file as a store does.
    fn copy_all(file: &[u8], reads: Vec<RecordRead>) {
        for read in reads {
            let mut p = Prepared::new(read).unwrap();
            while let Some(block) = p.next_block(3, 7) {
                let start = p.record.start;
                p.feed(
                    block.start,
                    &file[(start + block.start) as usize..(start + block.end) as usize],
                );
            }
            p.finish().unwrap();
        }
    }

    /// A layout of `shape` with axes in some order, and two regions of it, along any axis.
    fn wanted() -> impl Strategy<Value = (Layout, Vec<Region>)> {
        let shape = prop::collection::vec(1u64..7, 1..4);
        (
            shape,
            Just(vec![0usize, 1, 2]).prop_shuffle(),
            0u64..7,
            0u64..3,
            0usize..3,
        )
            .prop_map(|(shape, order, cut, pad, axis)| {
                let mut strides = Dims::zeros(shape.len());
                let mut step = 1;
                for &a in order.iter().rev().filter(|&&a| a < shape.len()) {
                    strides[a] = step;
                    step *= shape[a] + pad;
                }
                let layout = Layout::new(2, 1, shape.as_slice().into(), strides).unwrap();
                let (mut a, mut b) = (Region::whole(&shape), Region::whole(&shape));
                let axis = axis % shape.len();
                a.lengths[axis] = cut % (shape[axis] + 1);
                b.offsets[axis] = a.lengths[axis];
                b.lengths[axis] -= a.lengths[axis];
                (layout, vec![a, b])
            })
    }

    fn lent(
        layout: &Layout,
        regions: &[Region],
        check: Option<Box<dyn Checksum>>,
    ) -> (Arc<LentBuffer>, Vec<reshard_model::LentView>, RecordRead) {
        let tensor = Tensor::zeros("t", DType::Int16, layout.shape()).unwrap();
        let (lent, views) = LentBuffer::new("t", vec![tensor]).unwrap();
        let wants: Vec<_> = regions.iter().map(|r| (&views[0], r.clone())).collect();
        let lent_regions = lent.regions_mut(&wants).unwrap();
        let parts = regions.iter().zip(lent_regions).map(|(r, into)| Part {
            source: layout.narrow(r),
            into,
        });
        let parts = parts.collect();
        let read = RecordRead {
            name: name(),
            record: 5..5 + layout.hull().end + 3,
            parts,
            check,
        };
        (lent, views, read)
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_is_cut_reads_what_it_read_whole((layout, regions) in wanted(), share in 1u64..60, checked: bool) {
            let file: Vec<u8> = (0..layout.hull().end + 20).map(|i| (i * 37 + i / 7) as u8).collect();
            let run = |share: u64| {
                let all = Arc::new(Mutex::new(Vec::new()));
                let seen = Seen { at: 0, bytes: Vec::new(), all: Arc::clone(&all) };
                let check: Option<Box<dyn Checksum>> = if checked { Some(Box::new(seen)) } else { None };
                let (lent, views, read) = lent(&layout, &regions, check);
                let (record, weight) = (read.record.clone(), read.weight());
                let Split { reads, cut } = split(vec![read], share).unwrap();
                let n = reads.len();
                let weights: u64 = reads.iter().map(RecordRead::weight).sum();
                assert_eq!(weights, weight);
                assert_eq!(cut, if n > 1 { vec![(name(), record)] } else { vec![] });
                copy_all(&file, reads);
                let mut all = std::mem::take(&mut *all.lock().unwrap());
                all.sort();
                let starts: Vec<u64> = all.iter().map(|(at, _)| *at).collect();
                let ends = all.iter().scan(0, |end, (_, b)| { *end += b.len() as u64; Some(*end) });
                assert!(starts.iter().skip(1).copied().eq(ends.take(starts.len().saturating_sub(1))));
                let seen: Vec<u8> = all.into_iter().flat_map(|(_, b)| b).collect();
                let tensor = lent.reclaim(views).unwrap().remove(0);
                (n, seen, tensor.to_bytes().to_vec())
            };
            let (one, seen, bytes) = run(u64::MAX);
            assert_eq!(one, 1);
            let (n, seen_in_parts, bytes_in_parts) = run(share);
            prop_assert_eq!(bytes_in_parts, bytes);
            prop_assert_eq!(&seen_in_parts, &seen);
            prop_assert!(!checked || seen == file[5..8 + layout.hull().end as usize]);
            // What lies in order can be cut as finely as there are elements. Columns can be cut between rows only.
            let hulls: Vec<_> = regions.iter().map(|r| layout.narrow(r).hull()).collect();
            let apart = hulls.iter().any(|h| h.is_empty()) || hulls[0].end <= hulls[1].start;
            if layout.is_contiguous() && apart {
                let elements = layout.elements();
                prop_assert!(n as u64 >= (elements * 2).div_ceil(share).min(elements).div_ceil(2), "{n}");
            }
        }
    }

    /// Columns of the same rows are cut between rows, and so are regions that want the same rows.
    #[test]
    fn parts_among_each_other_are_cut_between_rows() {
        let layout = Layout::contiguous(2, &[16, 8]).unwrap();
        let columns = [Region::new([0, 0], [16, 4]), Region::new([0, 4], [16, 4])];
        let (_, _, read) = lent(&layout, &columns, None);
        let reads = split(vec![read], 64).unwrap().reads;
        let weights: Vec<u64> = reads.iter().map(RecordRead::weight).collect();
        assert_eq!(weights, [64; 4]);
        assert!(reads.iter().all(|read| read.parts.len() == 2));

        let (_, _, mut read) = lent(&layout, &[Region::whole(&[16, 8])], None);
        let (_, _, other) = lent(&layout, &[Region::whole(&[16, 8])], None);
        read.parts.extend(other.parts);
        let reads = split(vec![read], 128).unwrap().reads;
        let weights: Vec<u64> = reads.iter().map(RecordRead::weight).collect();
        assert_eq!(weights, [128; 4]);
    }

    #[test]
    fn a_check_that_has_to_see_all_keeps_its_record_whole() {
        struct Whole;
        impl Checksum for Whole {
            fn update(&mut self, _: &[u8]) {}
            fn finish(self: Box<Self>) -> std::result::Result<(), BoxError> {
                Ok(())
            }
        }
        let layout = Layout::contiguous(2, &[100]).unwrap();
        let (_, _, read) = lent(&layout, &[Region::whole(&[100])], Some(Box::new(Whole)));
        assert_eq!(split(vec![read], 10).unwrap().reads.len(), 1);
    }

    #[test]
    fn an_error_names_the_record_that_was_cut() {
        let wrong = |range| StorageError::Check {
            name: name(),
            range,
            source: "wrong".into(),
        };
        let cut = [(name(), 100..200)];
        assert_eq!(
            name_whole(wrong(150..200), &cut).to_string(),
            "a, bytes 100..200: wrong"
        );
        assert_eq!(
            name_whole(wrong(50..150), &cut).to_string(),
            "a, bytes 50..150: wrong"
        );
    }
}
