//! Megatron Core's distribution of shards over the ranks of a group.

use reshard_model::Dims;
use reshard_plan::{Declaration, Declared};
use std::{collections::BTreeMap, ops::Range};

/// A shard that ranks of a group hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldShard<Id> {
    /// What it is. Of equal shards the lower one comes first.
    pub id: Id,
    /// The ranks that hold it, by their numbers in the group. A rank that holds it twice stands there twice.
    pub ranks: Vec<u32>,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether its main replica is in another group.
    pub main_is_elsewhere: bool,
}

/// Chooses a rank for each shard, as Megatron Core's function of this name does since 0.13: position of the shard and rank, in the order
/// in which shards are given out.
///
/// Shards that few ranks hold come first, and of these the large ones. Each goes to the rank with the fewest bytes so far among those that
/// hold it; of equal ones to the lowest. Shards whose main replica is elsewhere come last. A shard that nobody holds goes to no rank.
///
/// ```
/// use reshard_parallel::{HeldShard, distribute_shards_to_ranks};
/// let shard = |id, ranks: &[u32], bytes| HeldShard { id, ranks: ranks.into(), bytes, main_is_elsewhere: false };
/// let shards = [shard("small", &[0, 1], 4), shard("large", &[0, 1], 100), shard("own", &[0], 8)];
/// assert_eq!(distribute_shards_to_ranks(&shards), [(2, 0), (1, 1), (0, 0)]);
/// ```
pub fn distribute_shards_to_ranks<Id: Ord>(shards: &[HeldShard<Id>]) -> Vec<(usize, u32)> {
    let mut order: Vec<(usize, &HeldShard<Id>)> = shards.iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| {
        (a.main_is_elsewhere, a.ranks.len())
            .cmp(&(b.main_is_elsewhere, b.ranks.len()))
            .then_with(|| b.bytes.cmp(&a.bytes))
            .then_with(|| a.id.cmp(&b.id))
    });
    let mut taken: BTreeMap<u32, u64> = BTreeMap::new();
    let mut choose = |shard: &HeldShard<Id>| {
        let bytes = |rank: &u32| (taken.get(rank).copied().unwrap_or(0), *rank);
        let rank = shard.ranks.iter().copied().min_by_key(bytes)?;
        let bytes = taken.entry(rank).or_default();
        *bytes = bytes.saturating_add(shard.bytes);
        Some(rank)
    };
    order
        .into_iter()
        .filter_map(|(at, shard)| Some((at, choose(shard)?)))
        .collect()
}

/// What a shard is for Megatron Core: the key, where it begins, and the range of a flattened one.
type ShardId = (Box<str>, Dims, Option<(u64, u64)>);

/// Which shards a rank of a group saves.
#[derive(Debug)]
pub(crate) struct Distribution {
    /// By shard: the rank of the group that saves it. Shards whose main replica is in another group are not there.
    ranks: BTreeMap<ShardId, u32>,
}

impl Distribution {
    /// From what each member of a group declares.
    pub(crate) fn of(members: &[Declared]) -> Self {
        let mut held: BTreeMap<ShardId, (Vec<u32>, u64, bool)> = BTreeMap::new();
        for (rank, declared) in (0u32..).zip(members) {
            for leaf in &declared.leaves {
                let Some(bytes) = bytes(leaf) else { continue };
                // The first one says how long it is.
                let (ranks, _, has_main) = held
                    .entry(id(leaf))
                    .or_insert_with(|| (Vec::new(), bytes, false));
                ranks.push(rank);
                *has_main |= leaf.replica_id.is_main();
            }
        }
        let shards: Vec<HeldShard<ShardId>> = held
            .into_iter()
            .filter(|(_, (_, _, has_main))| *has_main)
            .map(|(id, (ranks, bytes, _))| HeldShard {
                id,
                ranks,
                bytes,
                main_is_elsewhere: false,
            })
            .collect();
        let chosen = distribute_shards_to_ranks(&shards).into_iter();
        Self {
            ranks: chosen
                .filter_map(|(at, rank)| Some((shards.get(at)?.id.clone(), rank)))
                .collect(),
        }
    }

    /// The rank of the group that saves a tensor. `None` if its main replica is in another group.
    pub(crate) fn rank(&self, leaf: &Declaration) -> Option<u32> {
        self.ranks.get(&id(leaf)).copied()
    }
}

/// Megatron's identity of a shard.
pub(crate) fn id(leaf: &Declaration) -> ShardId {
    let range = |range: &Range<u64>| (range.start, range.end);
    (
        leaf.key.clone(),
        leaf.global_offset.clone(),
        leaf.flattened_range.as_ref().map(range),
    )
}

/// The bytes of a tensor; objects are not distributed.
fn bytes(leaf: &Declaration) -> Option<u64> {
    let item = leaf.dtype?.size();
    let elements = match &leaf.flattened_range {
        Some(range) => range.end.saturating_sub(range.start),
        None => leaf.local_shape.volume().unwrap_or(u64::MAX),
    };
    Some(elements.saturating_mul(item))
}
