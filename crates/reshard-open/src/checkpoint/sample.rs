//! A sample of what is stored, for checks of checkpoints that are too large to be read as a whole.

use super::handle::Checkpoint;
use reshard_plan::{ChunkId, ObjectId};
use reshard_storage::Name;
use reshard_strategy::{CheckedItems, StorageInfo};
use std::collections::{BTreeMap, BTreeSet};

/// Some of the stored items of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// Which.
    pub items: CheckedItems,
    /// How many they are.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many items are stored.
    pub of_count: u64,
    /// The bytes of these.
    pub of_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Chunk(ChunkId),
    Object(ObjectId),
}

/// What a sample is chosen by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    /// The file in which it begins, and where in it.
    at: Option<(Name, u64)>,
    id: Id,
    bytes: u64,
}

impl Item {
    fn new(id: Id, parts: &[StorageInfo]) -> Self {
        let first = parts.iter().map(|p| (p.file.clone(), p.range.start)).min();
        let bytes = parts.iter().map(StorageInfo::length);
        Self {
            at: first,
            id,
            bytes: bytes.fold(0, u64::saturating_add),
        }
    }
}

/// Items that are alike: of one element type, or objects, and of about the same size.
type Kind = (&'static str, u32);

impl Checkpoint {
    /// Chooses a sample of the stored items, for [`verify_items`](Self::verify_items): at least this share (between 0 and 1) of the items of each element
    /// type and each size, so that it has about this share of the bytes, and at least one of each. Sizes count as the same between two
    /// powers of two. The items are spread over all files. The same `seed` chooses the same items of the same checkpoint. It does no I/O.
    pub fn sample(&self, share: f64, seed: u64) -> Sample {
        let reader = &self.opened.reader;
        let mut kinds: BTreeMap<Kind, Vec<Item>> = BTreeMap::new();
        let mut add = |kind: &'static str, item: Item| {
            let size = u64::BITS - item.bytes.leading_zeros();
            kinds.entry((kind, size)).or_default().push(item);
        };
        for t in self.metadata().tensors() {
            for (id, _) in t.chunks() {
                // What is not stored can't be read.
                let parts = reader.locate_chunk(id);
                if !parts.is_empty() {
                    add(t.dtype().name(), Item::new(Id::Chunk(id), &parts));
                }
            }
        }
        for (id, _) in self.metadata().objects() {
            let parts = reader.locate_object(id);
            add("object", Item::new(Id::Object(id), &parts));
        }
        choose(kinds, share, seed)
    }
}

fn choose(kinds: BTreeMap<Kind, Vec<Item>>, share: f64, seed: u64) -> Sample {
    let (mut chunks, mut objects) = (BTreeSet::new(), BTreeSet::new());
    let sum = |sum: u64, item: &Item| sum.saturating_add(item.bytes);
    let (mut count, mut bytes, mut of_count, mut of_bytes) = (0, 0, 0, 0);
    for (salt, mut all) in (0u64..).zip(kinds.into_values()) {
        of_count += all.len() as u64;
        of_bytes = all.iter().fold(of_bytes, sum);
        all.sort();
        // One of each part of the files, so that the sample has something of all.
        let wanted = (all.len() as f64 * share).ceil() as usize;
        let wanted = wanted.clamp(1, all.len().max(1));
        let edge = |n: usize| (n as u128 * all.len() as u128 / wanted as u128) as usize;
        for n in 0..wanted {
            let part = all.get(edge(n)..edge(n + 1)).unwrap_or_default();
            let at = mix(seed, mix(salt, n as u64)) % (part.len() as u64).max(1);
            let Some(item) = part.get(at as usize) else {
                continue;
            };
            count += 1;
            bytes = sum(bytes, item);
            match item.id {
                Id::Chunk(id) => drop(chunks.insert(id)),
                Id::Object(id) => drop(objects.insert(id)),
            }
        }
    }
    Sample {
        items: CheckedItems::Some { chunks, objects },
        count,
        bytes,
        of_count,
        of_bytes,
    }
}

/// A number that looks random, and depends on both.
fn mix(seed: u64, n: u64) -> u64 {
    let mut x = seed ^ n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many items of so many bytes, each after the one before.
    fn items(sizes: &[(usize, u64)]) -> BTreeMap<Kind, Vec<Item>> {
        let mut out: BTreeMap<Kind, Vec<Item>> = BTreeMap::new();
        let mut next = 0u32;
        for (count, bytes) in sizes {
            for _ in 0..*count {
                let file = Name::new(format!("{}", next % 7)).unwrap();
                let item = Item {
                    at: Some((file, u64::from(next))),
                    id: Id::Chunk(ChunkId(next)),
                    bytes: *bytes,
                };
                let kind = ("float32", u64::BITS - bytes.leading_zeros());
                out.entry(kind).or_default().push(item);
                next += 1;
            }
        }
        out
    }

    fn chunks(sample: &Sample) -> &BTreeSet<ChunkId> {
        match &sample.items {
            CheckedItems::Some { chunks, .. } => chunks,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_sample_has_its_share_of_the_bytes_and_at_least_one_item_of_each_size() {
        let all = [(1_000, 1 << 20), (3, 1 << 30), (5_000, 100), (1, 0)];
        for share in [0.0, 0.01, 0.1, 0.5, 1.0, f64::NAN, 7.0] {
            let sample = choose(items(&all), share, 3);
            let wanted = all.map(|(n, _)| ((n as f64 * share).ceil() as usize).clamp(1, n));
            assert_eq!(
                sample.count as usize,
                wanted.iter().sum::<usize>(),
                "{share}"
            );
            assert_eq!(chunks(&sample).len() as u64, sample.count);
            let bytes: u64 = wanted
                .iter()
                .zip(all)
                .map(|(n, (_, b))| *n as u64 * b)
                .sum();
            assert_eq!(sample.bytes, bytes);
            assert_eq!(
                (sample.of_count, sample.of_bytes),
                (6_004, all.map(|(n, b)| n as u64 * b).iter().sum())
            );
        }
    }

    #[test]
    fn the_same_seed_chooses_the_same_items_and_another_one_chooses_others() {
        let of = |seed| chunks(&choose(items(&[(1_000, 64)]), 0.01, seed)).clone();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        // Over many seeds each item has its turn.
        let seen: BTreeSet<ChunkId> = (0..2_000).flat_map(of).collect();
        assert_eq!(seen.len(), 1_000);
    }

    #[test]
    fn the_items_are_spread_over_all_files() {
        for seed in 0..50 {
            let sample = choose(items(&[(700, 64)]), 0.02, seed);
            let files: BTreeSet<u32> = chunks(&sample).iter().map(|c| c.0 % 7).collect();
            assert_eq!(files.len(), 7, "{seed}");
        }
    }
}
