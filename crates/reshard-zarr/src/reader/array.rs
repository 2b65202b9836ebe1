//! One array of an opened checkpoint.

use crate::{
    array::meta::{ArrayMeta, Encoding},
    grid::Grid,
};
use reshard_model::{ErrorKind, Layout, Region};
use reshard_storage::Name;
use reshard_strategy::{Result, StrategyError};
use std::collections::BTreeMap;

/// An array, with the numbers of its chunks.
#[derive(Debug)]
pub(crate) struct Array {
    /// Its folder, which is the key of its tensor.
    pub(crate) key: Box<str>,
    pub(crate) meta: ArrayMeta,
    pub(crate) grid: Grid,
    /// The id of its first chunk. The others follow in row-major order.
    pub(crate) first: u32,
    /// How many chunks it has.
    pub(crate) count: u32,
    /// The CRC-32 of each chunk's file, if reshard wrote it.
    pub(crate) checksums: Option<Vec<Option<u32>>>,
}

/// Why an array can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) kind: ErrorKind,
    pub(crate) what: String,
}

impl Refused {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Corrupt,
            what: what.into(),
        }
    }

    pub(crate) fn unknown(what: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Unsupported,
            what: what.into(),
        }
    }
}

impl Array {
    /// The file of a chunk.
    pub(crate) fn file(&self, number: u32) -> Result<Name> {
        let at = self.grid.nth(number.into());
        Ok(Name::new(format!(
            "{}/{}",
            self.key,
            self.meta.keys.name(&at)
        ))?)
    }

    /// The checksum of a chunk's file.
    pub(crate) fn checksum(&self, number: u32) -> Option<u32> {
        *self.checksums.as_ref()?.get(number as usize)?
    }

    /// Where the elements of a chunk lie in its file, if the file holds them as they are. Those beyond the shape are left out.
    pub(crate) fn layout(&self, number: u32) -> Result<Layout> {
        let Encoding::Chunk(stored) = &self.meta.encoding else {
            return Err(StrategyError::Internal(format!(
                "{} is stored in shards",
                self.key
            )));
        };
        let whole = stored.layout(self.meta.dtype, &self.meta.chunk);
        let whole = whole.ok_or_else(|| {
            StrategyError::Internal(format!("a chunk of {} is too large", self.key))
        })?;
        let region = self.grid.region(&self.grid.nth(number.into()));
        Ok(whole.narrow(&Region::whole(&region.lengths)))
    }

    /// The bytes of its files.
    pub(crate) fn stored_bytes(&self, files: &BTreeMap<Name, u64>) -> u64 {
        let bytes = (0..self.count).filter_map(|n| files.get(&self.file(n).ok()?));
        bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// How many of its chunks have no file.
    pub(crate) fn missing(&self, files: &BTreeMap<Name, u64>) -> u32 {
        let there = |n: &u32| self.file(*n).is_ok_and(|file| files.contains_key(&file));
        self.count - (0..self.count).filter(there).count() as u32
    }
}
