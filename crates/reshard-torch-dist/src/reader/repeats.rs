//! Finds tensors in which very many elements share few stored bytes.

use crate::table::{Item, Table};
use reshard_plan::TensorRef;
use reshard_strategy::{REPEATED, repeats};
use std::collections::BTreeMap;

/// These tensors, by key: the bytes of their elements, and the bytes that are stored of them.
pub(super) type Repeats = BTreeMap<Box<str>, (u64, u64)>;

/// All such tensors of a checkpoint. Empty if together they are within the limit.
pub(super) fn repeated(table: &Table) -> Repeats {
    let mut found: Repeats = table
        .metadata
        .tensors()
        .filter_map(|t| Some((t.key().into(), of(table, &t)?)))
        .collect();
    copies(table, &mut found);
    let all = found
        .values()
        .map(|(bytes, _)| *bytes)
        .fold(0, u64::saturating_add);
    if all > REPEATED {
        found
    } else {
        Repeats::new()
    }
}

/// Adds the copies of other ranks, which a check unpacks, too.
fn copies(table: &Table, found: &mut Repeats) {
    for (item, place) in &table.copies {
        let Item::Chunk(chunk) = item else { continue };
        let Some((tensor, region)) = table.metadata.chunk(*chunk) else {
            continue;
        };
        let elements = region.volume().unwrap_or(0);
        let bytes = elements.saturating_mul(tensor.dtype().size());
        if repeats(bytes, place.length) && !table.is_transformed(*place) {
            let (all, stored) = found.entry(tensor.key().into()).or_default();
            *all = all.saturating_add(bytes);
            *stored = stored.saturating_add(place.length);
        }
    }
}

fn of(table: &Table, tensor: &TensorRef<'_>) -> Option<(u64, u64)> {
    // No archive is shorter than that.
    const ARCHIVE: u64 = 128;
    let (whole, mut bytes, mut stored) = (tensor.bytes(), 0u64, 0u64);
    if !repeats(whole, ARCHIVE) {
        return None;
    }
    for (id, region) in tensor.chunks() {
        let Some(place) = table.chunk(id) else {
            continue;
        };
        // What is packed may be far shorter than its elements; it unpacks to no more than its shape says.
        if table.is_transformed(place) {
            return None;
        }
        stored = stored.saturating_add(place.length);
        bytes = bytes.saturating_add(
            region
                .volume()
                .unwrap_or(0)
                .saturating_mul(tensor.dtype().size()),
        );
        if !repeats(whole.max(bytes), stored) {
            return None;
        }
    }
    repeats(bytes, stored).then_some((bytes, stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::of_tensors;

    /// Keys of those that repeat, of tensors of so many bytes of which 200 are stored.
    fn of(bytes: &[u64]) -> usize {
        let tensors: Vec<_> = bytes.iter().map(|bytes| (*bytes, 200)).collect();
        repeated(&of_tensors(&tensors)).len()
    }

    #[test]
    fn tensors_repeat_when_they_are_together_more_than_anybody_may_read() {
        assert_eq!((of(&[REPEATED]), of(&[REPEATED + 1])), (0, 1));
        let half = REPEATED / 2;
        // Copies count, too.
        let mut table = of_tensors(&[(half, 200)]);
        let copy = (Item::Chunk(reshard_plan::ChunkId(0)), table.chunks[0]);
        table.copies = vec![copy];
        assert!(repeated(&table).is_empty());
        table.copies = vec![copy; 2];
        assert_eq!(repeated(&table).len(), 1);
        assert_eq!(
            (
                of(&[half, half]),
                of(&[half, half + 1]),
                of(&[half, half, 7])
            ),
            (0, 2, 0)
        );
    }
}
