//! Cuts what ranks want of a chunk into blocks, so that each byte is in one block and reads stay long.

use reshard_model::{Region, first_overlap};

/// How far cuts may go. They stay within what one coordinator can do for thousands of ranks and pieces.
pub(super) struct Budget {
    /// Steps of searching.
    steps: u64,
    /// Items that come from cutting items for balance.
    items: u64,
}

const STEPS: u64 = 1 << 24;
const ITEMS: u64 = 1 << 20;

impl Budget {
    /// For so many items of plans.
    pub(super) fn new(items: usize) -> Self {
        Self {
            steps: STEPS.saturating_add(64 * items as u64),
            items: ITEMS,
        }
    }

    fn step(&mut self, n: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(n as u64)?;
        Some(())
    }

    /// Into how many blocks, at most `n`, a box may be cut that so many regions meet.
    fn blocks(&mut self, n: u64, regions: usize) -> u64 {
        let regions = (regions as u64).max(1);
        let n = n.min(1 + self.items / regions).max(1);
        self.items -= (n - 1).saturating_mul(regions).min(self.items);
        n
    }
}

/// A run of so many bytes is as good as any longer one.
const LONG_RUN: u64 = 128 << 10;

/// What several ranks want of one chunk.
pub(super) struct Wishes<'r> {
    /// Different, not empty, relative to the chunk.
    pub(super) regions: Vec<&'r Region>,
    /// Lengths of the chunk per axis.
    pub(super) chunk: &'r [u64],
    /// Bytes per element.
    pub(super) item: u64,
}

impl Wishes<'_> {
    /// Disjoint boxes that make up all regions. `None` if each region is best read by itself, or it takes too long to find boxes.
    pub(super) fn boxes(&self, budget: &mut Budget) -> Option<Vec<Region>> {
        let regions = &self.regions;
        let ndim = regions.first()?.ndim();
        if regions.len() < 2 || regions.iter().any(|region| region.ndim() != ndim) {
            return None;
        }
        let range = |i: usize, axis: usize| regions[i].offsets[axis]..regions[i].end(axis);
        let overlap = first_overlap(regions.len(), ndim, range).is_some();
        let short = |region: &&Region| {
            let (runs, run) = self.runs(region);
            runs > 1 && run < LONG_RUN
        };
        if !overlap && !regions.iter().any(short) {
            return None;
        }
        let boxes = union(regions, 0, budget)?;
        // Each box is later compared with each region.
        budget.step(boxes.len().saturating_mul(regions.len()))?;
        if overlap {
            return Some(boxes);
        }
        let count = |all: &mut dyn Iterator<Item = &Region>| -> u64 {
            all.map(|region| self.runs(region).0)
                .fold(0, u64::saturating_add)
        };
        let (apart, together) = (
            count(&mut regions.iter().copied()),
            count(&mut boxes.iter()),
        );
        (together.saturating_mul(2) <= apart).then_some(boxes)
    }

    /// The number of contiguous runs of a region in the chunk, and their length in bytes, if the chunk is row-major.
    fn runs(&self, region: &Region) -> (u64, u64) {
        let mut run = self.item;
        let mut axis = region.ndim();
        while axis > 0 {
            axis -= 1;
            run = run.saturating_mul(region.lengths[axis]);
            if self.chunk.get(axis) != Some(&region.lengths[axis]) {
                break;
            }
        }
        let runs = (0..axis).map(|axis| region.lengths[axis]);
        (runs.fold(1, u64::saturating_mul), run)
    }

    /// Cuts a box into blocks of about `target` bytes that follow each other in row-major order.
    pub(super) fn divide(&self, whole: Region, target: u64, budget: &mut Budget) -> Vec<Region> {
        let bytes = (whole.volume().unwrap_or(u64::MAX)).saturating_mul(self.item);
        let n = bytes.div_ceil(target.max(1));
        if n < 2 {
            return vec![whole];
        }
        let n = budget.blocks(n, self.regions.len());
        let mut out = Vec::new();
        divide(whole, 0, n, &mut out);
        out
    }
}

/// Cuts a box into about `n` blocks, along its first axes.
fn divide(whole: Region, axis: usize, n: u64, out: &mut Vec<Region>) {
    if n < 2 || axis == whole.ndim() {
        out.push(whole);
        return;
    }
    let length = whole.lengths[axis];
    let parts = n.min(length).max(1);
    for part in 0..parts {
        // In u128, so that long axes don't overflow.
        let at = |part: u64| (u128::from(length) * u128::from(part) / u128::from(parts)) as u64;
        let mut block = whole.clone();
        block.offsets[axis] += at(part);
        block.lengths[axis] = at(part + 1) - at(part);
        divide(block, axis + 1, n.div_ceil(parts), out);
    }
}

/// Disjoint boxes that make up these boxes, as far as the axes from `axis` on. Axes before have no meaning.
fn union(boxes: &[&Region], axis: usize, budget: &mut Budget) -> Option<Vec<Region>> {
    budget.step(boxes.len() + 1)?;
    let first = *boxes.first()?;
    if axis == first.ndim() {
        return Some(vec![first.clone()]);
    }
    let behind = axis + 1;
    let alike = |region: &&Region| {
        region.offsets[behind..] == first.offsets[behind..]
            && region.lengths[behind..] == first.lengths[behind..]
    };
    let mut sorted = boxes.to_vec();
    sorted.sort_by_key(|region| region.offsets[axis]);
    if boxes.iter().all(alike) {
        return Some(merged(&sorted, axis));
    }

    // Between neighbouring starts and ends, always the same boxes are there.
    let ends = |region: &&Region| [region.offsets[axis], region.end(axis)];
    let mut coordinates: Vec<u64> = boxes.iter().flat_map(ends).collect();
    coordinates.sort_unstable();
    coordinates.dedup();
    let mut next = sorted.into_iter().peekable();
    let mut here: Vec<&Region> = Vec::new();
    let mut out: Vec<Region> = Vec::new();
    // Where the boxes of the last slab begin in `out`.
    let mut last = 0;
    for slab in coordinates.windows(2) {
        let &[from, to] = slab else { continue };
        here.retain(|region| region.end(axis) > from);
        while let Some(region) = next.next_if(|region| region.offsets[axis] <= from) {
            here.push(region);
        }
        if here.is_empty() {
            continue;
        }
        let mut found = union(&here, behind, budget)?;
        // Slabs with the same boxes are one.
        let same = |(a, b): (&Region, &Region)| {
            a.end(axis) == from
                && a.offsets[behind..] == b.offsets[behind..]
                && a.lengths[behind..] == b.lengths[behind..]
        };
        let before = &mut out[last..];
        if before.len() == found.len() && before.iter().zip(&found).all(same) {
            for region in before {
                region.lengths[axis] = to - region.offsets[axis];
            }
            continue;
        }
        for region in &mut found {
            (region.offsets[axis], region.lengths[axis]) = (from, to - from);
        }
        last = out.len();
        out.append(&mut found);
    }
    Some(out)
}

/// The union of boxes that differ only along `axis`, sorted by their starts.
fn merged(sorted: &[&Region], axis: usize) -> Vec<Region> {
    let mut out: Vec<Region> = Vec::new();
    for region in sorted {
        match out.last_mut() {
            Some(last) if region.offsets[axis] <= last.end(axis) => {
                let end = last.end(axis).max(region.end(axis));
                last.lengths[axis] = end - last.offsets[axis];
            }
            _ => out.push((*region).clone()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn elements(region: &Region) -> Vec<Vec<u64>> {
        let mut out = vec![Vec::new()];
        for axis in 0..region.ndim() {
            let along = |e: Vec<u64>| {
                (region.offsets[axis]..region.end(axis)).map(move |i| [&e[..], &[i]].concat())
            };
            out = out.into_iter().flat_map(along).collect();
        }
        out
    }

    fn wishes<'r>(regions: &'r [Region], chunk: &'r [u64], item: u64) -> Wishes<'r> {
        Wishes {
            regions: regions.iter().collect(),
            chunk,
            item,
        }
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn boxes_and_blocks_are_the_union_once(
            boxes in prop::collection::vec(prop::collection::vec((0u64..5, 1u64..4), 3), 2..9), target in 1u64..20,
        ) {
            let regions: BTreeSet<Region> = boxes.iter().map(|axes| {
                let (offsets, lengths): (Vec<u64>, Vec<u64>) = axes.iter().copied().unzip();
                Region::new(offsets.as_slice(), lengths.as_slice())
            }).collect();
            let regions: Vec<Region> = regions.into_iter().collect();
            let wishes = wishes(&regions, &[8, 8, 8], 2);
            let mut budget = Budget::new(0);
            let wanted: BTreeSet<Vec<u64>> = regions.iter().flat_map(elements).collect();
            let found = union(&wishes.regions, 0, &mut budget).unwrap();
            let blocks: Vec<Region> = found.iter().flat_map(|b| wishes.divide(b.clone(), target, &mut budget)).collect();
            for all in [&found, &blocks] {
                let got: Vec<Vec<u64>> = all.iter().flat_map(elements).collect();
                prop_assert_eq!(got.len(), wanted.len(), "an element is there twice, or not at all");
                prop_assert_eq!(&got.into_iter().collect::<BTreeSet<_>>(), &wanted);
            }
            prop_assert!(blocks.iter().all(|b| b.volume().unwrap() * 2 <= target.max(2) * 2));
        }
    }

    #[test]
    fn columns_become_rows_and_rows_stay() {
        let columns: Vec<Region> = (0..1000)
            .map(|i| Region::new([0, 4 * i], [512, 4]))
            .collect();
        let chunk = [512, 4000];
        let wishes_of_columns = wishes(&columns, &chunk, 4);
        let mut budget = Budget::new(0);
        let boxes = wishes_of_columns.boxes(&mut budget).unwrap();
        assert_eq!(boxes, [Region::whole(&chunk)]);
        let blocks = wishes_of_columns.divide(boxes[0].clone(), 1 << 20, &mut budget);
        assert_eq!(blocks.len(), 8);
        assert!(blocks.iter().all(|b| b.lengths.as_ref() == [64, 4000]));

        let rows: Vec<Region> = (0..512).map(|i| Region::new([i, 0], [1, 4000])).collect();
        assert!(wishes(&rows, &chunk, 4).boxes(&mut budget).is_none());
        // A long row by itself, and parts of other rows: nothing becomes longer.
        let apart: Vec<Region> = (0..100)
            .map(|i| Region::new([5 * i, 7], [2, 100]))
            .collect();
        assert!(wishes(&apart, &chunk, 4).boxes(&mut budget).is_none());
    }

    /// Thousands of windows that slide along one axis are one box; a lattice of so many, whose holes are millions, is given up.
    #[test]
    fn many_regions_take_no_square_of_steps() {
        let windows: Vec<Region> = (0..20_000)
            .map(|i| Region::new([i, 0], [20_000, 8]))
            .collect();
        let mut budget = Budget::new(0);
        let boxes = wishes(&windows, &[40_000, 8], 4)
            .boxes(&mut budget)
            .unwrap();
        assert_eq!(boxes, [Region::new([0, 0], [39_999, 8])]);
        assert!(budget.steps > STEPS - 100_000);

        let across = (0..10_000).map(|i| Region::new([2 * i, 0], [1, 20_000]));
        let along = (0..10_000).map(|i| Region::new([0, 2 * i], [20_000, 1]));
        let lattice: Vec<Region> = across.chain(along).collect();
        assert!(
            wishes(&lattice, &[20_000, 20_000], 4)
                .boxes(&mut budget)
                .is_none()
        );

        // However small the target is, cuts for balance are bounded.
        let blocks = wishes(&windows, &[40_000, 8], 4).divide(boxes[0].clone(), 1, &mut budget);
        assert!(blocks.len() * windows.len() <= 2 * ITEMS as usize);
    }
}
