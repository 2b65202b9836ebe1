use crate::{Blocks, Crc32, Elements, PartialCrc, Result, WriteData, encode_object, other_kind};
use bytes::Bytes;
use reshard_model::ObjectCodec;
use reshard_plan::{WriteItem, WriteKind};
use reshard_storage::{Extent, Length};
use std::io;

/// The bytes of an item: its elements, or an encoded object. The receipt is their CRC-32, little-endian.
pub(super) struct ItemExtent {
    length: u64,
    blocks: Blocks,
    crc: Crc32,
}

impl ItemExtent {
    /// The bytes of the data of an item.
    pub(super) fn new(item: &WriteItem, data: WriteData, codec: &dyn ObjectCodec) -> Result<Self> {
        let (length, blocks): (u64, Blocks) = match (&item.kind, data) {
            (WriteKind::Tensor(t), WriteData::Tensor(data)) => {
                (t.bytes(), Elements::of(item, t, data)?.blocks())
            }
            (WriteKind::Object { .. }, WriteData::Object(object)) => {
                let bytes = encode_object(codec, &item.key, object)?;
                (bytes.len() as u64, Box::new(std::iter::once(Ok(bytes))))
            }
            _ => return Err(other_kind(item)),
        };
        Ok(Self {
            length,
            blocks,
            crc: Crc32::default(),
        })
    }
}

impl Extent for ItemExtent {
    fn length(&self) -> Length {
        Length::Exact(self.length)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.blocks.next()?;
        block.iter().for_each(|bytes| self.crc.update(bytes));
        Some(block)
    }

    fn has_crc32(&self) -> bool {
        true
    }

    fn crc32(&self) -> Option<u32> {
        Some(self.crc.value())
    }

    fn receipt(&mut self) -> Bytes {
        Bytes::copy_from_slice(&self.crc.value().to_le_bytes())
    }
}
