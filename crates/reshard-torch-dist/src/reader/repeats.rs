//! Finds tensors in which very many elements share few stored bytes.

use crate::table::{Item, Table, chunk_bytes};
use reshard_plan::TensorRef;
use reshard_strategy::{REPEATED, repeats};
use std::collections::BTreeMap;

/// These tensors, by key: the bytes of their elements, the bytes that are stored of them, and how many bytes of elements may be like that.
pub(super) type Repeats = BTreeMap<Box<str>, (u64, u64, u64)>;

/// The most bytes of elements that few transformed bytes may unpack to. A tensor of zeros is not suspect by itself.
const TRANSFORMED: u64 = 2 << 30;

/// All such tensors of a checkpoint, except those that are together within their limit.
pub(super) fn repeated(table: &Table) -> Repeats {
    let mut kinds = [REPEATED, TRANSFORMED].map(|most| (most, Repeats::new()));
    let mut add = |tensor: &TensorRef<'_>, bytes: u64, stored: u64, is_transformed: bool| {
        let (most, tensors) = &mut kinds[usize::from(is_transformed)];
        let all = tensors.entry(tensor.key().into()).or_insert((0, 0, *most));
        all.0 = all.0.saturating_add(bytes);
        all.1 = all.1.saturating_add(stored);
    };
    for tensor in table.metadata.tensors() {
        if let Some((bytes, stored, is_transformed)) = of(table, &tensor) {
            add(&tensor, bytes, stored, is_transformed);
        }
    }
    // A check unpacks the copies of other ranks, too.
    for (item, place) in &table.copies {
        if let Item::Chunk(chunk) = item
            && let Some((tensor, region)) = table.metadata.chunk(*chunk)
        {
            let bytes = chunk_bytes(&tensor, &region).unwrap_or(0);
            if repeats(bytes, place.length) {
                add(&tensor, bytes, place.length, table.is_transformed(*place));
            }
        }
    }
    let mut found = Repeats::new();
    for (most, tensors) in kinds {
        let all = tensors.values().map(|(bytes, ..)| *bytes);
        if all.fold(0, u64::saturating_add) > most {
            found.extend(tensors);
        }
    }
    found
}

/// The bytes of the elements, those that are stored, and whether any of these are transformed.
fn of(table: &Table, tensor: &TensorRef<'_>) -> Option<(u64, u64, bool)> {
    // No archive is shorter than that.
    const ARCHIVE: u64 = 128;
    let (whole, mut bytes, mut stored) = (tensor.bytes(), 0u64, 0u64);
    let mut is_transformed = false;
    if !repeats(whole, ARCHIVE) {
        return None;
    }
    for (id, region) in tensor.chunks() {
        let Some(place) = table.chunk(id) else {
            continue;
        };
        is_transformed |= table.is_transformed(place);
        stored = stored.saturating_add(place.length);
        bytes = bytes.saturating_add(chunk_bytes(tensor, &region).unwrap_or(0));
        if !repeats(whole.max(bytes), stored) {
            return None;
        }
    }
    repeats(bytes, stored).then_some((bytes, stored, is_transformed))
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
    fn what_few_transformed_bytes_unpack_to_has_a_larger_limit() {
        let found = |bytes: &[u64]| {
            let tensors: Vec<_> = bytes.iter().map(|bytes| (*bytes, 200)).collect();
            let mut table = of_tensors(&tensors);
            // The last one is stored as it is.
            for place in table.chunks.iter_mut().rev().skip(1) {
                place.transforms = 1;
            }
            repeated(&table)
                .into_keys()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        let half = TRANSFORMED / 2;
        assert_eq!(found(&[half, half, REPEATED]), [""; 0]);
        assert_eq!(found(&[half, half + 1, REPEATED]), ["0", "1"]);
        assert_eq!(found(&[half, half, REPEATED + 1]), ["2"]);
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
