//! The ints of a `.metadata` file: there are some for every chunk, and most tuples of them are equal to one before.

use super::worth::{Beyond, Worth, number};
use reshard_model::Dims;
use std::collections::BTreeMap;

/// A tuple of ints: where it begins, and how many there are.
pub(crate) type Run = (u32, u32);

/// Numbers of shapes and offsets: 4 bytes each, and those that need more aside.
#[derive(Debug, Default)]
pub(crate) struct Ints {
    narrow: Vec<u32>,
    wide: BTreeMap<u32, u64>,
    /// Short tuples that were added lately, by a hash of them. Empty before the first.
    recent: Vec<Run>,
}

/// Tuples of up to so many ints are looked for among those before.
const SHORT: usize = 8;
const RECENT: usize = 1 << 12;
/// An entry of the map of wide numbers.
const WIDE: usize = 48;

impl Ints {
    /// Adds a tuple, or finds an equal one.
    pub(crate) fn add(
        &mut self,
        numbers: impl ExactSizeIterator<Item = u64> + Clone,
        worth: &mut Worth,
    ) -> Result<Run, Beyond> {
        let len = numbers.len();

        // Most short tuples equal a recent one. One slot for each hash finds most of them, without a table that grows.
        let slot = (1..=SHORT).contains(&len).then(|| {
            let hash = numbers.clone().fold(0u64, |h, v| {
                (h.rotate_left(5) ^ v).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            });
            (hash >> (64 - RECENT.trailing_zeros())) as usize
        });
        if let Some(slot) = slot {
            // Of a rank-local checkpoint there may be very many files, most of them without a tensor.
            if self.recent.is_empty() {
                self.recent = vec![(0, 0); RECENT];
            }
            let (at, n) = self.recent[slot];

            // `u32::MAX` marks a wide number, so a tuple with one never counts as equal.
            let equal = |(i, v): (usize, u64)| {
                self.narrow[at as usize + i] != u32::MAX
                    && u64::from(self.narrow[at as usize + i]) == v
            };
            if n as usize == len && numbers.clone().enumerate().all(equal) {
                return Ok((at, n));
            }
        }

        // The end must fit 32 bits before anything is added.
        let end = number(self.narrow.len().saturating_add(len))?;
        let (at, n) = (self.narrow.len() as u32, end - self.narrow.len() as u32);
        worth.room(&mut self.narrow, len)?;
        for v in numbers {
            match u32::try_from(v) {
                Ok(v) if v != u32::MAX => self.narrow.push(v),
                _ => {
                    worth.take(WIDE)?;
                    self.wide.insert(self.narrow.len() as u32, v);
                    self.narrow.push(u32::MAX);
                }
            }
        }
        if let Some(slot) = slot {
            self.recent[slot] = (at, n);
        }
        Ok((at, n))
    }

    /// Frees the memory that only [`add`](Self::add) needs.
    pub(crate) fn forget_recent(&mut self) {
        self.recent = Vec::new();
    }

    /// Bytes of memory that are drawn for it.
    pub(crate) fn takes(&self) -> usize {
        self.narrow.capacity() * size_of::<u32>() + self.wide.len() * WIDE
    }

    pub(crate) fn get(&self, at: u32) -> Option<u64> {
        match *self.narrow.get(at as usize)? {
            u32::MAX => self.wide.get(&at).copied(),
            v => Some(v.into()),
        }
    }

    /// The numbers of a tuple that was added.
    pub(crate) fn dims(&self, (at, n): Run) -> Dims {
        (at..at.saturating_add(n))
            .filter_map(|i| self.get(i))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_was_added_is_what_comes_back(
            tuples in prop::collection::vec(prop::collection::vec(prop_oneof![0u64..3, Just(u64::from(u32::MAX)), any::<u64>()], 0..12), 0..200)
        ) {
            let mut worth = Worth::of(&Default::default(), 0);
            let mut ints = Ints::default();
            let at: Vec<Run> = tuples.iter().map(|t| ints.add(t.iter().copied(), &mut worth).unwrap()).collect();
            for (t, at) in tuples.iter().zip(at) {
                prop_assert_eq!(&ints.dims(at)[..], &t[..]);
            }
        }
    }

    #[test]
    fn without_tuples_nothing_is_allocated_and_what_only_adding_needs_is_freed() {
        let mut worth = Worth::of(&Default::default(), 0);
        let mut ints = Ints::default();
        ints.add([].into_iter(), &mut worth).unwrap();
        assert_eq!((ints.recent.capacity(), ints.takes()), (0, 0));
        let at = ints.add([4, 1024].into_iter(), &mut worth).unwrap();
        ints.forget_recent();
        assert_eq!(ints.recent.capacity(), 0);
        assert_eq!(ints.dims(at)[..], [4, 1024]);
    }

    #[test]
    fn equal_tuples_are_kept_once() {
        let mut worth = Worth::of(&Default::default(), 0);
        let mut ints = Ints::default();
        for _ in 0..1000 {
            ints.add([4, 1024].into_iter(), &mut worth).unwrap();
            ints.add([0, 0].into_iter(), &mut worth).unwrap();
        }
        assert_eq!(ints.narrow.len(), 4);
    }
}
