//! A cache of values with a limit of memory.

use std::collections::BTreeMap;

/// Keeps the values that were added last. The oldest values are removed when all of them together exceed the limit of memory.
#[derive(Debug)]
pub struct Recent<K, V> {
    /// The limit in bytes. A single larger value is kept alone.
    max: u64,
    bytes: u64,
    /// Values with their keys and sizes, by age: the number of values that were added before.
    entries: BTreeMap<u64, (K, V, u64)>,
    ages: BTreeMap<K, u64>,
    next: u64,
}

impl<K: Copy + Ord, V> Recent<K, V> {
    /// An empty cache with a limit in bytes.
    pub fn new(max: u64) -> Self {
        Self {
            max,
            bytes: 0,
            entries: BTreeMap::new(),
            ages: BTreeMap::new(),
            next: 0,
        }
    }

    /// The limit in bytes.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (_, value, _) = self.entries.get(self.ages.get(key)?)?;
        Some(value)
    }

    /// Removes and returns the value of a key.
    pub fn take(&mut self, key: &K) -> Option<V> {
        let age = self.ages.remove(key)?;
        let (_, value, bytes) = self.entries.remove(&age)?;
        self.bytes -= bytes;
        Some(value)
    }

    /// Removes the oldest values until there is room for `bytes` more.
    pub fn make_room(&mut self, bytes: u64) {
        while self.bytes.saturating_add(bytes) > self.max
            && let Some((_, (key, _, freed))) = self.entries.pop_first()
        {
            self.ages.remove(&key);
            self.bytes -= freed;
        }
    }

    /// Adds a value of `bytes` bytes. It replaces the value of the same key, and older values if there is no room.
    pub fn insert(&mut self, key: K, value: V, bytes: u64) {
        self.take(&key);
        self.make_room(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.ages.insert(key, self.next);
        self.entries.insert(self.next, (key, value, bytes));
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(all: &Recent<u32, ()>) -> Vec<u32> {
        let bytes: u64 = all.entries.values().map(|(.., bytes)| bytes).sum();
        let keys: Vec<u32> = all.entries.values().map(|(key, ..)| *key).collect();
        assert_eq!((all.ages.len(), all.bytes), (keys.len(), bytes));
        keys
    }

    #[test]
    fn values_have_a_bound_and_the_oldest_goes_first() {
        let mut all = Recent::new(256);
        for (key, bytes) in [(1, 100), (2, 100), (3, 56)] {
            all.insert(key, (), bytes);
        }
        assert_eq!(keys(&all), [1, 2, 3], "256 and not a byte more");
        all.make_room(0);
        assert_eq!(keys(&all), [1, 2, 3]);
        all.insert(4, (), 1);
        assert_eq!(keys(&all), [2, 3, 4]);
        all.make_room(157);
        assert_eq!(keys(&all), [3, 4]);
        // More than all of it: that alone is kept.
        all.insert(5, (), 257);
        assert_eq!(keys(&all), [5]);
        assert_eq!(
            [all.take(&4), all.take(&5), all.take(&5)],
            [None, Some(()), None]
        );
        assert!(keys(&all).is_empty());
    }

    #[test]
    fn a_value_that_is_added_again_replaces_itself() {
        let mut all = Recent::new(256);
        for (key, bytes) in [(1, 7), (2, 7), (1, 9)] {
            all.insert(key, (), bytes);
        }
        assert_eq!(keys(&all), [2, 1]);
        assert!(all.get(&1).is_some() && all.get(&3).is_none());
    }
}
