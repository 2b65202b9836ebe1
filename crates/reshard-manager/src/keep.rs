//! Which checkpoints stay.

use std::collections::BTreeSet;

/// How many checkpoints stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    /// So many of the newest ones; `None`: all.
    pub(crate) newest: Option<u64>,
    /// All whose step is a multiple of this. They are not among the newest ones that are counted.
    pub(crate) every: Option<u64>,
}

impl Keep {
    /// Whether a checkpoint stays, however many newer ones there are.
    pub(crate) fn stays_for_good(self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Which steps to remove when `new` was saved, the oldest first. `own` are the steps of complete checkpoints that the saver wrote, and `damaged` those
    /// of them in which damage was found: they take no place of a good one.
    pub(crate) fn to_remove(
        self,
        own: impl IntoIterator<Item = u64>,
        new: u64,
        damaged: &BTreeSet<u64>,
    ) -> Vec<u64> {
        let Some(newest) = self.newest else {
            return Vec::new();
        };
        // What is newer than the new one is not this saver's to judge.
        let counted: BTreeSet<u64> = own
            .into_iter()
            .filter(|step| *step < new && !self.stays_for_good(*step))
            .collect();
        let mut left = newest.saturating_sub(u64::from(!self.stays_for_good(new)));
        let mut out = Vec::new();
        for step in counted.into_iter().rev() {
            match left.checked_sub(1).filter(|_| !damaged.contains(&step)) {
                Some(less) => left = less,
                None => out.push(step),
            }
        }
        out.reverse();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(newest: Option<u64>, every: Option<u64>, own: &[u64], new: u64) -> Vec<u64> {
        let keep = Keep { newest, every };
        keep.to_remove(own.iter().copied(), new, &BTreeSet::new())
    }

    #[test]
    fn the_newest_ones_stay_and_the_new_one_is_one_of_them() {
        let own = [300, 100, 200, 400];
        assert_eq!(removed(Some(2), None, &own, 400), [100, 200]);
        assert_eq!(removed(Some(1), None, &own, 400), [100, 200, 300]);
        // Also if it is not listed.
        assert_eq!(removed(Some(2), None, &own, 500), [100, 200, 300]);
        assert_eq!(removed(Some(9), None, &own, 400), [0; 0]);
        assert_eq!(removed(None, None, &own, 400), [0; 0]);
    }

    #[test]
    fn multiples_stay_for_good_and_are_not_counted() {
        let own = [500, 600, 700, 1000, 1100, 1200];
        assert_eq!(removed(Some(2), Some(500), &own, 1200), [600, 700]);
        assert_eq!(removed(Some(2), Some(500), &[600, 700, 800], 1000), [600]);
        assert_eq!(removed(Some(1), Some(500), &[0, 700, 800], 1000), [700]);
    }

    #[test]
    fn what_is_newer_than_the_new_one_is_not_removed() {
        assert_eq!(removed(Some(1), None, &[100, 200, 300], 200), [100]);
    }

    #[test]
    fn a_damaged_one_takes_no_place_of_a_good_one() {
        let keep = Keep {
            newest: Some(2),
            every: None,
        };
        let damaged = [300].into();
        assert_eq!(keep.to_remove([100, 200, 300], 400, &damaged), [100, 300]);
        assert_eq!(keep.to_remove([200, 300], 400, &damaged), [300]);
    }

    #[test]
    fn the_new_one_is_never_removed() {
        for newest in 0..4 {
            for every in [None, Some(2), Some(3)] {
                for new in 0..8 {
                    let own = 0..8;
                    let keep = Keep {
                        newest: Some(newest),
                        every,
                    };
                    let all = own.clone().collect();
                    assert!(!keep.to_remove(own, new, &all).contains(&new));
                }
            }
        }
    }
}
