//! Arrays of objects that lack cells.

use reshard_model::{Dims, Region, ShardedObject};
use reshard_strategy::Damage;
use std::collections::{BTreeMap, BTreeSet};

/// The number of missing cells that a finding names.
const NAMED: usize = 3;

/// Returns what is wrong with each array of objects of which cells are missing among these keys: Megatron Core loads no such array.
pub fn incomplete_arrays<'k>(keys: impl IntoIterator<Item = &'k str>) -> Vec<Damage> {
    let mut arrays: BTreeMap<(Box<str>, Dims), BTreeSet<Dims>> = BTreeMap::new();
    for key in keys {
        if let Ok(cell) = ShardedObject::empty_from_unique_key(key)
            && cell.unique_key() == key
        {
            let cells = arrays.entry((cell.key, cell.global_shape)).or_default();
            cells.insert(cell.global_offset);
        }
    }
    let mut out = Vec::new();
    for ((key, shape), cells) in arrays {
        let all = shape.volume();
        if all == Some(cells.len() as u64) {
            continue;
        }
        let positions = Region::whole(&shape).blocks(1).map(|cell| cell.offsets);
        let missing = positions.filter(|cell| !cells.contains(cell));
        let name = |offset| ShardedObject::cell(&key, shape.clone(), offset).unique_key();
        let names: Vec<String> = missing.take(NAMED).map(name).collect();
        let all = all.map_or("2⁶⁴ or more".to_owned(), |n| n.to_string());
        let what = format!(
            "the array of objects {key} has {} of its {all} cells; missing: {}",
            cells.len(),
            names.join(", ")
        );
        out.push(Damage {
            key: names.into_iter().next(),
            ..Damage::new(what)
        });
    }
    out
}
