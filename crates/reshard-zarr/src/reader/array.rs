//! One array of an opened checkpoint.

use crate::{
    array::{decode::error_in, meta::ArrayMeta, shard::Index},
    grid::Grid,
    names::join,
    place::PlaceFiles,
};
use reshard_model::{Dims, Layout, Region};
use reshard_storage::Name;
use reshard_strategy::{Refused, Result, StrategyError, UnreadPart};
use std::{collections::BTreeMap, ops::Range, sync::OnceLock};

/// An array, with the numbers of its chunks.
#[derive(Debug)]
pub(crate) struct Array {
    /// The key of its tensor.
    pub(crate) key: Box<str>,
    /// Its folder. It is empty if the place itself is the array.
    pub(crate) folder: Box<str>,
    pub(crate) meta: ArrayMeta,
    pub(crate) grid: Grid,
    /// The id of its first chunk. The others follow in row-major order.
    pub(crate) first: u32,
    /// How many chunks it has.
    pub(crate) count: u32,
    /// Where the inner chunks of its shards lie.
    pub(crate) shards: Shards,
    /// The CRC-32 of each chunk, if reshard wrote it.
    pub(crate) checksums: Option<Vec<Option<u32>>>,
    /// Its description, if it was not read.
    pub(crate) unread: Option<UnreadPart>,
}

/// The shards of an array that are there, by their numbers in row-major order. Empty if the array has no shards.
#[derive(Debug, Default)]
pub(crate) struct Shards(pub(super) BTreeMap<u64, OneShard>);

/// What is known of a shard.
#[derive(Debug, Default)]
pub(super) struct OneShard {
    /// The bytes of an inner chunk, if reshard wrote the shard: then all of them follow each other from the first byte on.
    pub(super) follow: Option<u64>,
    /// Its index, when it was read. What is wrong with it is said when the shard is read.
    pub(super) index: OnceLock<Result<Index, Refused>>,
}

/// The description of an array is not the written one.
pub(crate) fn changed(description: &str, noted_in: &str) -> Refused {
    Refused::damaged(format!(
        "its {description} is not the one that was written, judging by {noted_in}; if it was changed on purpose, remove {noted_in}"
    ))
}

impl Array {
    /// The file of a chunk.
    pub(crate) fn file(&self, number: u32) -> Result<Name> {
        self.file_at(&self.place(number).0)
    }

    /// The file at a position of the grid of files.
    pub(crate) fn file_at(&self, position: &[u64]) -> Result<Name> {
        let name = self.meta.keys.name(position);
        Ok(Name::new(join(&self.folder, &name))?)
    }

    /// Whether a file at this position of the grid of files has chunks of the array.
    pub(crate) fn has_file(&self, at: &[u64]) -> bool {
        self.meta.files().is_some_and(|grid| grid.contains(at))
    }

    /// The position of a chunk's file, and the number of the chunk in it if it is a shard.
    pub(crate) fn place(&self, number: u32) -> (Dims, Option<u64>) {
        self.meta.place(self.grid.nth(number.into()))
    }

    /// Which bytes of which file a chunk is. `None` if it is not stored, so that its elements are the fill value. `files` are all
    /// files of the checkpoint.
    ///
    /// # Errors
    /// The file should be there, or it is damaged.
    pub(crate) fn stored(
        &self,
        number: u32,
        files: &PlaceFiles,
    ) -> Result<Option<(Name, Range<u64>)>> {
        let (position, inner) = self.place(number);
        let file = self.file_at(&position)?;
        let key = &self.key;
        let wrong = |what: String| Err(StrategyError::corrupt(&file, None, what));
        let Some(&bytes) = files.get(&file) else {
            if let Some(what) = files.obstacle(file.as_str()) {
                return wrong(format!(
                    "{what}, and should be a file with a chunk of {key}"
                ));
            }
            return match self.checksum(number) {
                Some(_) => wrong(format!("it is missing, and it holds a chunk of {key}")),
                None => Ok(None),
            };
        };
        let at = match inner {
            None => 0..bytes,
            Some(inner) => match self.range(&position, inner) {
                Err(why) => {
                    let why = Refused::new(why.kind, format!("{key}: {}", why.what));
                    return Err(error_in(&file, None, why));
                }
                Ok(Some(at)) => at,
                Ok(None) if self.checksum(number).is_some() => {
                    return wrong(format!(
                        "inner chunk {inner} is missing, and it is one of {key}"
                    ));
                }
                Ok(None) => return Ok(None),
            },
        };
        // Encoded chunks have any length.
        let encoded = !self.meta.stored().codecs.is_empty();
        match (at.end - at.start, self.meta.cell_bytes()) {
            (found, whole) if encoded || found == whole => Ok(Some((file, at))),
            (found, whole) => wrong(format!(
                "it has {found} bytes, but a chunk of {key} has {whole}"
            )),
        }
    }

    /// The checksum of a chunk's file.
    pub(crate) fn checksum(&self, number: u32) -> Option<u32> {
        *self.checksums.as_ref()?.get(number as usize)?
    }

    /// Where the elements of a chunk lie in its bytes, as they are decoded. Those beyond the shape are left out.
    pub(crate) fn layout(&self, number: u32) -> Result<Layout> {
        let whole = self.meta.stored().layout(self.meta.dtype, self.meta.cell());
        let whole = whole.ok_or_else(|| {
            StrategyError::Internal(format!("a chunk of {} is too large", self.key))
        })?;
        Ok(whole.narrow(&self.inside(number)))
    }

    /// The elements of a chunk that lie in the shape, counted from the start of the chunk.
    pub(crate) fn inside(&self, number: u32) -> Region {
        Region::whole(&self.grid.region(&self.grid.nth(number.into())).lengths)
    }

    /// Whether the index of its shard is damaged, so that nobody knows where a chunk lies.
    pub(crate) fn is_lost(&self, number: u32) -> bool {
        match self.place(number) {
            (_, None) => false,
            (position, Some(inner)) => self.range(&position, inner).is_err(),
        }
    }

    /// Bytes of its chunks that are stored, as far as they are sound.
    pub(crate) fn stored_bytes(&self, files: &PlaceFiles) -> u64 {
        let stored = |n| Some(self.stored(n, files).ok()??.1);
        let bytes = (0..self.count)
            .filter_map(stored)
            .map(|at| at.end - at.start);
        bytes.fold(0, u64::saturating_add)
    }

    /// How many of its chunks are not stored.
    pub(crate) fn missing(&self, files: &BTreeMap<Name, u64>) -> u32 {
        let there = |n: &u32| match self.place(*n) {
            (position, None) => self
                .file_at(&position)
                .is_ok_and(|file| files.contains_key(&file)),
            // What nobody knows is not counted.
            (position, Some(inner)) => self.range(&position, inner).map_or(true, |at| at.is_some()),
        };
        self.count - (0..self.count).filter(there).count() as u32
    }
}
