//! Bytes of files that no item has.

use super::opened::TorchDistReader;
use reshard_storage::Name;
use reshard_strategy::{NotCovered, Uncovered, unclaimed};
use std::{collections::BTreeMap, ops::Range};

/// How many bytes of each file lie between its items, or behind the last. No program writes such, and nothing has a checksum of them.
pub(super) fn items(r: &TorchDistReader, sizes: &BTreeMap<Name, u64>) -> NotCovered {
    let table = &r.table;
    let metadata = &table.metadata;
    let chunks = metadata.tensors().flat_map(|t| t.chunks());
    let chunks = chunks.filter_map(|(id, _)| table.chunk(id));
    let objects = metadata.objects().filter_map(|(id, _)| table.object(id));
    let copies = table.copies.iter().map(|(_, place)| *place);
    let mut all: Vec<(&Name, Range<u64>)> = (chunks.chain(objects).chain(copies))
        .filter_map(|place| {
            let name = table.files.get(place.file as usize)?.as_ref().ok()?;
            Some((name, table.range(place).ok()?))
        })
        .collect();
    all.sort_unstable_by(|(a, r), (b, s)| (a, r.start).cmp(&(b, s.start)));
    let mut out = NotCovered::default();
    for of_file in all.chunk_by(|a, b| a.0 == b.0) {
        let name = of_file.first().map(|(name, _)| *name);
        let Some((name, &size)) = name.and_then(|name| sizes.get_key_value(name)) else {
            continue;
        };
        let free = unclaimed(size, of_file.iter().map(|(_, range)| range.clone()));
        out.add(name.as_str(), Uncovered::Between, free);
    }
    out
}
