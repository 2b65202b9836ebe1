//! Finds chunks of which far more is stored than their elements are.

use crate::table::Table;
use reshard_plan::TensorRef;
use reshard_strategy::{LimitOption, StrategyError};
use std::collections::BTreeMap;

/// Tensors with such chunks, by key: the bytes that are stored for them, and the bytes of their elements.
pub(super) type Waste = BTreeMap<Box<str>, (u64, u64)>;

/// All such tensors of a checkpoint. Empty if what is stored in vain is together no more than `most` bytes.
pub(super) fn wasted(table: &Table, most: u64) -> Waste {
    // Of most checkpoints this says it, without a look at each tensor.
    let stored = table.chunks.iter().map(|place| place.length);
    if stored.fold(0, u64::saturating_add) <= most {
        return Waste::new();
    }
    let (mut found, mut all) = (Waste::new(), 0u64);
    for tensor in table.metadata.tensors() {
        let waste = of(table, &tensor);
        if let Some((vain, stored, bytes)) = waste {
            all = all.saturating_add(vain);
            found.insert(tensor.key().into(), (stored, bytes));
        }
    }
    if all > most { found } else { Waste::new() }
}

/// The bytes that are stored in vain, all that are stored, and those of the elements. A tensor that was a view of a larger one may have
/// been stored with all of it, so some of that is usual.
fn of(table: &Table, tensor: &TensorRef<'_>) -> Option<(u64, u64, u64)> {
    let (mut vain, mut stored, mut bytes) = (0u64, 0u64, 0u64);
    for (id, region) in tensor.chunks() {
        let Some(place) = table.chunk(id) else {
            continue;
        };
        let elements = region
            .volume()
            .unwrap_or(0)
            .saturating_mul(tensor.dtype().size());
        let usual = elements.saturating_mul(8).saturating_add(64 << 10);
        vain = vain.saturating_add(place.length.saturating_sub(usual));
        stored = stored.saturating_add(place.length);
        bytes = bytes.saturating_add(elements);
    }
    (vain > 0).then_some((vain, stored, bytes))
}

/// The error for such a tensor.
pub(super) fn refused(key: &str, (stored, bytes): (u64, u64), max: u64) -> StrategyError {
    let what = format!(
        "tensor {key} has {bytes} bytes of elements, but {stored} bytes are stored for it; all such tensors together are too much to read"
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
        // A byte of a storage of 8 TiB.
        assert_eq!(keys(&[usual, (1, 8 << 40)], 4 << 30), ["1"]);
    }
}
