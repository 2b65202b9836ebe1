//! The index of what all ranks have written.

use super::item;
use crate::{
    TensorBundleConfig,
    crc::mask,
    dtype::{self, STRING},
    entry::{Entry, Extent, Header, Shape, Slice},
    graph::OBJECT_GRAPH,
    names::{self, DataFile},
    ordered_code,
    record::{Form, OfTensor, Record},
    strings,
    table::write::TableBuilder,
};
use bytes::Bytes;
use prost::Message as _;
use reshard_model::{Dims, Region};
use reshard_plan::{Metadata, PieceId, TensorRef};
use reshard_strategy::{FinishCx, Result, StorageInfo, StrategyError, WriteResult};
use std::{collections::BTreeMap, fmt::Display};

/// What describes a checkpoint.
pub(super) struct Described {
    pub(super) index: Vec<u8>,
    pub(super) record: Record,
    /// The last data file, if no rank has written it: the object graph, or nothing.
    pub(super) data: Option<(String, Bytes)>,
}

pub(super) fn describe(settings: &TensorBundleConfig, cx: &FinishCx<'_>) -> Result<Described> {
    let mut table = Table {
        written: cx.written.iter().flatten().map(|w| (&w.id, w)).collect(),
        entries: BTreeMap::new(),
        shards: 0,
        written_shards: 0,
    };
    let mut record = Record::new(cx.metadata.planner_data().cloned());
    for t in cx.metadata.tensors() {
        let (key, name) = (t.key(), settings.name(t.key()));
        table.tensor(&name, &t)?;
        let noted = OfTensor {
            properties: t.properties(),
            original_shape: t.original_shape(),
        };
        if noted != OfTensor::default() {
            record.tensors.insert(key.into(), noted);
        }
        if name != key {
            record.names.insert(name, key.into());
        }
    }
    for (_, key) in cx.metadata.objects() {
        let form = table.object(key)?;
        if form != Form::default() {
            record.objects.insert(key.into(), form);
        }
    }
    let data = table.last(settings, cx.metadata)?;
    let header = Header::new(signed(table.shards)?);
    let mut builder = TableBuilder::default();
    builder.add(b"", &header.encode_to_vec());
    for (key, entry) in &table.entries {
        builder.add(key, &entry.encode_to_vec());
    }
    Ok(Described {
        index: builder.finish(),
        record,
        data,
    })
}

struct Table<'w> {
    written: BTreeMap<&'w PieceId, &'w WriteResult>,
    /// By the keys of the index.
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Number of data files, as their names tell it.
    shards: u32,
    /// How many of them ranks have written.
    written_shards: u32,
}

fn signed<U: Copy + Display, S: TryFrom<U>>(n: U) -> Result<S> {
    S::try_from(n)
        .map_err(|_| StrategyError::Invalid(format!("{n} is beyond what a bundle can say")))
}

fn shape_of(dims: &Dims) -> Result<Option<Shape>> {
    let lengths = dims.iter().map(|n| signed(*n));
    let lengths: Vec<i64> = lengths.collect::<Result<_>>()?;
    Ok(Some(Shape::new(lengths)))
}

impl<'w> Table<'w> {
    fn result(&self, key: &str, offset: Option<Dims>) -> Result<&'w WriteResult> {
        let id = PieceId {
            key: key.into(),
            offset,
        };
        let written = self.written.get(&id).copied();
        written.ok_or_else(|| StrategyError::Internal(format!("{id} was not written")))
    }

    /// The entry of what lies there.
    fn entry(
        &mut self,
        at: &StorageInfo,
        dtype: dtype::Enum,
        shape: &Dims,
        crc: u32,
    ) -> Result<Entry> {
        let unknown = || StrategyError::Internal(format!("{} is no data file", at.file));
        let file = DataFile::parse(at.file.as_str()).ok_or_else(unknown)?;
        self.shards = file.of;
        self.written_shards = self.written_shards.max(file.shard + 1);
        Ok(Entry {
            dtype,
            shape: shape_of(shape)?,
            shard: signed(file.shard)?,
            offset: signed(at.range.start)?,
            size: signed(at.length())?,
            crc: mask(crc),
            slices: Vec::new(),
        })
    }

    fn tensor(&mut self, name: &str, t: &TensorRef<'_>) -> Result<()> {
        let (key, shape) = (t.key(), t.shape());
        let dtype = dtype::number(t.dtype()).ok_or_else(|| {
            StrategyError::Internal(format!("{key} was written as {}", t.dtype()))
        })?;
        let mut parts = Vec::new();
        for (_, region) in t.chunks() {
            let result = self.result(key, Some(region.offsets.clone()))?;
            // A part without elements was not written.
            let Some(at) = result.parts.first() else {
                continue;
            };
            let crc = item::receipt(&at.receipt).map(|(crc, _)| crc);
            let crc = crc
                .ok_or_else(|| StrategyError::Internal(format!("{} has no checksum", result.id)))?;
            // All parts of a tensor that is stored whole are one, and its first part has it.
            let stored = match dtype::is_sliced(t.dtype()) {
                true => region,
                false => Region::whole(&shape),
            };
            parts.push((self.entry(at, dtype, &stored.lengths, crc)?, stored));
        }
        let whole = parts.iter().position(|(_, region)| region.lengths == shape);
        if let Some(whole) = whole {
            let (entry, _) = parts.swap_remove(whole);
            self.entries.insert(name.into(), entry);
            return Ok(());
        }
        if parts.is_empty() && shape.contains(&0) {
            // Nobody writes a tensor without elements. It lies in the first file, from its first byte on to that.
            let nothing = Entry {
                dtype,
                shape: shape_of(&shape)?,
                crc: mask(0),
                ..Entry::default()
            };
            self.entries.insert(name.into(), nothing);
            return Ok(());
        }
        if parts.is_empty() {
            return Err(StrategyError::Invalid(format!(
                "no part of {key} is saved, and a bundle can't hold a tensor without any; leave it out"
            )));
        }
        // In the order in which they lie in files, as TensorFlow lists them.
        parts.sort_by_key(|(entry, _)| (entry.shard, entry.offset));
        let mut full = Entry {
            dtype,
            shape: shape_of(&shape)?,
            shard: parts.first().map_or(0, |(entry, _)| entry.shard),
            ..Entry::default()
        };
        for (entry, region) in parts {
            let too_large = || {
                StrategyError::Invalid(format!("{key}: {region} is beyond what a bundle can say"))
            };
            let extents = ordered_code::extents(&region).ok_or_else(too_large)?;
            let slice_key = ordered_code::slice_key(name.as_bytes(), extents.iter().copied());
            let extents = extents.into_iter().map(|(start, length)| Extent {
                start,
                length: Some(length),
            });
            full.slices.push(Slice {
                extents: extents.collect(),
            });
            self.entries.insert(slice_key, entry);
        }
        self.entries.insert(name.into(), full);
        Ok(())
    }

    fn object(&mut self, key: &str) -> Result<Form> {
        let result = self.result(key, None)?;
        let lost = || StrategyError::Internal(format!("{key} has no receipt of an object"));
        let at = result.parts.first().ok_or_else(lost)?;
        let Some((crc, Some(object))) = item::receipt(&at.receipt) else {
            return Err(lost());
        };
        let entry = self.entry(at, object.dtype, &object.shape, crc)?;
        self.entries.insert(key.into(), entry);
        Ok(object.form)
    }

    /// Adds the object graph, if this save makes one. It is the last data file. If there is no other one, and no graph, that file is
    /// empty.
    fn last(
        &mut self,
        settings: &TensorBundleConfig,
        metadata: &Metadata,
    ) -> Result<Option<(String, Bytes)>> {
        let has_graph = metadata.entries().any(|entry| entry.key() == OBJECT_GRAPH);
        let keys: Vec<String> = metadata.tensors().map(|t| t.key().to_owned()).collect();
        let makes_graph = match self.shards {
            // Of tensors without elements the plan knew nothing.
            0 => !has_graph && settings.makes_graph(keys.iter().map(|key| &**key)),
            _ => self.written_shards < self.shards,
        };
        if !makes_graph && self.shards > 0 {
            return Ok(None);
        }
        self.shards = self.shards.max(1);
        let last = self.shards - 1;
        let mut stored = Bytes::new();
        if makes_graph {
            let names: Vec<String> = keys.iter().map(|key| settings.name(key)).collect();
            let graph = settings.graph(names.iter().map(|name| &**name));
            let (bytes, crc) = strings::encode([&*graph].into_iter());
            let entry = Entry {
                dtype: STRING,
                shape: Some(Shape::default()),
                shard: signed(last)?,
                size: signed(bytes.len())?,
                crc: mask(crc),
                ..Entry::default()
            };
            self.entries.insert(OBJECT_GRAPH.into(), entry);
            stored = bytes.into();
        }
        Ok(Some((
            names::data(settings.stem(), last, self.shards),
            stored,
        )))
    }
}
