use super::extent::ItemExtent;
use crate::{
    FileLayout, FinishCx, LimitOption, OpenCx, ReadLimits, Records, Resolve, Result, StrategyError,
    WriteResult,
};
use reshard_model::{DType, Dialect, Dims, ObjectCodec, Region};
use reshard_plan::{PieceId, PlannerData, SavePlan, TensorProperties};
use reshard_storage::{Extent, FileBody, Name};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::Range};

/// An index in memory takes about so many times the bytes of its JSON.
const PARSED: u64 = 8;

/// Where an item lies, and the CRC-32 of its bytes: row-major little-endian elements, or an encoded object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemPlace {
    /// In which file.
    pub file: Name,
    /// Which bytes of it.
    pub bytes: Range<u64>,
    /// The CRC-32 of these bytes, that of zip.
    pub crc32: u32,
}

/// What an [`ItemIndex`] says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorIndex {
    /// Its key.
    pub key: Box<str>,
    /// Type of its elements.
    pub dtype: DType,
    /// Elements per axis, as they are stored.
    pub shape: Dims,
    /// The shape of a tensor that is stored flattened; see [`TensorRef::original_shape`](reshard_plan::TensorRef::original_shape).
    #[serde(default)]
    pub original_shape: Option<Dims>,
    /// What a load doesn't need, and a training job does.
    pub properties: TensorProperties,
    /// Its chunks.
    pub chunks: Vec<(Region, ItemPlace)>,
}

/// The index of a checkpoint: all that it stores, and where. A format writes it as JSON with [`records`](Self::records), or in an
/// encoding of its own: with serde, or by its public fields. The names of fields and of enums' variants don't change between versions of
/// reshard, but their order may, so an encoding that isn't self-describing, such as postcard, needs numbers of its own. It has no place
/// for annotations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemIndex {
    /// Whose conventions the checkpoint follows.
    pub dialect: Dialect,
    /// The tensors.
    pub tensors: Vec<TensorIndex>,
    /// The objects, by their keys.
    pub objects: Vec<(Box<str>, ItemPlace)>,
    /// What the planner wants kept; see [`Metadata::planner_data`](reshard_plan::Metadata::planner_data).
    pub planner_data: Option<PlannerData>,
}

impl ItemIndex {
    /// The files of one rank, for [`StorageWriter::layout`](crate::StorageWriter::layout). Each item is one range. `name` returns the
    /// name of a file of this rank, by its number: there are several only if a [sharding policy](crate::PolicyUse::Pipeline) says so.
    ///
    /// # Errors
    /// Objects that `codec` can't encode, data that are not those of the plan, names that no file can have.
    pub fn layout(
        plan: &SavePlan,
        resolve: &Resolve<'_>,
        codec: &dyn ObjectCodec,
        name: impl Fn(u32) -> String,
    ) -> Result<FileLayout> {
        let mut out = FileLayout::default();
        for (file, items) in (0..).zip(plan.by_file()?) {
            let mut extents: Vec<Box<dyn Extent>> = Vec::with_capacity(items.len());
            for (extent, item) in (0..).zip(items) {
                extents.push(Box::new(ItemExtent::new(item, resolve(item)?, codec)?));
                out.items.push((item.id(), vec![(file, extent)]));
            }
            let name = Name::new(name(file))?;
            out.files.push(FileBody::new(name, extents));
        }
        Ok(out)
    }

    /// The index of what was written by [`layout`](Self::layout), for [`StorageWriter::finish`](crate::StorageWriter::finish). A layout of
    /// your own will do, too: each item is one extent, whose receipt is the CRC-32 of its bytes in 4 bytes, little-endian. Other extents may
    /// lie between them, such as padding that aligns items.
    ///
    /// # Errors
    /// [`StrategyError::Internal`] if an item was not written so.
    pub fn of(cx: &FinishCx<'_>) -> Result<Self> {
        let written = cx.written.iter().flatten();
        let written: BTreeMap<&PieceId, &WriteResult> = written.map(|w| (&w.id, w)).collect();
        let place = |key: &str, offset: Option<Dims>| {
            let key = key.into();
            let id = PieceId { key, offset };
            let missing = |what| StrategyError::Internal(format!("{id} {what}"));
            let part = written
                .get(&id)
                .ok_or_else(|| missing("was not written"))?
                .part()?;
            let crc32 = (*part.receipt).try_into();
            let crc32 = crc32.map_err(|_| missing("has a receipt that is no CRC-32"))?;
            Ok::<_, StrategyError>(ItemPlace {
                file: part.file.clone(),
                bytes: part.range.clone(),
                crc32: u32::from_le_bytes(crc32),
            })
        };
        let tensors = cx.metadata.tensors().map(|t| {
            let chunks = t.chunks().map(|(_, region)| {
                let place = place(t.key(), Some(region.offsets.clone()))?;
                Ok((region, place))
            });
            Ok(TensorIndex {
                key: t.key().into(),
                dtype: t.dtype(),
                shape: t.shape(),
                original_shape: t.original_shape(),
                properties: t.properties(),
                chunks: chunks.collect::<Result<_>>()?,
            })
        });
        let objects = cx.metadata.objects();
        let objects = objects.map(|(_, key)| Ok((key.into(), place(key, None)?)));
        Ok(Self {
            dialect: cx.dialect,
            tensors: tensors.collect::<Result<_>>()?,
            objects: objects.collect::<Result<_>>()?,
            planner_data: cx.metadata.planner_data().cloned(),
        })
    }

    /// The index as JSON, in a format record of this name.
    ///
    /// # Errors
    /// A name that no file can have.
    pub fn records(&self, name: &str) -> Result<Records> {
        let json = serde_json::to_vec(self);
        let json = json.map_err(|e| StrategyError::Internal(format!("{name}: {e}")))?;
        Ok(Records::one(Name::new(name)?, json.into()))
    }

    /// Reads the index from a format record of this name. Its length is checked before it is read.
    ///
    /// # Errors
    /// [`StrategyError::NotACheckpoint`] if there is none, [`StrategyError::Limit`] if it is too long, [`StrategyError::Corrupt`] if it is
    /// no such index.
    pub async fn read(cx: &OpenCx, name: &str) -> Result<Self> {
        let ReadLimits { max_whole, .. } = cx.limits;
        let max = cx.limits.memory(max_whole);
        let limits = cx.limits.with_max_whole(max_whole.min(max / PARSED));
        let bytes = limits.read(&cx.store, &Name::new(name)?).await;
        let bytes = bytes.map_err(|e| match e {
            StrategyError::Limit { what, .. } if limits.max_whole < max_whole => {
                let option = LimitOption::MaxMemory;
                StrategyError::Limit { what, option, max }
            }
            e => e,
        })?;
        let bytes = bytes.ok_or_else(|| StrategyError::NotACheckpoint {
            url: cx.store.url(),
            why: format!("there is no {name}"),
        })?;
        serde_json::from_slice(&bytes).map_err(|e| StrategyError::Corrupt {
            file: name.into(),
            offset: None,
            what: "it is not an index of tensors and objects".into(),
            source: Some(Box::new(e)),
        })
    }
}
