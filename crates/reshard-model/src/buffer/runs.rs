//! Gathers short runs of bytes on their way to a device, so that one copy takes many of them.

use crate::{Dims, Layout};

/// Runs from here on are copied by themselves, from where they lie.
const LONG: usize = 64 << 10;
/// How many bytes are gathered for one copy.
const GATHERED: usize = 1 << 20;
/// How many groups of runs are remembered at a time.
const GROUPS: usize = 1 << 12;

/// Runs of equal length at equal distances, in bytes.
struct Group {
    start: u64,
    len: u64,
    count: u64,
    step: u64,
}

/// A box of runs, in bytes: the start, then lengths and distances of the axes. The last axis is a run.
struct Rows {
    start: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

/// Gathers runs, and hands each layout with its elements in row-major order to `copy`.
pub(super) struct Runs<F> {
    item: u64,
    groups: Vec<Group>,
    bytes: Vec<u8>,
    copy: F,
}

impl<F: FnMut(&Layout, &[u8])> Runs<F> {
    /// For elements of so many bytes.
    pub(super) fn new(item: u64, copy: F) -> Self {
        Self {
            item,
            groups: Vec::new(),
            bytes: Vec::new(),
            copy,
        }
    }

    /// Adds bytes that go to byte `at` of the device memory.
    pub(super) fn add(&mut self, at: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        if bytes.len() >= LONG {
            self.flush();
            let run = Rows {
                start: at,
                shape: vec![len],
                strides: vec![1],
            };
            self.hand_over(&run, bytes);
            return;
        }
        if self.bytes.len() + bytes.len() > GATHERED {
            self.flush();
        }
        self.bytes.extend_from_slice(bytes);
        if let Some(last) = self.groups.last_mut().filter(|last| last.len == len) {
            if last.count == 1 && at > last.start {
                last.step = at - last.start;
            }
            if last.step > 0 && at == last.start + last.step * last.count {
                last.count += 1;
                return;
            }
        }
        if self.groups.len() == GROUPS {
            // The bytes of this run are not in a group yet.
            let mine = self.bytes.split_off(self.bytes.len() - bytes.len());
            self.flush();
            self.bytes = mine;
        }
        self.groups.push(Group {
            start: at,
            len,
            count: 1,
            step: 0,
        });
    }

    /// Copies what is gathered.
    pub(super) fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = &*bytes;
        for rows in joined(self.groups.drain(..).map(Rows::of).collect()) {
            let (mine, behind) = rest.split_at(rows.shape.iter().product::<u64>() as usize);
            self.hand_over(&rows, mine);
            rest = behind;
        }
        self.bytes = bytes;
        self.bytes.clear();
    }

    fn hand_over(&mut self, rows: &Rows, bytes: &[u8]) {
        if let Some(layout) = rows.layout(self.item) {
            (self.copy)(&layout, bytes);
        }
    }
}

impl Rows {
    fn of(group: Group) -> Self {
        let Group {
            start,
            len,
            count,
            step,
        } = group;
        let (mut shape, mut strides) = (vec![len], vec![1]);
        if count > 1 {
            (shape, strides) = (vec![count, len], vec![step, 1]);
        }
        Self {
            start,
            shape,
            strides,
        }
    }

    /// In elements. A block may end within an element; then it is in bytes.
    fn layout(&self, item: u64) -> Option<Layout> {
        let outer = &self.strides[..self.strides.len() - 1];
        let whole = |n: &u64| n.is_multiple_of(item);
        let unit = match whole(&self.start)
            && self.shape.last().is_some_and(whole)
            && outer.iter().all(whole)
        {
            true => item,
            false => 1,
        };
        let mut shape = self.shape.clone();
        if let Some(run) = shape.last_mut() {
            *run /= unit;
        }
        let strides: Dims = outer.iter().map(|n| n / unit).chain([1]).collect();
        Layout::new(unit, self.start / unit, shape.into(), strides)
    }
}

/// Joins boxes of equal form at equal distances, until there are none.
fn joined(mut all: Vec<Rows>) -> Vec<Rows> {
    loop {
        let before = all.len();
        let mut out: Vec<Rows> = Vec::with_capacity(before);
        let mut left = all.into_iter().peekable();
        while let Some(mut first) = left.next() {
            let (mut count, mut step) = (1, 0);
            while let Some(next) = left.next_if(|next| {
                let after = next.start.checked_sub(first.start).filter(|n| *n > 0);
                next.shape == first.shape
                    && next.strides == first.strides
                    && after.is_some_and(|n| count == 1 || n == step * count)
            }) {
                if count == 1 {
                    step = next.start - first.start;
                }
                count += 1;
            }
            if count > 1 {
                first.shape.insert(0, count);
                first.strides.insert(0, step);
            }
            out.push(first);
        }
        if out.len() == before {
            return out;
        }
        all = out;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segments;
    use proptest::prelude::*;

    fn copies(item: u64, runs: &[(u64, u64)]) -> Vec<(Layout, Vec<u8>)> {
        let mut out = Vec::new();
        let mut all = Runs::new(item, |to: &Layout, bytes: &[u8]| {
            out.push((to.clone(), bytes.to_vec()));
        });
        let mut at = 0u64;
        for (to, n) in runs {
            all.add(*to, &(at..at + n).map(|b| b as u8).collect::<Vec<_>>());
            at += n;
        }
        all.flush();
        out
    }

    #[test]
    fn runs_at_equal_distances_are_one_copy() {
        let one = |runs: &[(u64, u64)]| match &*copies(4, runs) {
            [(layout, _)] => (
                layout.shape().to_vec(),
                layout.strides().to_vec(),
                layout.item(),
            ),
            all => panic!("{} copies", all.len()),
        };
        // A block of columns, planes of columns, and a block that ends within an element.
        assert_eq!(
            one(&[(8, 4), (24, 4), (40, 4)]),
            (vec![3, 1], vec![4, 1], 4)
        );
        let planes = [(0, 8), (16, 8), (64, 8), (80, 8)];
        assert_eq!(one(&planes), (vec![2, 2, 2], vec![16, 4, 1], 4));
        assert_eq!(one(&[(8, 3)]), (vec![3], vec![1], 1));
        // Long runs go by themselves, and nothing is gathered without end.
        let long = LONG as u64;
        assert_eq!(copies(1, &[(0, 1), (long, long), (1, 1)]).len(), 3);
        let many: Vec<_> = (0..3 * GROUPS as u64).map(|i| (i * i * 4, 4)).collect();
        assert!(copies(4, &many).len() > GROUPS);
        let much: Vec<_> = (0..100).map(|i| (i * long, long / 2)).collect();
        assert!(
            copies(1, &much)
                .iter()
                .all(|(_, bytes)| bytes.len() <= GATHERED)
        );
    }

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        #[test]
        fn every_byte_arrives_where_its_run_goes(
            item in 1u64..5, runs in prop::collection::vec((0u64..4, 1u64..9, 0u64..5), 1..60), turn in any::<bool>(),
        ) {
            // Runs with gaps between them, in ascending or another order.
            let (mut at, mut all) = (0, Vec::new());
            for (gap, len, again) in runs {
                for _ in 0..=again {
                    all.push((at + gap, len));
                    at += gap + len;
                }
            }
            if turn {
                let half = all.len() / 2;
                all.rotate_left(half);
            }
            let (mut memory, mut expected) = (vec![0u8; at as usize], vec![0u8; at as usize]);
            let mut next = 0u64;
            for (to, n) in &all {
                for i in 0..*n {
                    expected[(to + i) as usize] = (next + i) as u8;
                }
                next += n;
            }
            for (to, bytes) in copies(item, &all) {
                let flat = Layout::contiguous(to.item(), to.shape()).unwrap();
                for (s, d, n) in Segments::row_major(&flat, &to) {
                    memory[d as usize..(d + n) as usize].copy_from_slice(&bytes[s as usize..(s + n) as usize]);
                }
            }
            prop_assert_eq!(memory, expected);
        }
    }
}
