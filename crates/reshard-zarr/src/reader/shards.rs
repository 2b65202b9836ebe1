//! Where the inner chunks of an array's shards lie.

use crate::{
    array::{
        find::at_once,
        meta::{ArrayMeta, Encoding, Fault, Sharding},
        shard::{Index, Shard},
    },
    grid::Grid,
    zarr3::RECORD,
};
use reshard_model::Region;
use reshard_storage::{Name, StorageError, Store};
use reshard_strategy::Result;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, OnceLock},
};

/// The shards of an array that are there, by their numbers in row-major order. Empty if the array has no shards.
#[derive(Debug, Default)]
pub(crate) struct Shards(BTreeMap<u64, OneShard>);

/// What is known of a shard.
#[derive(Debug, Default)]
struct OneShard {
    /// The bytes of an inner chunk, if reshard wrote the shard: then all of them follow each other from the first byte on.
    follow: Option<u64>,
    /// Its index, when it was read. What is wrong with it is said when the shard is read.
    index: OnceLock<Result<Index, Fault>>,
}

/// An index that was not read yet.
pub(crate) struct Unread<'s> {
    shard: Shard<'s>,
    file: Name,
    /// Where the index lies, in a file of so many bytes.
    at: Range<u64>,
    bytes: u64,
    follow: Option<u64>,
    into: &'s OnceLock<Result<Index, Fault>>,
}

impl Unread<'_> {
    /// Keeps the index. One that says something else than what was written is damage: what was read without it would be wrong.
    fn take(&self, text: &[u8]) {
        let index = self.shard.parse(text, self.at.clone(), self.bytes);
        let index = index.and_then(|index| match self.follow {
            Some(inner) if !index.follows(inner) => Err(Fault::damaged(format!(
                "its inner chunks do not lie where they were written, judging by {RECORD}; if the shard was written again on purpose, remove {RECORD}"
            ))),
            _ => Ok(index),
        });
        self.into.get_or_init(|| index);
    }
}

impl Shards {
    /// `file_at` names the file at a position, and `files` are all files of the checkpoint. `as_written` says whether all chunks have checksums of
    /// reshard. A shard whose length is the written one then needs no index to be read from.
    pub(crate) fn of(
        meta: &ArrayMeta,
        file_at: impl Fn(&[u64]) -> Result<Name>,
        files: &BTreeMap<Name, u64>,
        as_written: bool,
    ) -> Result<Self> {
        let mut out = BTreeMap::new();
        let Encoding::Sharded(sharding) = &meta.encoding else {
            return Ok(Self(out));
        };
        let (shard, Some(grid)) = (Shard::of(meta, sharding), grid(meta)) else {
            return Ok(Self(out));
        };
        let inner = meta.cell_bytes();
        let written = (as_written && is_ours(meta, sharding))
            .then(|| shard.written(inner))
            .flatten();
        for position in grid.positions().blocks(1).map(|p: Region| p.offsets) {
            let Some(&bytes) = files.get(&file_at(&position)?) else {
                continue;
            };
            let one = OneShard {
                follow: (written == Some(bytes)).then_some(inner),
                index: OnceLock::new(),
            };
            if let Err(fault) = shard.index(bytes) {
                one.index.get_or_init(|| Err(fault));
            }
            out.insert(number(&grid, &position), one);
        }
        Ok(Self(out))
    }

    /// The indexes that were not read yet, of the shards that are wanted: by their numbers, and whether they can be read without an index.
    pub(crate) fn unread<'s>(
        &'s self,
        meta: &'s ArrayMeta,
        file_at: impl Fn(&[u64]) -> Result<Name>,
        files: &BTreeMap<Name, u64>,
        wanted: impl Fn(u64, bool) -> bool,
    ) -> Result<Vec<Unread<'s>>> {
        let mut out = Vec::new();
        let (Encoding::Sharded(sharding), Some(grid)) = (&meta.encoding, grid(meta)) else {
            return Ok(out);
        };
        let shard = Shard::of(meta, sharding);
        for (number, one) in &self.0 {
            if one.index.get().is_some() || !wanted(*number, one.follow.is_some()) {
                continue;
            }
            let file = file_at(&grid.nth(*number))?;
            let bytes = files.get(&file).copied().unwrap_or(0);
            if let Ok(at) = shard.index(bytes) {
                out.push(Unread {
                    shard: shard.clone(),
                    file,
                    at,
                    bytes,
                    follow: one.follow,
                    into: &one.index,
                });
            }
        }
        Ok(out)
    }

    /// The number of the shard at a position, if it would be read without its index.
    pub(crate) fn without_index(&self, meta: &ArrayMeta, position: &[u64]) -> Option<u64> {
        let number = number(&grid(meta)?, position);
        let one = self.0.get(&number)?;
        (one.follow.is_some() && one.index.get().is_none()).then_some(number)
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
        let Some(one) = grid(meta).and_then(|grid| self.0.get(&number(&grid, position))) else {
            return Ok(None);
        };
        match (one.index.get(), one.follow) {
            (Some(index), _) => Ok(index.as_ref()?.range(inner)),
            (None, Some(bytes)) => {
                let from = inner.saturating_mul(bytes);
                Ok(Some(from..from.saturating_add(bytes)))
            }
            (None, None) => Ok(None),
        }
    }

    /// Shards whose indexes are damaged, by number.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (u64, &Fault)> {
        self.0
            .iter()
            .filter_map(|(number, one)| Some((*number, one.index.get()?.as_ref().err()?)))
    }
}

/// Reads indexes, of many shards in one call. Returns how many requests that took, and how many bytes.
///
/// # Errors
/// What the store says. What is wrong with an index is kept with its shard.
pub(crate) async fn read(store: &Arc<dyn Store>, unread: Vec<Unread<'_>>) -> Result<(u64, u64)> {
    let (mut requests, mut bytes) = (0, 0);
    let mut left = &unread[..];
    while !left.is_empty() {
        let lengths = left.iter().map(|one| one.at.end - one.at.start);
        let (part, rest) = left.split_at(at_once(lengths));
        left = rest;
        let ranges = part.iter().map(|one| (one.file.clone(), one.at.clone()));
        match store.read_ranges(ranges.collect()).await {
            Ok((texts, traffic)) => {
                requests += traffic.requests;
                bytes += traffic.bytes + traffic.beside;
                for (one, text) in part.iter().zip(texts) {
                    one.take(&text);
                }
            }
            // One of them was cut since it was listed.
            Err(StorageError::Short { .. }) => one_by_one(store, part).await?,
            Err(e) => return Err(e.into()),
        }
    }
    Ok((requests, bytes))
}

async fn one_by_one(store: &Arc<dyn Store>, unread: &[Unread<'_>]) -> Result<()> {
    for one in unread {
        match store.read(&one.file, one.at.clone()).await {
            Ok(text) => one.take(&text),
            Err(StorageError::Short { size, .. }) => {
                let what = format!("it was cut to {size} bytes since the place was listed");
                one.into.get_or_init(|| Err(Fault::damaged(what)));
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Whether shards have the form that reshard gives them: inner chunks of plain elements, then the index.
fn is_ours(meta: &ArrayMeta, sharding: &Sharding) -> bool {
    let stored = &sharding.stored;
    stored.is_plain(meta.dtype)
        && stored.axes.is_none()
        && sharding.index_crc
        && !sharding.index_at_start
        && !sharding.index_big_endian
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
