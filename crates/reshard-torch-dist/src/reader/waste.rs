//! Finds chunks of which far more is stored than their elements are.

use crate::table::{Item, Place, Table, chunk_bytes};
use reshard_model::{Region, shortened};
use reshard_plan::{TensorId, TensorRef};
use reshard_strategy::{LimitOption, StrategyError};
use std::collections::BTreeMap;

/// Tensors with such chunks, by key: the bytes that are stored for them, and the bytes of their elements.
pub(super) type Waste = BTreeMap<Box<str>, (u64, u64)>;

/// All such tensors of a checkpoint. Empty if what is stored in vain is together no more than `most` bytes.
pub(super) fn wasted(table: &Table, most: u64) -> Waste {
    // Of most checkpoints this says it, without a look at each tensor.
    let copies = table.copies.iter().map(|(_, place)| place);
    let stored = table.chunks.iter().chain(copies).map(|place| place.length);
    if stored.fold(0, u64::saturating_add) <= most {
        return Waste::new();
    }
    // A check reads the copies of other ranks, too.
    let mut copies: BTreeMap<TensorId, Sums> = BTreeMap::new();
    for (item, place) in &table.copies {
        if let Item::Chunk(chunk) = item
            && let Some((tensor, region)) = table.metadata.chunk(*chunk)
        {
            let sums = copies.entry(tensor.id()).or_default();
            sums.add(&tensor, &region, *place);
        }
    }
    let (mut found, mut all) = (Waste::new(), 0u64);
    for tensor in table.metadata.tensors() {
        let mut sums = copies.remove(&tensor.id()).unwrap_or_default();
        for (id, region) in tensor.chunks() {
            if let Some(place) = table.chunk(id) {
                sums.add(&tensor, &region, place);
            }
        }
        if sums.vain > 0 {
            all = all.saturating_add(sums.vain);
            found.insert(tensor.key().into(), (sums.stored, sums.bytes));
        }
    }
    if all > most { found } else { Waste::new() }
}

/// The bytes of a tensor that are stored in vain, all that are stored, and those of the elements.
#[derive(Clone, Copy, Default)]
struct Sums {
    vain: u64,
    stored: u64,
    bytes: u64,
}

impl Sums {
    /// A tensor that was a view of a larger one may have been stored with all of it, so some of that is usual.
    fn add(&mut self, tensor: &TensorRef<'_>, region: &Region, place: Place) {
        let elements = chunk_bytes(tensor, region).unwrap_or(0);
        let usual = elements.saturating_mul(8).saturating_add(64 << 10);
        self.vain = self.vain.saturating_add(place.length.saturating_sub(usual));
        self.stored = self.stored.saturating_add(place.length);
        self.bytes = self.bytes.saturating_add(elements);
    }
}

/// The error for such a tensor.
pub(super) fn refused(key: &str, (stored, bytes): (u64, u64), max: u64) -> StrategyError {
    let what = format!(
        "tensor {} has {bytes} bytes of elements, but {stored} bytes are stored for it; all such tensors together are too much to read",
        shortened(key)
    );
    StrategyError::Limit {
        what,
        option: LimitOption::MaxWhole,
        max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::of_tensors;

    /// Of tensors of these bytes, in archives of these, the keys of those of which too much is stored in vain.
    fn keys(tensors: &[(u64, u64)], most: u64) -> Vec<String> {
        let found = wasted(&of_tensors(tensors), most);
        found.into_keys().map(Into::into).collect()
    }

    #[test]
    fn what_is_stored_in_vain_counts_together() {
        let usual = (1 << 20, (8 << 20) + (64 << 10));
        let none: [&str; 0] = [];
        assert_eq!(keys(&[usual; 9], 0), none);
        let odd = (1, (64 << 10) + 8 + 1000);
        assert_eq!(keys(&[odd, usual, odd], 2000), none);
        assert_eq!(keys(&[odd, usual, odd], 1999), ["0", "2"]);
        // What copies waste counts, too.
        let mut table = of_tensors(&[(1, 64 << 10), usual]);
        let copy = Place {
            length: (64 << 10) + 8 + 1000,
            ..table.chunks[0]
        };
        table.copies = vec![(Item::Chunk(reshard_plan::ChunkId(0)), copy); 3];
        assert!(wasted(&table, 3000).is_empty());
        let found = wasted(&table, 2999);
        assert_eq!(
            found.into_keys().map(String::from).collect::<Vec<_>>(),
            ["0"]
        );
        // A byte of a storage of 8 TiB.
        assert_eq!(keys(&[usual, (1, 8 << 40)], 4 << 30), ["1"]);
    }
}
