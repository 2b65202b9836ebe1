use crate::WriteItem;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Stands for no key, or no piece.
pub(super) const NONE: u32 = u32::MAX;

/// The first item of a key.
#[derive(Clone, Copy)]
pub(super) struct First<'p> {
    pub(super) item: &'p WriteItem,
    pub(super) rank: u32,
    /// The key that followed this one last time.
    next: u32,
    /// Whether it already has a problem.
    spoiled: bool,
}

/// Numbers for keys, in the order of first appearance.
#[derive(Default)]
pub(super) struct Keys<'p> {
    first: Vec<First<'p>>,
    table: HashTable<u32>,
    hasher: RandomState,
    last: Option<u32>,
}

impl<'p> Keys<'p> {
    pub(super) fn len(&self) -> usize {
        self.first.len()
    }

    pub(super) fn get(&self, key: u32) -> First<'p> {
        self.first[key as usize]
    }

    /// Marks that a key has a problem. Returns whether it had none before.
    pub(super) fn spoil(&mut self, key: u32) -> bool {
        !std::mem::replace(&mut self.first[key as usize].spoiled, true)
    }

    pub(super) fn is_spoiled(&self, key: u32) -> bool {
        self.first[key as usize].spoiled
    }

    /// The number of an item's key. Ranks usually have the same keys in the same order. So the key that followed the
    /// previous one last time is tried first, which avoids a look-up in the table.
    pub(super) fn intern(&mut self, item: &'p WriteItem, rank: u32) -> u32 {
        let guess = match self.last {
            Some(last) => self.first[last as usize].next,
            None => 0,
        };
        let key = match self.first.get(guess as usize) {
            Some(f) if f.item.key == item.key => guess,
            _ => self.find_or_insert(item, rank),
        };
        if let Some(last) = self.last {
            self.first[last as usize].next = key;
        }
        self.last = Some(key);
        key
    }

    fn find_or_insert(&mut self, item: &'p WriteItem, rank: u32) -> u32 {
        let Self {
            first,
            table,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one(&*item.key);
        let equal = |n: &u32| first[*n as usize].item.key == item.key;
        if let Some(n) = table.find(hash, equal) {
            return *n;
        }
        let key = first.len() as u32;
        first.push(First {
            item,
            rank,
            next: NONE,
            spoiled: false,
        });
        table.insert_unique(hash, key, |n| {
            hasher.hash_one(&*first[*n as usize].item.key)
        });
        key
    }
}
