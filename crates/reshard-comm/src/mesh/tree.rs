//! Through which ranks a collective with a root goes. No rank talks to more than so many others, however many there are.
//!
//! The root has the number 0, and the others follow it round the group. The children of number `v` are the numbers from
//! `fan * v + 1` to `fan * v + fan`. So in a group of at most `fan + 1` ranks each rank talks to the root itself.

/// Of one collective. Ranks are those of the group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    root: u64,
    size: u64,
    fan: u64,
}

impl Tree {
    pub(super) fn new(root: u32, size: u32, fan: u32) -> Self {
        Self {
            root: root.into(),
            size: size.max(1).into(),
            fan: fan.max(1).into(),
        }
    }

    fn number(self, rank: u32) -> u64 {
        (u64::from(rank) + self.size - self.root) % self.size
    }

    fn rank(self, number: u64) -> u32 {
        // It is less than the size, which is a `u32`.
        u32::try_from((number + self.root) % self.size).unwrap_or(u32::MAX)
    }

    /// To whom this rank hands what comes from below. `None` for the root.
    pub(super) fn parent(self, rank: u32) -> Option<u32> {
        let number = self.number(rank).checked_sub(1)?;
        Some(self.rank(number / self.fan))
    }

    pub(super) fn children(self, rank: u32) -> Vec<u32> {
        let first = self.fan * self.number(rank) + 1;
        let children = first..(first + self.fan).min(self.size);
        children.map(|number| self.rank(number)).collect()
    }

    /// This rank and all below it, each after its parent.
    pub(super) fn below(self, rank: u32) -> Vec<u32> {
        let (mut first, mut last) = (self.number(rank), self.number(rank));
        let mut all = Vec::new();
        while first < self.size {
            all.extend((first..=last.min(self.size - 1)).map(|number| self.rank(number)));
            (first, last) = (self.fan * first + 1, self.fan * last + self.fan);
        }
        all
    }

    /// Whether `rank` is `top` or below it.
    pub(super) fn is_below(self, rank: u32, top: u32) -> bool {
        let (mut number, top) = (self.number(rank), self.number(top));
        while number > top {
            number = (number - 1) / self.fan;
        }
        number == top
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn every_rank_is_below_the_root_once(size in 1..300_u32, root in 0..300_u32, fan in 1..70_u32) {
            let tree = Tree::new(root % size, size, fan);
            let mut all = tree.below(root % size);
            all.sort_unstable();
            prop_assert_eq!(all, (0..size).collect::<Vec<_>>());
            for rank in 0..size {
                let children = tree.children(rank);
                prop_assert!(children.len() <= fan as usize);
                for child in &children {
                    prop_assert_eq!(tree.parent(*child), Some(rank));
                }
                let below: Vec<u32> = children.iter().flat_map(|child| tree.below(*child)).collect();
                let mut of_children = [vec![rank], below].concat();
                of_children.sort_unstable();
                let mut own = tree.below(rank);
                own.sort_unstable();
                prop_assert_eq!(&own, &of_children);
                for other in 0..size {
                    prop_assert_eq!(tree.is_below(other, rank), own.binary_search(&other).is_ok());
                }
            }
        }
    }

    #[test]
    fn few_ranks_talk_to_the_root_itself() {
        let tree = Tree::new(3, 65, 64);
        assert_eq!(tree.children(3).len(), 64);
        assert!((0..65).all(|rank| rank == 3 || tree.parent(rank) == Some(3)));
        let many = Tree::new(0, 10_000, 64);
        assert!((0..10_000).all(|rank| many.children(rank).len() <= 64));
    }
}
