//! Where the inner chunks of an array's shards lie.

use super::array::{Array, OneShard, Shards};
use crate::{
    array::{
        meta::{ArrayMeta, Encoding, Sharding},
        shard::{Index, Shard},
    },
    grid::Grid,
    zarr3::RECORD,
};
use bytes::Bytes;
use reshard_model::{Dims, Region};
use reshard_storage::{Name, StorageError, Store};
use reshard_strategy::{Refused, Result, Traffic, read_in_batches};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, OnceLock},
};

/// An index that was not read yet.
pub(crate) struct Unread<'s> {
    shard: Shard<'s>,
    file: Name,
    /// Where the index lies, in a file of so many bytes.
    at: Range<u64>,
    bytes: u64,
    follow: Option<u64>,
    into: &'s OnceLock<Result<Index, Refused>>,
}

impl Unread<'_> {
    /// Keeps the index. One that says something else than what was written is damage: what was read without it would be wrong.
    fn take(&self, text: &[u8]) {
        let index = self.shard.parse(text, self.at.clone(), self.bytes);
        let index = index.and_then(|index| match self.follow {
            Some(inner) if !index.follows(inner) => Err(Refused::damaged(format!(
                "its inner chunks do not lie where they were written, judging by {RECORD}; if the shard was written again on purpose, remove {RECORD}"
            ))),
            _ => Ok(index),
        });
        self.into.get_or_init(|| index);
    }
}

impl Array {
    /// What is known of its shards without their indexes. `files` are all files of the checkpoint. `as_written` says whether all chunks have checksums of
    /// reshard. A shard whose length is the written one then needs no index to be read from.
    pub(crate) fn shards(&self, files: &BTreeMap<Name, u64>, as_written: bool) -> Result<Shards> {
        let (meta, mut out) = (&self.meta, BTreeMap::new());
        let (Encoding::Sharded(sharding), Some(grid)) = (&meta.encoding, meta.files()) else {
            return Ok(Shards(out));
        };
        let (shard, inner) = (Shard::of(meta, sharding), meta.cell_bytes());
        let written = (as_written && is_ours(meta, sharding))
            .then(|| shard.written(inner))
            .flatten();
        for position in grid.positions().blocks(1).map(|p: Region| p.offsets) {
            let Some(&bytes) = files.get(&self.file_at(&position)?) else {
                continue;
            };
            let one = OneShard {
                follow: (written == Some(bytes)).then_some(inner),
                index: OnceLock::new(),
            };
            if let Err(why) = shard.index(bytes) {
                one.index.get_or_init(|| Err(why));
            }
            out.insert(number(&grid, &position), one);
        }
        Ok(Shards(out))
    }

    /// The indexes that were not read yet, of the shards that are wanted: by their numbers, and whether they can be read without an index.
    pub(crate) fn unread_indexes(
        &self,
        files: &BTreeMap<Name, u64>,
        wanted: impl Fn(u64, bool) -> bool,
    ) -> Result<Vec<Unread<'_>>> {
        let (meta, mut out) = (&self.meta, Vec::new());
        let (Encoding::Sharded(sharding), Some(grid)) = (&meta.encoding, meta.files()) else {
            return Ok(out);
        };
        let shard = Shard::of(meta, sharding);
        for (number, one) in &self.shards.0 {
            if one.index.get().is_some() || !wanted(*number, one.follow.is_some()) {
                continue;
            }
            let file = self.file_at(&grid.nth(*number))?;
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

    /// The number of the shard of a chunk, if it would be read without its index.
    pub(crate) fn without_index(&self, chunk: u32) -> Option<u64> {
        let (position, Some(_)) = self.place(chunk) else {
            return None;
        };
        let number = number(&self.meta.files()?, &position);
        let one = self.shards.0.get(&number)?;
        (one.follow.is_some() && one.index.get().is_none()).then_some(number)
    }

    /// Where an inner chunk lies in the shard at a position. `None` if it is not stored.
    ///
    /// # Errors
    /// What is wrong with the index of the shard.
    pub(super) fn range(
        &self,
        position: &[u64],
        inner: u64,
    ) -> Result<Option<Range<u64>>, &Refused> {
        let one = self
            .meta
            .files()
            .and_then(|grid| self.shards.0.get(&number(&grid, position)));
        match one.map(|one| (one.index.get(), one.follow)) {
            Some((Some(index), _)) => Ok(index.as_ref()?.range(inner)),
            Some((None, Some(bytes))) => {
                let from = inner.saturating_mul(bytes);
                Ok(Some(from..from.saturating_add(bytes)))
            }
            Some((None, None)) | None => Ok(None),
        }
    }

    /// The shards whose indexes are damaged, by their positions.
    pub(crate) fn damaged_indexes(&self) -> impl Iterator<Item = (Dims, &Refused)> {
        let grid = self.meta.files();
        self.shards.0.iter().filter_map(move |(number, one)| {
            let why = one.index.get()?.as_ref().err()?;
            Some((grid.as_ref()?.nth(*number), why))
        })
    }
}

/// Reads indexes, of many shards in one call.
///
/// # Errors
/// What the store says. What is wrong with an index is kept with its shard.
pub(crate) async fn read(store: &Arc<dyn Store>, unread: Vec<Unread<'_>>) -> Result<Traffic> {
    let part = |one: &&Unread<'_>| (one.file.clone(), one.at.clone());
    let take = |one: &Unread<'_>, text: Bytes| one.take(&text);
    match read_in_batches(&**store, unread.iter().collect(), part, take).await {
        // One of them was cut since it was listed.
        Err(StorageError::Short { .. }) => one_by_one(store, &unread).await,
        read => Ok(read?),
    }
}

async fn one_by_one(store: &Arc<dyn Store>, unread: &[Unread<'_>]) -> Result<Traffic> {
    for one in unread.iter().filter(|one| one.into.get().is_none()) {
        match store.read(&one.file, one.at.clone()).await {
            Ok(text) => one.take(&text),
            Err(StorageError::Short { size, .. }) => {
                let what = format!("it was cut to {size} bytes since the place was listed");
                one.into.get_or_init(|| Err(Refused::damaged(what)));
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Traffic::default())
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

/// The number of a position in row-major order.
fn number(grid: &Grid, position: &[u64]) -> u64 {
    let counts = grid.positions().lengths;
    position.iter().zip(&*counts).fold(0u64, |n, (at, count)| {
        n.saturating_mul(*count).saturating_add(*at)
    })
}
