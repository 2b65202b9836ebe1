//! Finds items of one file that share bytes. A read of one of them would return bytes of the other.

use crate::table::{Place, Table};
use reshard_storage::Name;
use reshard_strategy::overlapping;
use std::collections::BTreeMap;

/// The items whose bytes another item claims too: by (file, offset), where the other item lies.
#[derive(Debug, Default)]
pub(super) struct Overlaps(BTreeMap<(u32, u64), Place>);

impl Overlaps {
    /// Finds them among all chunks and objects of a checkpoint, and all copies of them.
    pub(super) fn of(table: &Table) -> Self {
        // Equal names are the same file whatever their index, for example in the metadata of several ranks. Names may be long, so they
        // are compared once.
        let same = table.same_files();
        let is_file = |p: &Place| matches!(table.files.get(p.file as usize), Some(Ok(_)));
        let file = |p: &Place| same.get(p.file as usize).copied();
        let copies = table.copies.iter().map(|(_, place)| place);
        let all = table.chunks.iter().chain(&table.objects).chain(copies);
        let mut all: Vec<Place> = all
            .copied()
            .filter(|p| p.length > 0 && is_file(p))
            .collect();
        all.sort_unstable_by_key(|p| (file(p), p.offset, p.length));
        let mut found = BTreeMap::new();
        for (before, place) in overlapping(all, |p| (file(&p), p.offset..end(&p))) {
            found.insert((before.file, before.offset), place);
            found.insert((place.file, place.offset), before);
        }
        Self(found)
    }

    /// The location of an item that claims bytes of this one. It is made a text only here, because many items may lie in one file of a
    /// long name.
    pub(super) fn with(&self, table: &Table, place: Place) -> Option<String> {
        let other = self.0.get(&(place.file, place.offset))?;
        let file = table.files.get(other.file as usize)?.as_ref();
        let file = file.map_or("", Name::as_str);
        Some(format!("bytes {}..{} of {file}", other.offset, end(other)))
    }
}

fn end(place: &Place) -> u64 {
    place.offset.saturating_add(place.length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Item;
    use reshard_plan::ChunkId;

    /// What is said of each item: chunks first, then objects. Items are (file, offset, length).
    fn of(
        names: &[&str],
        chunks: &[(u32, u64, u64)],
        objects: &[(u32, u64, u64)],
    ) -> Vec<Option<String>> {
        let place = |&(file, offset, length): &_| Place {
            file,
            transforms: 0,
            offset,
            length,
        };
        let (chunks, objects) = (
            chunks.iter().map(place).collect(),
            objects.iter().map(place).collect(),
        );
        let files = names
            .iter()
            .map(|name| Name::new(*name).map_err(|e| e.to_string()))
            .collect();
        let table = Table {
            chunks,
            objects,
            files,
            ..Table::default()
        };
        let overlaps = Overlaps::of(&table);
        table
            .chunks
            .iter()
            .chain(&table.objects)
            .map(|p| overlaps.with(&table, *p))
            .collect()
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn items_beside_each_other_share_nothing() {
        assert_eq!(
            of(&["a"], &[(0, 0, 4), (0, 4, 4)], &[(0, 8, 4)]),
            [None, None, None]
        );
        assert_eq!(
            of(&["a", "b"], &[(0, 0, 4), (1, 0, 4)], &[]),
            [None, None],
            "in two files"
        );
        assert_eq!(
            of(&["a"], &[(0, 0, 4), (0, 2, 0)], &[]),
            [None, None],
            "an item without bytes"
        );
        assert_eq!(
            of(&["a"], &[(u32::MAX, 0, 4), (u32::MAX, 0, 4)], &[]),
            [None, None],
            "without a place"
        );
        assert_eq!(
            of(&["../a"], &[(0, 0, 4), (0, 0, 4)], &[]),
            [None, None],
            "a name that is refused anyway"
        );
    }

    #[test]
    fn each_of_two_items_that_share_bytes_names_the_other() {
        let (first, second) = (some("bytes 0..5 of a"), some("bytes 4..8 of a"));
        assert_eq!(
            of(&["a"], &[(0, 0, 5)], &[(0, 4, 4)]),
            [second.clone(), first.clone()]
        );
        assert_eq!(
            of(&["a", "a"], &[(1, 4, 4), (0, 0, 5)], &[]),
            [first, second],
            "a file under two numbers"
        );
        let same = some("bytes 3..7 of a");
        assert_eq!(
            of(&["a"], &[(0, 3, 4), (0, 3, 4)], &[]),
            [same.clone(), same]
        );
        let last = some(&format!("bytes 1..{} of a", u64::MAX));
        assert_eq!(
            of(&["a"], &[(0, 1, u64::MAX), (0, 9, 1)], &[]),
            [some("bytes 9..10 of a"), last]
        );
    }

    #[test]
    fn an_item_may_hold_several_others() {
        let outer = some("bytes 0..100 of a");
        let said = of(
            &["a"],
            &[(0, 0, 100), (0, 10, 5), (0, 20, 5), (0, 100, 5)],
            &[(0, 99, 1)],
        );
        assert_eq!(
            said,
            [
                some("bytes 99..100 of a"),
                outer.clone(),
                outer.clone(),
                None,
                outer
            ]
        );
    }

    #[test]
    fn each_item_is_held_against_the_one_before_it_that_ends_last() {
        let said = of(
            &["a"],
            &[(0, 0, 10), (0, 10, 10), (0, 15, 10), (0, 25, 1)],
            &[],
        );
        assert_eq!(
            said,
            [
                None,
                some("bytes 15..25 of a"),
                some("bytes 10..20 of a"),
                None
            ]
        );
        // A short one in between doesn't hide a long one.
        let said = of(&["a"], &[(0, 0, 30), (0, 10, 5), (0, 20, 5)], &[]);
        assert_eq!(said[2], some("bytes 0..30 of a"));
    }

    #[test]
    fn copies_of_ranks_are_items_too() {
        let place = |file, offset, length| Place {
            file,
            transforms: 0,
            offset,
            length,
        };
        let name = |name| Name::new(name).map_err(|e| e.to_string());
        let chunk = Item::Chunk(ChunkId(0));
        let table = Table {
            chunks: vec![place(0, 0, 4)],
            copies: vec![(chunk, place(1, 2, 4)), (chunk, place(2, 0, 4))],
            files: vec![name("a"), name("a"), name("b")],
            ..Table::default()
        };
        let overlaps = Overlaps::of(&table);
        let with = |p| overlaps.with(&table, p);
        assert_eq!(with(place(0, 0, 4)), some("bytes 2..6 of a"));
        assert_eq!(with(place(1, 2, 4)), some("bytes 0..4 of a"));
        assert_eq!(with(place(2, 0, 4)), None);
    }
}
