//! Files of objects, one for each cell of an array: `{key}/shard_{offset}_{shape}.pt`.
//!
//! Very old versions of Megatron Core lost the last number of the shape: they took it for a suffix, which `.pt` replaced. So cell (0, 1)
//! of an array of shape (1, 2) lies in `{key}/shard_0.1_1.pt`.

use reshard_model::{Dims, ShardedObject};
use reshard_storage::Name;
use std::collections::{BTreeMap, BTreeSet};

/// The suffix of the file of an object.
pub(crate) const SUFFIX: &str = ".pt";

/// The names that the file of a cell may have, without the suffix: that of today, and the very old one.
pub(crate) fn names(object: &ShardedObject) -> Vec<String> {
    let key = object.unique_key();
    // An array of one axis has no dot in its name.
    let old = match object.global_shape.len() {
        0 | 1 => None,
        _ => key.rsplit_once('.').map(|(old, _)| old.to_owned()),
    };
    [key].into_iter().chain(old).collect()
}

/// The cell whose file has this name, without the suffix, and whether the name is a very old one. Then nobody knows the last extent
/// of the array yet.
fn cell(name: &str) -> Option<(ShardedObject, bool)> {
    let object = ShardedObject::empty_from_unique_key(name).ok()?;
    let at = names(&object).iter().position(|n| n == name)?;
    Some((object, at > 0))
}

/// Whether the file of a cell may have this name, without the suffix.
pub(crate) fn is_cell(name: &str) -> bool {
    cell(name).is_some()
}

/// Whether a file is that of a cell.
pub(crate) fn is_file_of_a_cell(name: &Name) -> bool {
    name.as_str().strip_suffix(SUFFIX).is_some_and(is_cell)
}

/// The cells whose files are there, in the order of the files. The last extent of an array with very old names is the smallest one that has
/// all its cells.
pub(crate) fn cells<'n>(files: impl IntoIterator<Item = &'n Name>) -> Vec<ShardedObject> {
    let found = files.into_iter();
    let mut found: Vec<(ShardedObject, bool)> = found
        .filter_map(|name| cell(name.as_str().strip_suffix(SUFFIX)?))
        .collect();
    let mut extents: BTreeMap<(Box<str>, Dims), u64> = BTreeMap::new();
    for (object, _) in found.iter().filter(|(_, old)| *old) {
        if let Some(last) = object.global_shape.last() {
            let extent = extents.entry(array(object)).or_default();
            *extent = (*last).max(*extent);
        }
    }
    for (object, _) in found.iter_mut().filter(|(_, old)| *old) {
        let extent = extents.get(&array(object)).copied();
        if let (Some(last), Some(extent)) = (object.global_shape.last_mut(), extent) {
            *last = extent;
        }
    }
    let mut seen = BTreeSet::new();
    found
        .into_iter()
        .map(|(object, _)| object)
        .filter(|object| seen.insert(object.unique_key()))
        .collect()
}

/// The array of a cell with a very old name: its key, and all extents but the last.
fn array(object: &ShardedObject) -> (Box<str>, Dims) {
    let shape = &object.global_shape;
    let known = shape.len().saturating_sub(1);
    (
        object.key.clone(),
        shape.iter().take(known).copied().collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Vec<String> {
        let names: Vec<Name> = files.iter().map(|f| Name::new(*f).unwrap()).collect();
        cells(&names)
            .iter()
            .map(ShardedObject::unique_key)
            .collect()
    }

    #[test]
    fn names_of_today_are_cells() {
        let files = [
            "rng/shard_0.1_1.2.pt",
            "vec/shard_3_4.pt",
            "a.b/shard_0.0.0_1.1.1.pt",
        ];
        let keys = files.map(|f| f.trim_end_matches(SUFFIX).to_owned());
        assert_eq!(found(&files), keys);
        assert!(
            files
                .iter()
                .all(|f| is_file_of_a_cell(&Name::new(*f).unwrap()))
        );
    }

    #[test]
    fn the_last_extent_that_a_very_old_name_lacks_is_that_of_all_cells() {
        let files = [
            "rng/shard_0.0_2.pt",
            "rng/shard_0.1_2.pt",
            "rng/shard_0.2_2.pt",
            "rng/shard_1.0_2.pt",
            "other/shard_0.0.0_1.1.pt",
        ];
        let keys = [
            "rng/shard_0.0_2.3",
            "rng/shard_0.1_2.3",
            "rng/shard_0.2_2.3",
            "rng/shard_1.0_2.3",
            "other/shard_0.0.0_1.1.1",
        ];
        assert_eq!(found(&files), keys);
        for (file, key) in files.iter().zip(keys) {
            assert!(is_file_of_a_cell(&Name::new(*file).unwrap()));
            let object = ShardedObject::empty_from_unique_key(key).unwrap();
            let old = file.trim_end_matches(SUFFIX).to_owned();
            assert_eq!(names(&object), [key.to_owned(), old]);
        }
    }

    #[test]
    fn a_cell_with_both_names_is_listed_once() {
        let files = ["rng/shard_0.0_1.1.pt", "rng/shard_0.0_1.pt"];
        assert_eq!(found(&files), ["rng/shard_0.0_1.1"]);
    }

    #[test]
    fn other_names_are_no_cells() {
        for name in [
            "common.pt",
            "rng/shard_0.1_1.2",
            "rng/shard_00.1_1.2.pt",
            "rng/shard_0.1_01.pt",
            "rng/shard_0_.pt",
            "rng/shard_0.1_.pt",
            "rng/shard_2.0_1.pt",
            "rng/shard_0.18446744073709551615_1.pt",
            "a/rng/shard_0_1.pt",
            "shard_0_1.pt",
        ] {
            assert_eq!(found(&[name]), [""; 0], "{name}");
            assert!(!is_file_of_a_cell(&Name::new(name).unwrap()), "{name}");
        }
    }
}
