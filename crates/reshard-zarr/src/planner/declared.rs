//! Grids that leaves declare.

use super::told::{pack, unpack};
use bytes::Bytes;
use reshard_model::{Dims, FlatStateDict, Sharded};
use reshard_plan::{Result, WriteItem};
use std::collections::BTreeMap;

/// The chunks of arrays whose first leaf declares another grid than its own shape: Megatron Core takes the grid of the leaf at the
/// origin, whatever the shape of that leaf is.
#[derive(Debug, Default)]
pub(super) struct Declared(BTreeMap<Box<str>, Dims>);

impl Declared {
    /// Those of a rank.
    pub(super) fn of(items: &[WriteItem], state: &FlatStateDict) -> Self {
        let chunk = |item: &WriteItem| {
            let t = item.tensor()?;
            let Some((_, Sharded::Tensor(leaf))) = state.get_index(item.source as usize) else {
                return None;
            };
            let is_first = leaf.global_offset.iter().all(|n| *n == 0) && *leaf.key == *item.key;
            if !is_first || t.original_shape.is_some() || leaf.global_shape != t.global_shape {
                return None;
            }
            let chunk = leaf.max_allowed_chunks().ok()?;
            let other = chunk != t.region.lengths && !chunk.contains(&0);
            other.then(|| (item.key.clone(), chunk))
        };
        Self(items.iter().filter_map(chunk).collect())
    }

    pub(super) fn get(&self, key: &str) -> Option<&Dims> {
        self.0.get(key)
    }

    /// Adds those of the next rank. The lowest rank counts.
    pub(super) fn add(&mut self, other: Self) {
        for (key, chunk) in other.0 {
            self.0.entry(key).or_insert(chunk);
        }
    }

    pub(super) fn pack(&self) -> Result<Bytes> {
        match self.0.is_empty() {
            true => Ok(Bytes::new()),
            false => pack(&self.0),
        }
    }

    pub(super) fn unpack(bytes: &[u8]) -> Result<Self> {
        match bytes {
            [] => Ok(Self::default()),
            _ => Ok(Self(unpack(bytes)?)),
        }
    }
}
