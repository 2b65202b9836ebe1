//! Which bytes a rank writes: a file for each of its chunks.

mod chunk;
mod pieces;

use crate::{
    NAME, RECORD,
    array::meta::ChunkKeys,
    grid::Grid,
    names::ZARRAY,
    planner::{Chunks, grid_of},
    receipt::{Receipt, combined},
    record::{ArrayRecord, Record, SCHEMA},
    zarray,
};
use chunk::Chunk;
use reshard_model::{Dims, Region};
use reshard_plan::{PieceId, SavePlan, TensorRef, WriteItem};
use reshard_storage::{FileBody, Name};
use reshard_strategy::{
    BackendVersion, FileLayout, FinishCx, Records, Resolve, Result, StorageWriter, StrategyError,
    WriteData, WriteResult, WriterHooks,
};
use std::collections::BTreeMap;

/// Writes what Megatron Core's zarr strategies write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ZarrWriter;

impl WriterHooks for ZarrWriter {
    /// Plans depend on the planner alone.
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

impl StorageWriter for ZarrWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        false
    }

    fn layout(&self, _rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let chunks = Chunks::unpack(&plan.storage_data)?;
        let mut out = FileLayout::default();
        let mut of_file: BTreeMap<(&str, Dims), Vec<&WriteItem>> = BTreeMap::new();
        for item in &plan.items {
            let t = item.tensor().ok_or_else(|| unplanned(item))?;
            if t.region.is_empty() {
                out.items.push((item.id(), Vec::new()));
                continue;
            }
            let grid = chunks.0.get(&item.key).and_then(|chunk| grid_of(t, chunk));
            let at = grid.ok_or_else(|| unplanned(item))?.at(&t.region.offsets);
            of_file.entry((&item.key, at)).or_default().push(item);
        }
        for (n, ((key, at), items)) in (0..).zip(of_file) {
            let (file, items) = file(key, &at, chunks.0.get(key), &items, resolve)?;
            out.files.push(file);
            let extents = |of: Vec<u32>| of.into_iter().map(|extent| (n, extent)).collect();
            out.items
                .extend(items.into_iter().map(|(id, of)| (id, extents(of))));
        }
        Ok(out)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        let written = Written::of(cx.written)?;
        let mut record = Record {
            schema: SCHEMA,
            planner_data: cx.metadata.planner_data().cloned(),
            ..Record::default()
        };
        let mut records = Records::default();
        for t in cx.metadata.tensors() {
            let key = t.key();
            let Some(dtype) = zarray::spelling(t.dtype()) else {
                return Err(StrategyError::Internal(format!(
                    "{key} is written as {}",
                    t.dtype()
                )));
            };
            let (grid, shape, chunk) = written.array(&t)?;
            let text = zarray::text(&shape, &chunk, dtype).map_err(json)?;
            record.arrays.insert(
                key.into(),
                ArrayRecord {
                    zarray: crc32fast::hash(&text),
                    chunks: written.checksums(key, &grid, t.original_shape().is_some())?,
                    properties: t.properties(),
                },
            );
            records
                .files
                .push((Name::new(format!("{key}/{ZARRAY}"))?, text));
        }
        records.commit = Some((Name::new(RECORD)?, record.to_bytes().map_err(json)?));
        Ok(records)
    }
}

fn json(e: serde_json::Error) -> StrategyError {
    StrategyError::Internal(format!("a description can't be written: {e}"))
}

fn unplanned(item: &WriteItem) -> StrategyError {
    StrategyError::Internal(format!("{} lies on no grid of chunks", item.id()))
}

/// The name of a chunk's file. The last axis of a tensor that is stored flattened counts the elements of a chunk, and is no axis of the
/// array.
fn file_name(key: &str, at: &[u64], flattened: bool) -> Result<Name> {
    let at = match (flattened, at) {
        (true, [of_array @ .., _]) => of_array,
        _ => at,
    };
    Ok(Name::new(format!("{key}/{}", ChunkKeys::DOTS.name(at)))?)
}

type ItemsOfFile = Vec<(PieceId, Vec<u32>)>;

/// The file of one chunk, and which of its extents make up each item.
fn file(
    key: &str,
    at: &[u64],
    chunk: Option<&Dims>,
    items: &[&WriteItem],
    resolve: &Resolve<'_>,
) -> Result<(FileBody, ItemsOfFile)> {
    let lost = || StrategyError::Internal(format!("{key}: a chunk without items is planned"));
    let first = items
        .first()
        .and_then(|item| item.tensor())
        .ok_or_else(lost)?;
    let grid = chunk
        .and_then(|chunk| grid_of(first, chunk))
        .ok_or_else(lost)?;
    let mut chunk = Chunk::new(key, grid.cell(at), first.dtype, Receipt::of(grid.chunk()))?;
    for item in items {
        let WriteData::Tensor(data) = resolve(item)? else {
            return Err(StrategyError::Invalid(format!(
                "{key}: an object was given for a tensor"
            )));
        };
        chunk.add(item, data)?;
    }
    let name = file_name(key, at, first.original_shape.is_some())?;
    let (extents, of_items) = chunk.extents();
    let ids = items.iter().map(|item| item.id());
    Ok((FileBody::new(name, extents), ids.zip(of_items).collect()))
}

/// What receipts tell, by key.
struct Written(BTreeMap<Box<str>, ArrayFiles>);

#[derive(Default)]
struct ArrayFiles {
    chunk: Dims,
    /// The parts of each file, by their start.
    files: BTreeMap<Name, BTreeMap<u64, (u64, u32)>>,
}

impl Written {
    fn of(written: &[Vec<WriteResult>]) -> Result<Self> {
        let mut out: BTreeMap<Box<str>, ArrayFiles> = BTreeMap::new();
        for result in written.iter().flatten() {
            let array = out.entry((&*result.id.key).into()).or_default();
            for part in &result.parts {
                let (crc, chunk) = Receipt::read(&part.receipt).ok_or_else(|| {
                    StrategyError::Internal(format!("{} has no receipt", part.file))
                })?;
                array.chunk = chunk;
                let parts = array.files.entry(part.file.clone()).or_default();
                parts.insert(part.range.start, (part.length(), crc));
            }
        }
        Ok(Self(out))
    }

    /// The grid of a tensor as the plans count its elements, and shape and chunks of its array.
    fn array(&self, t: &TensorRef<'_>) -> Result<(Grid, Dims, Dims)> {
        let stored = t.shape();
        let chunk = match self.0.get(t.key()).map(|array| &array.chunk) {
            Some(chunk) if chunk.len() == stored.len() && !chunk.is_empty() => chunk.clone(),
            // Nothing of it was written, because it has no elements, or it has no axes.
            _ => stored.iter().map(|n| (*n).max(1)).collect(),
        };
        let no_grid = || StrategyError::Internal(format!("{}: {chunk} is no grid", t.key()));
        let grid = Grid::new(stored.clone(), chunk.clone()).ok_or_else(no_grid)?;
        let Some(original) = t.original_shape() else {
            return Ok((grid, stored, chunk));
        };
        let cell = original.iter().zip(&*stored);
        let cell = cell.map(|(n, fragments)| n.checked_div(*fragments).unwrap_or(0).max(1));
        let cell = cell.collect();
        Ok((grid, original, cell))
    }

    /// The checksum of each chunk, in row-major order.
    fn checksums(&self, key: &str, grid: &Grid, flattened: bool) -> Result<Vec<Option<u32>>> {
        let files = self.0.get(key).map(|array| &array.files);
        let positions = grid.positions().blocks(1);
        let crc = |position: Region| {
            let name = file_name(key, &position.offsets, flattened)?;
            let parts = files.and_then(|files| files.get(&name));
            Ok(parts.map(|parts| combined(parts.values().copied())))
        };
        positions.map(crc).collect()
    }
}
