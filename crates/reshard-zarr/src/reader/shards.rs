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

/// The indexes of files, as far as they were read.
type Indexes = Vec<Result<Index, Refused>>;

impl<'s> Unread<'s> {
    /// An index without chunks.
    fn empty(&self) -> Result<Index, Refused> {
        Ok(Index {
            // The limit of memory allows so many, because opening has counted them.
            found: vec![None; self.shard.count() as usize],
            covered: Vec::new(),
        })
    }

    /// The file itself, of which the outermost index is read first.
    fn whole(&self, number: usize) -> Part<'s> {
        Part {
            of: number,
            shard: self.shard.clone(),
            first: 0,
            lies: 0..self.bytes,
            index: self.at.clone(),
        }
    }

    /// Keeps the index. One that says something else than what was written is damage: what was read without it would be wrong.
    fn keep(&self, index: Result<Index, Refused>) {
        let index = index.and_then(|index| match self.follow {
            Some(inner) if !index.follows(inner) => Err(Refused::damaged(format!(
                "its inner chunks do not lie where they were written, judging by {RECORD}; if the shard was written again on purpose, remove {RECORD}"
            ))),
            _ => Ok(index),
        });
        self.into.get_or_init(|| index);
    }
}

/// A shard, or an inner chunk that is a shard: its index is the next one to read.
struct Part<'s> {
    /// The number of its file among those that are read.
    of: usize,
    shard: Shard<'s>,
    /// The number of its first chunk in the file.
    first: u64,
    /// Its bytes in the file, and those of its index.
    lies: Range<u64>,
    index: Range<u64>,
}

impl<'s> Part<'s> {
    /// Puts the chunks of an index into the index of the file. Returns inner chunks that are shards.
    fn take(&self, text: Result<Bytes, Refused>, indexes: &mut Indexes) -> Vec<Self> {
        let index = &mut indexes[self.of];
        let Ok(into) = index else {
            return Vec::new();
        };
        match text.and_then(|text| self.parsed(&text, into)) {
            Ok(next) => next,
            Err(why) => {
                *index = Err(why);
                Vec::new()
            }
        }
    }

    fn parsed(&self, text: &[u8], into: &mut Index) -> Result<Vec<Self>, Refused> {
        let (start, size) = (self.lies.start, self.lies.end - self.lies.start);
        let inside = self.index.start - start..self.index.end - start;
        let parsed = self.shard.parse(text, inside, size)?;
        let moved = |at: Range<u64>| start + at.start..start + at.end;
        let found = parsed.found.into_iter().map(|at| at.map(moved));
        let Some(within) = self.shard.within() else {
            for (place, at) in into.found.iter_mut().skip(self.first as usize).zip(found) {
                *place = at;
            }
            return Ok(Vec::new());
        };
        let mut next = Vec::new();
        for (number, lies) in (0u64..).zip(found) {
            let Some(lies) = lies else { continue };
            let at = within.index(lies.end - lies.start)?;
            let index = lies.start + at.start..lies.start + at.end;
            if within.index_has_crc() {
                into.covered.push(index.clone());
            }
            next.push(Self {
                of: self.of,
                shard: within.clone(),
                first: self.first + number * within.count(),
                lies,
                index,
            });
        }
        Ok(next)
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

    /// Where indexes of inner chunks lie, which have checksums, in the shard at a position.
    pub(crate) fn inner_indexes(&self, position: &[u64]) -> &[Range<u64>] {
        let grid = self.meta.files();
        let one = grid.and_then(|grid| self.shards.0.get(&number(&grid, position)));
        match one.and_then(|one| one.index.get()) {
            Some(Ok(index)) => &index.covered,
            _ => &[],
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

/// Reads indexes, of many shards in one call, then those of inner chunks that are shards.
///
/// # Errors
/// What the store says. What is wrong with an index is kept with its shard.
pub(crate) async fn read<'s>(store: &Arc<dyn Store>, unread: Vec<Unread<'s>>) -> Result<Traffic> {
    let mut traffic = Traffic::default();
    let mut indexes: Indexes = unread.iter().map(Unread::empty).collect();
    let all = unread.iter().enumerate();
    let mut parts: Vec<Part<'s>> = all.map(|(n, one)| one.whole(n)).collect();
    while !parts.is_empty() {
        let mut next = Vec::new();
        let range = |part: &&Part<'s>| (unread[part.of].file.clone(), part.index.clone());
        let take = |part: &Part<'s>, text: Bytes| next.extend(part.take(Ok(text), &mut indexes));
        match read_in_batches(&**store, parts.iter().collect(), range, take).await {
            // One of them was cut since it was listed.
            Err(StorageError::Short { .. }) => {
                next.clear();
                for part in &parts {
                    let (file, at) = range(&part);
                    let text = match store.read(&file, at).await {
                        Err(StorageError::Short { size, .. }) => Err(Refused::damaged(format!(
                            "it was cut to {size} bytes since the place was listed"
                        ))),
                        text => Ok(text?),
                    };
                    next.extend(part.take(text, &mut indexes));
                }
            }
            read => traffic += read?,
        }
        parts = next;
    }
    for (one, index) in unread.iter().zip(indexes) {
        one.keep(index);
    }
    Ok(traffic)
}

/// Whether shards have the form that reshard gives them: inner chunks of plain elements, then the index.
fn is_ours(meta: &ArrayMeta, sharding: &Sharding) -> bool {
    let Encoding::Chunk(stored) = &*sharding.within else {
        return false;
    };
    stored.is_plain(meta.dtype)
        && sharding.axes.is_none()
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
