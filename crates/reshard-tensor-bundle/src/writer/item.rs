//! Items on their way to a data file, and what is known of them afterwards.

use crate::object::{Codec, Object};
use bytes::Bytes;
use reshard_plan::{WriteItem, WriteKind};
use reshard_storage::{Extent, Length};
use reshard_strategy::{
    Blocks, Elements, Result, StrategyError, WriteData, encode_object, other_kind,
};
use std::io;

/// Whether an item becomes an entry. A part without elements of a tensor that has some becomes none.
pub(super) fn is_stored(item: &WriteItem) -> bool {
    item.tensor()
        .is_none_or(|t| !t.region.is_empty() || t.global_shape.contains(&0))
}

/// The blocks of an item, and the checksum of what went by.
pub(super) struct Summed {
    length: u64,
    blocks: Blocks,
    crc: u32,
    /// Of an object: what its entry says, and its checksum, which is not that of its bytes.
    object: Option<(u32, Bytes)>,
}

impl Summed {
    pub(super) fn of(item: &WriteItem, data: WriteData) -> Result<Self> {
        let invalid = |what: String| StrategyError::Invalid(format!("{}: {what}", item.key));
        match (&item.kind, data) {
            (WriteKind::Tensor(t), WriteData::Tensor(data)) => {
                let elements = Elements::of(item, t, data)?;
                Ok(Self::new(t.bytes(), elements.blocks()))
            }
            (WriteKind::Object { .. }, WriteData::Object(payload)) => {
                let bytes = encode_object(&Codec::default(), &item.key, payload)?;
                let mut object = Object::parse(&bytes)
                    .ok_or_else(|| invalid("it is no object of a bundle".into()))?;
                let crc = object.crc().map_err(invalid)?;
                let stored = std::mem::take(&mut object.stored);
                Ok(Self {
                    length: stored.len() as u64,
                    blocks: Box::new((!stored.is_empty()).then_some(Ok(stored)).into_iter()),
                    crc: 0,
                    object: Some((crc, object.to_bytes())),
                })
            }
            _ => Err(other_kind(item)),
        }
    }

    /// Elements of this many bytes.
    pub(super) fn new(length: u64, blocks: Blocks) -> Self {
        Self {
            length,
            blocks,
            crc: 0,
            object: None,
        }
    }
}

impl Extent for Summed {
    fn length(&self) -> Length {
        Length::Exact(self.length)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.blocks.next()?;
        if let (Ok(bytes), None) = (&block, &self.object) {
            self.crc = crc32c::crc32c_append(self.crc, bytes);
        }
        Some(block)
    }

    /// The checksum, and what the entry of an object says.
    fn receipt(&mut self) -> Bytes {
        match &self.object {
            None => Bytes::copy_from_slice(&self.crc.to_le_bytes()),
            Some((crc, told)) => [&crc.to_le_bytes()[..], told].concat().into(),
        }
    }
}

/// The checksum in a receipt, and the object without its bytes.
pub(super) fn receipt(bytes: &Bytes) -> Option<(u32, Option<Object>)> {
    let (crc, rest) = bytes.split_first_chunk()?;
    let object = match rest {
        [] => None,
        rest => Some(Object::parse(&bytes.slice_ref(rest))?),
    };
    Some((u32::from_le_bytes(*crc), object))
}
