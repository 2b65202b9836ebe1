//! Where the inner chunks of an array's shards lie.

use crate::{
    array::{
        find::at_once,
        meta::{ArrayMeta, Encoding, Fault},
        shard::{Index, Shard},
    },
    grid::Grid,
};
use reshard_model::Region;
use reshard_storage::{Name, StorageError, Store};
use reshard_strategy::Result;
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// The indexes of all shards of an array, by the number of the shard in row-major order. A shard that is not there has none. Empty if the
/// array has no shards.
#[derive(Debug, Default)]
pub(crate) struct Shards(BTreeMap<u64, Result<Index, Fault>>);

impl Shards {
    /// Reads all indexes of an array. `file_at` names the file at a position, and `files` are all files of the checkpoint. What is wrong with
    /// an index is kept, and said when its shard is read.
    pub(crate) async fn read(
        meta: &ArrayMeta,
        file_at: impl Fn(&[u64]) -> Result<Name> + Send,
        store: &Arc<dyn Store>,
        files: &BTreeMap<Name, u64>,
    ) -> Result<Self> {
        let mut out = BTreeMap::new();
        let Encoding::Sharded(sharding) = &meta.encoding else {
            return Ok(Self(out));
        };
        let (shard, Some(grid)) = (Shard::of(meta, sharding), grid(meta)) else {
            return Ok(Self(out));
        };
        let mut there = Vec::new();
        for position in grid.positions().blocks(1).map(|p: Region| p.offsets) {
            let file = file_at(&position)?;
            let Some(&bytes) = files.get(&file) else {
                continue;
            };
            let number = number(&grid, &position);
            match shard.index(bytes) {
                Ok(at) => there.push((number, file, at, bytes)),
                Err(fault) => drop(out.insert(number, Err(fault))),
            }
        }
        let mut left = &there[..];
        while !left.is_empty() {
            let lengths = left.iter().map(|(_, _, at, _)| at.end - at.start);
            let (part, rest) = left.split_at(at_once(lengths));
            left = rest;
            let ranges = part
                .iter()
                .map(|(_, file, at, _)| (file.clone(), at.clone()));
            let texts = match store.read_ranges(ranges.collect()).await {
                Ok((texts, _)) => texts,
                // It was cut since it was listed.
                Err(StorageError::Short { .. }) => continue,
                Err(e) => return Err(e.into()),
            };
            for ((number, _, at, bytes), text) in part.iter().zip(texts) {
                out.insert(*number, shard.parse(&text, at.clone(), *bytes));
            }
        }
        Ok(Self(out))
    }

    /// Where an inner chunk lies in the shard at a position. `None` if it is not stored.
    ///
    /// # Errors
    /// What is wrong with the index of the shard.
    pub(crate) fn range(
        &self,
        meta: &ArrayMeta,
        position: &[u64],
        inner: u64,
    ) -> Result<Option<Range<u64>>, &Fault> {
        let index = grid(meta).and_then(|grid| self.0.get(&number(&grid, position)));
        match index {
            None => Ok(None),
            Some(index) => Ok(index.as_ref()?.range(inner)),
        }
    }

    /// Shards whose indexes are damaged, by number.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (u64, &Fault)> {
        self.0
            .iter()
            .filter_map(|(number, index)| Some((*number, index.as_ref().err()?)))
    }
}

/// The grid of files.
pub(crate) fn grid(meta: &ArrayMeta) -> Option<Grid> {
    Grid::new(meta.shape.clone(), meta.chunk.clone())
}

/// The number of a position in row-major order.
fn number(grid: &Grid, position: &[u64]) -> u64 {
    let counts = grid.positions().lengths;
    position.iter().zip(&*counts).fold(0u64, |n, (at, count)| {
        n.saturating_mul(*count).saturating_add(*at)
    })
}
