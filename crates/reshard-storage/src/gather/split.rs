//! Cutting what one thread, or one request at a time, would take too long for.

use crate::{Gather, Name, Part, Result, StorageError};
use reshard_model::{Layout, Region};
use std::ops::Range;

/// Gathers of which none wants many more bytes than `share`, as far as they can be cut.
pub(crate) fn split(gathers: Vec<Gather>, share: u64) -> Result<Split> {
    let mut out = Split { gathers: Vec::with_capacity(gathers.len()), cut: Vec::new() };
    for gather in gathers {
        if gather.weight() <= share {
            out.gathers.push(gather);
            continue;
        }
        let whole = (gather.name.clone(), gather.record.clone());
        let (mut left, before) = (vec![gather], out.gathers.len());
        while let Some(gather) = left.pop() {
            match if gather.weight() > share { halve(gather)? } else { Halves::One(gather) } {
                Halves::One(gather) => out.gathers.push(gather),
                Halves::Two(first, second) => left.extend([*second, *first]),
            }
        }
        if out.gathers.len() > before + 1 {
            out.cut.push(whole);
        }
    }
    Ok(out)
}

/// Gathers, some of which are parts of others.
pub(crate) struct Split {
    pub(crate) gathers: Vec<Gather>,
    /// The records that were cut.
    pub(crate) cut: Vec<(Name, Range<u64>)>,
}

/// A check looks at a record: its error names that, also when the record was cut.
pub(crate) fn name_whole(e: StorageError, cut: &[(Name, Range<u64>)]) -> StorageError {
    let StorageError::Check { name, range, source } = e else { return e };
    let whole = cut.iter().find(|(n, r)| *n == name && r.start <= range.start && range.end <= r.end);
    let range = whole.map_or(range, |(_, whole)| whole.clone());
    StorageError::Check { name, range, source }
}

impl Gather {
    /// Bytes that it moves, roughly.
    pub(crate) fn weight(&self) -> u64 {
        match self.check {
            Some(_) => self.record.end.saturating_sub(self.record.start),
            None => self.parts.iter().map(|p| p.claim.bytes()).fold(0, u64::saturating_add),
        }
    }
}

enum Halves {
    One(Gather),
    Two(Box<Gather>, Box<Gather>),
}

/// Where to cut: parts before `first` stay whole, and so do those from `first + 1` on if that part is cut itself.
struct Place {
    /// Byte of the record.
    at: u64,
    first: usize,
    /// Axis and index at which the part `first` is cut.
    within: Option<(usize, u64)>,
}

/// Cuts a gather in about the middle of what it wants; not if its elements lie criss-cross, or if its check has to see all.
fn halve(mut gather: Gather) -> Result<Halves> {
    gather.parts.retain(|p| p.claim.bytes() > 0);
    gather.parts.sort_by_key(|p| p.source.hull().start);
    let Some(place) = place(&gather.parts) else { return Ok(Halves::One(gather)) };
    let rest = match &mut gather.check {
        None => None,
        Some(check) => match check.split(place.at) {
            Some(rest) => Some(rest),
            None => return Ok(Halves::One(gather)),
        },
    };
    let Gather { name, record, mut parts, check } = gather;
    let mut behind = parts.split_off(place.first);
    if let Some((axis, index)) = place.within {
        let whole = behind.remove(0);
        let (low, high) = halves(&whole.source, axis, index);
        let fit = |source| StorageError::Claim { name: name.clone(), range: record.clone(), source };
        let (first, second) = whole.claim.split(axis, index).map_err(fit)?;
        parts.push(Part { source: low, claim: first });
        behind.insert(0, Part { source: high, claim: second });
    }
    for p in &mut behind {
        // `place` saw to it that all start behind it, at a whole element.
        let start = p.source.start() - place.at / p.source.item().max(1);
        let moved = Layout::new(p.source.item(), start, p.source.shape().clone(), p.source.strides().clone());
        p.source =
            moved.ok_or_else(|| StorageError::Internal { what: format!("{name}: a cut moved a part") })?;
    }
    let middle = record.start + place.at;
    let first = Gather { name: name.clone(), record: record.start..middle, parts, check };
    let second = Gather { name, record: middle..record.end, parts: behind, check: rest };
    Ok(Halves::Two(Box::new(first), Box::new(second)))
}

fn halves(source: &Layout, axis: usize, index: u64) -> (Layout, Layout) {
    let (mut low, mut high) = (Region::whole(source.shape()), Region::whole(source.shape()));
    low.lengths[axis] = index;
    high.offsets[axis] = index;
    high.lengths[axis] -= index;
    (source.narrow(&low), source.narrow(&high))
}

/// `parts` want something each, and are sorted.
fn place(parts: &[Part]) -> Option<Place> {
    let item = parts.first()?.source.item();
    let apart = parts.windows(2).all(|w| w[0].source.hull().end <= w[1].source.hull().start);
    if item == 0 || !apart || parts.iter().any(|p| p.source.item() != item || !p.source.is_injective()) {
        return None;
    }
    let total: u64 = parts.iter().map(|p| p.claim.bytes()).fold(0, u64::saturating_add);
    let mut before = 0;
    for (first, p) in parts.iter().enumerate() {
        let bytes = p.claim.bytes();
        // Between two parts, if both sides get a fair share.
        if first > 0 && before >= total / 4 {
            return Some(Place { at: p.source.hull().start, first, within: None });
        }
        if before + bytes > total / 4 * 3 {
            let (axis, index) = cut(&p.source, total / 2 - before, bytes)?;
            let at = halves(&p.source, axis, index).1.hull().start;
            return Some(Place { at, first, within: Some((axis, index)) });
        }
        before += bytes;
    }
    None
}

/// The axis and index at which about `want` of a part's `bytes` lie before, and none of the others between them.
fn cut(source: &Layout, want: u64, bytes: u64) -> Option<(usize, u64)> {
    let axes = (0..source.shape().len()).filter(|&a| source.shape()[a] > 1);
    let axis = axes.max_by_key(|&a| source.strides()[a])?;
    let extent = source.shape()[axis];
    let index = (u128::from(extent) * u128::from(want) / u128::from(bytes.max(1))) as u64;
    let index = index.clamp(1, extent - 1);
    let (low, high) = halves(source, axis, index);
    (low.hull().end <= high.hull().start).then_some((axis, index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Check, gather::plan::Prepared};
    use proptest::prelude::*;
    use reshard_model::{BoxError, DType, Dims, Landing, Tensor};
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

    impl Check for Seen {
        fn update(&mut self, bytes: &[u8]) {
            self.bytes.extend_from_slice(bytes);
        }

        fn finish(self: Box<Self>) -> std::result::Result<(), BoxError> {
            self.all.lock().unwrap().push((self.at, self.bytes));
            Ok(())
        }

        fn split(&mut self, at: u64) -> Option<Box<dyn Check>> {
            Some(Box::new(Self { at: self.at + at, bytes: Vec::new(), all: Arc::clone(&self.all) }))
        }
    }

    /// Reads the file as a store does.
    fn read(file: &[u8], gathers: Vec<Gather>) {
        for gather in gathers {
            let mut p = Prepared::new(gather).unwrap();
            while let Some(block) = p.next_block(3, 7) {
                let start = p.record.start;
                p.feed(block.start, &file[(start + block.start) as usize..(start + block.end) as usize]);
            }
            p.finish().unwrap();
        }
    }

    /// A layout of `shape` with axes in some order, and two regions of it.
    fn wanted() -> impl Strategy<Value = (Layout, Vec<Region>)> {
        let shape = prop::collection::vec(1u64..7, 1..4);
        (shape, Just(vec![0usize, 1, 2]).prop_shuffle(), 0u64..7, 0u64..3).prop_map(
            |(shape, order, cut, pad)| {
                let mut strides = Dims::zeros(shape.len());
                let mut step = 1;
                for &a in order.iter().rev().filter(|&&a| a < shape.len()) {
                    strides[a] = step;
                    step *= shape[a] + pad;
                }
                let layout = Layout::new(2, 1, shape.as_slice().into(), strides).unwrap();
                let (mut a, mut b) = (Region::whole(&shape), Region::whole(&shape));
                a.lengths[0] = cut % (shape[0] + 1);
                b.offsets[0] = a.lengths[0];
                b.lengths[0] -= a.lengths[0];
                (layout, vec![a, b])
            },
        )
    }

    fn gather(
        layout: &Layout,
        regions: &[Region],
        check: Option<Box<dyn Check>>,
    ) -> (Arc<Landing>, Vec<reshard_model::LandingView>, Gather) {
        let tensor = Tensor::zeros("t", DType::Int16, layout.shape()).unwrap();
        let (landing, views) = Landing::new("t", vec![tensor]).unwrap();
        let wants: Vec<_> = regions.iter().map(|r| (&views[0], r.clone())).collect();
        let claims = landing.claim(&wants).unwrap();
        let parts = regions.iter().zip(claims).map(|(r, claim)| Part { source: layout.narrow(r), claim });
        let parts = parts.collect();
        let gather = Gather { name: name(), record: 5..5 + layout.hull().end + 3, parts, check };
        (landing, views, gather)
    }

    proptest! {
        #[test]
        fn what_is_cut_reads_what_it_read_whole((layout, regions) in wanted(), share in 1u64..60, checked: bool) {
            let file: Vec<u8> = (0..layout.hull().end + 20).map(|i| (i * 37 + i / 7) as u8).collect();
            let run = |share: u64| {
                let all = Arc::new(Mutex::new(Vec::new()));
                let seen = Seen { at: 0, bytes: Vec::new(), all: Arc::clone(&all) };
                let check: Option<Box<dyn Check>> = if checked { Some(Box::new(seen)) } else { None };
                let (landing, views, gather) = gather(&layout, &regions, check);
                let (record, weight) = (gather.record.clone(), gather.weight());
                let Split { gathers, cut } = split(vec![gather], share).unwrap();
                let n = gathers.len();
                let weights: u64 = gathers.iter().map(Gather::weight).sum();
                assert_eq!(weights, weight);
                assert_eq!(cut, if n > 1 { vec![(name(), record)] } else { vec![] });
                read(&file, gathers);
                let mut all = std::mem::take(&mut *all.lock().unwrap());
                all.sort();
                let starts: Vec<u64> = all.iter().map(|(at, _)| *at).collect();
                let ends = all.iter().scan(0, |end, (_, b)| { *end += b.len() as u64; Some(*end) });
                assert!(starts.iter().skip(1).copied().eq(ends.take(starts.len().saturating_sub(1))));
                let seen: Vec<u8> = all.into_iter().flat_map(|(_, b)| b).collect();
                let tensor = landing.reclaim(views).unwrap().remove(0);
                (n, seen, tensor.to_bytes().to_vec())
            };
            let (one, seen, bytes) = run(u64::MAX);
            assert_eq!(one, 1);
            let (n, seen_in_parts, bytes_in_parts) = run(share);
            prop_assert_eq!(bytes_in_parts, bytes);
            prop_assert_eq!(&seen_in_parts, &seen);
            prop_assert!(!checked || seen == file[5..8 + layout.hull().end as usize]);
            // What lies in order can be cut as finely as there are elements.
            if layout.is_contiguous() {
                let elements = layout.elements();
                prop_assert!(n as u64 >= (elements * 2).div_ceil(share).min(elements).div_ceil(2), "{n}");
            }
        }
    }

    #[test]
    fn a_check_that_has_to_see_all_keeps_its_record_whole() {
        struct Whole;
        impl Check for Whole {
            fn update(&mut self, _: &[u8]) {}
            fn finish(self: Box<Self>) -> std::result::Result<(), BoxError> {
                Ok(())
            }
        }
        let layout = Layout::contiguous(2, &[100]).unwrap();
        let (_, _, gather) = gather(&layout, &[Region::whole(&[100])], Some(Box::new(Whole)));
        assert_eq!(split(vec![gather], 10).unwrap().gathers.len(), 1);
    }

    #[test]
    fn an_error_names_the_record_that_was_cut() {
        let wrong = |range| StorageError::Check { name: name(), range, source: "wrong".into() };
        let cut = [(name(), 100..200)];
        assert_eq!(name_whole(wrong(150..200), &cut).to_string(), "a, bytes 100..200: wrong");
        assert_eq!(name_whole(wrong(50..150), &cut).to_string(), "a, bytes 50..150: wrong");
    }
}
