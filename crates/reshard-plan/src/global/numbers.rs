use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use std::hash::{BuildHasher, Hash};

/// Stands for no key, or no piece.
pub(super) const NONE: u32 = u32::MAX;

/// Numbers for the keys or pieces that ranks have, in the order of first appearance.
pub(super) struct Numbers<T> {
    /// Each with the number that followed it last time.
    all: Vec<(T, u32)>,
    table: HashTable<u32>,
    hasher: RandomState,
    last: Option<u32>,
}

impl<T> Numbers<T> {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            all: Vec::with_capacity(capacity),
            table: HashTable::with_capacity(capacity),
            hasher: RandomState::default(),
            last: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().map(|(value, _)| value)
    }

    pub(super) fn get(&self, number: u32) -> &T {
        &self.all[number as usize].0
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.all[number as usize].0
    }

    /// The number of the value with this identity. If there is none yet, `new` makes it. Ranks usually have the same values in the
    /// same order. So the one that followed the previous one last time is tried first, which avoids a look-up in the table.
    pub(super) fn intern<I: Hash + Eq>(
        &mut self,
        identity: I,
        of: impl Fn(&T) -> I,
        new: impl FnOnce() -> T,
    ) -> u32 {
        let guess = self.last.map_or(0, |last| self.all[last as usize].1);
        let number = match self.all.get(guess as usize) {
            Some((value, _)) if of(value) == identity => guess,
            _ => self.find_or_insert(identity, of, new),
        };
        if let Some(last) = self.last {
            self.all[last as usize].1 = number;
        }
        self.last = Some(number);
        number
    }

    fn find_or_insert<I: Hash + Eq>(
        &mut self,
        identity: I,
        of: impl Fn(&T) -> I,
        new: impl FnOnce() -> T,
    ) -> u32 {
        let Self {
            all, table, hasher, ..
        } = self;
        // The table holds numbers only. It hashes and compares through `all`, so identities exist once.
        let identity_of = |number: &u32| of(&all[*number as usize].0);
        let found = table.entry(
            hasher.hash_one(&identity),
            |number| identity_of(number) == identity,
            |number| hasher.hash_one(identity_of(number)),
        );
        match found {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(vacant) => {
                let number = all.len() as u32;
                vacant.insert(number);
                all.push((new(), NONE));
                number
            }
        }
    }
}
