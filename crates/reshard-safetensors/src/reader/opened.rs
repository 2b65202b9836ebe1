//! An opened checkpoint: its tables, and where its items are stored.

use reshard_model::{Dialect, Layout};
use reshard_plan::{ChunkId, Metadata};
use reshard_storage::{Name, Store};
use reshard_strategy::{ReadLimits, Refused, Result, Rewritten, StrategyError, UnreadPart};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Where a chunk lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// The number of its file.
    pub(crate) file: u32,
    /// Its first byte in the file.
    pub(crate) start: u64,
    /// The CRC-32 of its bytes, if reshard wrote it.
    pub(crate) crc: Option<u32>,
}

/// Where an object lies in the file of objects.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Range<u64>,
    /// The CRC-32 of its bytes.
    pub(crate) crc: u32,
}

/// An opened checkpoint.
#[derive(Debug)]
pub(crate) struct SafetensorsReader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dialect: Dialect,
    pub(crate) limits: ReadLimits,
    pub(crate) metadata: Arc<Metadata>,
    /// By their ids.
    pub(crate) chunks: Vec<Chunk>,
    /// By their ids.
    pub(crate) objects: Vec<Object>,
    /// Tensors and objects that can't be read, by key.
    pub(crate) refused: BTreeMap<Box<str>, Refused>,
    /// The files of tensors.
    pub(crate) files: Vec<Name>,
    /// The headers that were not read, by the numbers of their files.
    pub(crate) unread: BTreeMap<u32, UnreadPart>,
    pub(crate) notes: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// Headers that are not the written ones, as far as opening has read them.
    pub(crate) rewritten: Vec<Rewritten>,
    /// The index, if it was read.
    pub(crate) index: Option<Name>,
    /// Files of the model that the index does not name.
    pub(crate) unnamed: Vec<Name>,
    pub(crate) has_record: bool,
    pub(crate) is_sharded: bool,
    /// Whether one file was named, and not its folder.
    pub(crate) is_alone: bool,
}

/// A chunk, and where it lies.
pub(super) struct Stored<'r> {
    pub(super) key: &'r str,
    pub(super) file: &'r Name,
    pub(super) bytes: Range<u64>,
    pub(super) layout: Layout,
    pub(super) crc: Option<u32>,
}

impl SafetensorsReader {
    pub(super) fn stored(&self, id: ChunkId) -> Result<Stored<'_>> {
        let unknown = || StrategyError::Internal(format!("no chunk has number {}", id.0));
        let chunk = self.chunks.get(id.0 as usize).ok_or_else(unknown)?;
        let (tensor, region) = self.metadata.chunk(id).ok_or_else(unknown)?;
        let layout = Layout::contiguous(tensor.dtype().size(), &region.lengths);
        let layout = layout.ok_or_else(unknown)?;
        let end = chunk
            .start
            .checked_add(layout.bytes())
            .ok_or_else(unknown)?;
        Ok(Stored {
            key: tensor.key(),
            file: self.files.get(chunk.file as usize).ok_or_else(unknown)?,
            bytes: chunk.start..end,
            layout,
            crc: chunk.crc,
        })
    }
}

/// The name of what has a checksum.
pub(super) fn tensor(key: &str) -> String {
    format!("tensor {key}")
}
