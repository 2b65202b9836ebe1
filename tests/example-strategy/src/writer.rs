//! Where each item goes. The pipeline does all the rest: planning, moving, agreeing.

use crate::{
    NAME,
    index::{CRC, ChunkEntry, INDEX, Index, ObjectEntry, Place, TensorEntry},
};
use bytes::Bytes;
use reshard_model::ObjectCodec;
use reshard_plan::{PieceId, SavePlan, WriteItem, WriteKind};
use reshard_storage::{Extent, FileBody, Length, Name};
use reshard_strategy::{
    BackendVersion, Blocks, Elements, FileLayout, FinishCx, Records, Resolve, Result,
    StorageWriter, StrategyError, WriteData, WriteResult, WriterHooks, encode_object,
};
use reshard_torch_format::TorchSave;
use std::{collections::BTreeMap, io, sync::Arc};

/// Writes `rank-{rank}.bin` and `example.index.json`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExampleWriter;

// Nothing to add to plans, and nothing on which they depend. So the plan of a repeated save is kept.
impl WriterHooks for ExampleWriter {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

impl StorageWriter for ExampleWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    // With it, one rank can write the objects of another.
    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        Some(Arc::new(TorchSave::default()))
    }

    // Lengths are known here, before a byte has moved; elements are pulled later, from I/O threads.
    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let name = Name::new(format!("rank-{rank}.bin"))?;
        let mut out = FileLayout::default();
        let mut extents = Vec::new();
        for (i, item) in (0..).zip(&plan.items) {
            extents.push(Box::new(Summed::new(item, resolve(item)?)?) as Box<dyn Extent>);
            out.items.push((item.id(), vec![(0, i)]));
        }
        if !extents.is_empty() {
            out.files.push(FileBody::new(name, extents));
        }
        Ok(out)
    }

    // The index is what makes the checkpoint; there is no other record.
    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        let metadata = cx.metadata;
        let places: BTreeMap<&PieceId, &WriteResult> =
            cx.written.iter().flatten().map(|p| (&p.id, p)).collect();
        let place = |id: &PieceId| {
            let missing = || StrategyError::Internal(format!("{id} was not written"));
            let part = places.get(id).ok_or_else(missing)?.part()?;
            Ok::<_, StrategyError>(Place {
                file: part.file.clone(),
                offset: part.range.start,
                length: part.length(),
            })
        };
        let mut index = Index {
            planner_data: metadata.planner_data().cloned(),
            ..Index::default()
        };
        for t in metadata.tensors() {
            let mut chunks = Vec::new();
            for (_, region) in t.chunks() {
                let id = PieceId {
                    key: t.key().into(),
                    offset: Some(region.offsets.clone()),
                };
                chunks.push(ChunkEntry {
                    place: place(&id)?,
                    region,
                });
            }
            index.tensors.push(TensorEntry {
                key: t.key().into(),
                dtype: t.dtype(),
                shape: t.shape(),
                properties: t.properties().clone(),
                chunks,
            });
        }
        for (_, key) in metadata.objects() {
            let place = place(&PieceId {
                key: key.into(),
                offset: None,
            })?;
            index.objects.push(ObjectEntry {
                key: key.into(),
                place,
            });
        }
        let json = serde_json::to_vec_pretty(&index)
            .map_err(|e| StrategyError::Invalid(format!("{INDEX}: {e}")))?;
        Ok(Records::one(Name::new(INDEX)?, json.into()))
    }
}

/// An item on its way to the file: its blocks, then the checksum of what went by.
struct Summed {
    length: u64,
    blocks: Option<Blocks>,
    crc: crc32fast::Hasher,
}

impl Summed {
    fn new(item: &WriteItem, data: WriteData) -> Result<Self> {
        let invalid = |what: &str| StrategyError::Invalid(format!("{}: {what}", item.key));
        let (length, blocks): (u64, Blocks) = match (&item.kind, data) {
            (WriteKind::Tensor(t), WriteData::Tensor(data)) => {
                (t.bytes(), Elements::of(item, t, data)?.blocks())
            }
            // Objects are stored as `torch.save` writes them.
            (WriteKind::Object { .. }, WriteData::Object(payload)) => {
                let bytes = encode_object(&TorchSave::default(), &item.key, payload)?;
                (bytes.len() as u64, Box::new(std::iter::once(Ok(bytes))))
            }
            _ => {
                return Err(invalid(
                    "an object was given for a tensor, or a tensor for an object",
                ));
            }
        };
        let length = length
            .checked_add(CRC)
            .ok_or_else(|| invalid("it is too large"))?;
        Ok(Self {
            length,
            blocks: Some(blocks),
            crc: crc32fast::Hasher::new(),
        })
    }
}

impl Extent for Summed {
    fn length(&self) -> Length {
        Length::Exact(self.length)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        match self.blocks.as_mut()?.next() {
            Some(block) => {
                block.iter().for_each(|b| self.crc.update(b));
                Some(block)
            }
            None => {
                self.blocks = None;
                Some(Ok(Bytes::copy_from_slice(
                    &self.crc.clone().finalize().to_le_bytes(),
                )))
            }
        }
    }
}
