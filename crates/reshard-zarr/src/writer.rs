//! Which bytes a rank writes: a file for each of its chunks.

mod chunk;

use crate::{
    array::meta::{ArrayMeta, Node, parse_zarr_json, parse_zarray},
    grid::Grid,
    names::{ZARR_JSON, ZARRAY, ZATTRS, join, splits},
    planner::{ByChunks, ChunkShapes, grid_of},
    receipt::{self, Receipt},
    record::{ArrayRecord, Record, SCHEMA},
    stated::{self, Facts},
    version::Form,
    zarr3,
};
use bytes::Bytes;
use chunk::{Chunk, tail};
use reshard_model::{Dims, Region};
use reshard_plan::{PieceId, SavePlan, SavePlanner, TensorRef, WriteItem};
use reshard_storage::{FileBody, Name};
use reshard_strategy::{
    BackendVersion, FileLayout, FinishCx, Records, Refused, Resolve, Result, StorageWriter,
    StrategyError, WriteData, WriteResult, WriterHooks, crc32_combined,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Writes what Megatron Core's zarr strategies write, or shards of Zarr v3.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZarrWriter(pub(crate) Form);

impl WriterHooks for ZarrWriter {
    /// Plans depend on the planner, and on which types have names.
    fn plan_settings(&self) -> Option<String> {
        Some(format!("{:?}", self.0))
    }
}

impl StorageWriter for ZarrWriter {
    fn key(&self) -> BackendVersion {
        self.0.version().info.key()
    }

    fn planner(&self, base: Arc<dyn SavePlanner>) -> Result<Arc<dyn SavePlanner>> {
        Ok(Arc::new(ByChunks { base, form: self.0 }))
    }

    fn layout(&self, _rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let chunks = ChunkShapes::unpack(&plan.storage_data)?;
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
            let (file, items) = file(self.0, key, &at, chunks.0.get(key), &items, resolve)?;
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
        let facts = stated::of_nodes(cx.metadata.annotations());
        for t in cx.metadata.tensors() {
            let key = t.key();
            let (shape, chunk) = written.array(&t);
            let described = self.0.described(shape, chunk, t.dtype());
            let text = described.text().ok_or_else(|| {
                StrategyError::Internal(format!("{key} is written as {}", t.dtype()))
            })?;
            let text = text.map_err(json)?;
            let text = match (self.0, facts.get(key)) {
                (Form::V3 { .. }, Some(facts)) => {
                    let axes = described.shape.len();
                    facts.in_text(&text, Some(axes)).map_err(json)?
                }
                _ => text,
            };
            record.arrays.insert(
                key.into(),
                ArrayRecord {
                    zarray: crc32fast::hash(&text),
                    chunks: written.checksums(key, &self.described(key, &text)?)?,
                    properties: t.properties(),
                    // Who reads the descriptions finds attributes, also those of groups.
                    described: Some(described).filter(|_| facts.is_empty()),
                },
            );
            let name = format!("{key}/{}", self.0.version().description);
            records.files.push((Name::new(name)?, text));
        }
        match self.0 {
            Form::V3 { .. } => groups(&mut records, &facts)?,
            Form::V2 => attributes(&mut records, &facts)?,
        }
        let name = Name::new(self.0.version().record)?;
        records.commit = Some((name, record.to_bytes().map_err(json)?));
        Ok(records)
    }
}

impl ZarrWriter {
    /// What a reader will see of an array.
    fn described(self, key: &str, text: &[u8]) -> Result<ArrayMeta> {
        let parsed = match self.0 {
            Form::V2 => parse_zarray(text),
            Form::V3 { .. } => match parse_zarr_json(text) {
                Ok(Node::Array(array)) => *array,
                Ok(Node::Group(_)) => Err(Refused::damaged("it is a group")),
                Err(why) => Err(why),
            },
        };
        parsed.map_err(|why| {
            let what = format!("the description of {key} can't be read: {}", why.what);
            StrategyError::Internal(what)
        })
    }
}

/// Adds the groups around the arrays, and the root group, which has the descriptions of all.
fn groups(records: &mut Records, facts: &BTreeMap<String, Facts>) -> Result<()> {
    let plain = zarr3::group().map_err(json)?;
    let group = |path: &str| match facts.get(path) {
        Some(facts) => facts.in_text(&plain, None).map_err(json),
        None => Ok(plain.clone()),
    };
    let described = |(name, text): &(Name, Bytes)| {
        let (path, _) = name.as_str().rsplit_once('/')?;
        Some((path.to_owned(), text.clone()))
    };
    let arrays: BTreeMap<String, Bytes> = records.files.iter().filter_map(described).collect();
    let mut around = BTreeSet::new();
    for path in arrays.keys() {
        around.extend(splits(path).map(|(folder, _)| folder));
    }
    around.retain(|path| !arrays.contains_key(*path));
    let groups = around.iter().map(|path| Ok((*path, group(path)?)));
    let groups: BTreeMap<&str, Bytes> = groups.collect::<Result<_>>()?;
    let mut nodes: BTreeMap<&str, &[u8]> =
        groups.iter().map(|(path, text)| (*path, &**text)).collect();
    nodes.extend(arrays.iter().map(|(path, text)| (&**path, &**text)));
    let none = Facts::default();
    let of_root = facts.get("").unwrap_or(&none);
    let root = zarr3::root(&nodes, &of_root.attributes).map_err(json)?;
    for (path, text) in groups {
        let name = Name::new(format!("{path}/{}", ZARR_JSON))?;
        records.files.push((name, text));
    }
    records.files.push((Name::new(ZARR_JSON)?, root));
    Ok(())
}

/// Adds the attributes of arrays and groups of Zarr v2. A group with attributes gets a description.
fn attributes(records: &mut Records, facts: &BTreeMap<String, Facts>) -> Result<()> {
    let file = |path: &str, file: &str| Name::new(join(path, file));
    let arrays: BTreeSet<Name> = records.files.iter().map(|(name, _)| name.clone()).collect();
    for (path, facts) in facts {
        if !arrays.contains(&file(path, ZARRAY)?) {
            let group = Bytes::from_static(br#"{"zarr_format": 2}"#);
            records.files.push((file(path, ".zgroup")?, group));
        }
        let text = facts.zattrs().map_err(json)?;
        records.files.push((file(path, ZATTRS)?, text));
    }
    Ok(())
}

fn json(e: serde_json::Error) -> StrategyError {
    StrategyError::Internal(format!("a description can't be written: {e}"))
}

fn unplanned(item: &WriteItem) -> StrategyError {
    StrategyError::Internal(format!("{} lies on no grid of chunks", item.id()))
}

/// The name of a chunk's file. The last axis of a tensor that is stored flattened counts the elements of a chunk, and is no axis of the
/// array.
fn file_name(form: Form, key: &str, at: &[u64], flattened: bool) -> Result<Name> {
    let at = match (flattened, at) {
        (true, [of_array @ .., _]) => of_array,
        _ => at,
    };
    Ok(Name::new(format!(
        "{key}/{}",
        form.version().keys.name(at)
    ))?)
}

type ItemsOfFile = Vec<(PieceId, Vec<u32>)>;

/// The file of one chunk, and which of its extents make up each item.
fn file(
    form: Form,
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
    let size = first.dtype.size();
    let shape = match &first.original_shape {
        Some(original) => cell_of(original, &first.global_shape),
        None => grid.chunk().clone(),
    };
    let inner = form.inner_bytes(&shape, size);
    let receipt = Receipt::of(grid.chunk(), inner.unwrap_or(u64::MAX));
    let mut chunk = Chunk::new(key, grid.cell(at), first.dtype, receipt.clone())?;
    for item in items {
        let WriteData::Tensor(data) = resolve(item)? else {
            return Err(StrategyError::Invalid(format!(
                "{key}: an object was given for a tensor"
            )));
        };
        chunk.add(item, data)?;
    }
    let name = file_name(form, key, at, first.original_shape.is_some())?;
    let bytes = chunk.bytes();
    let (mut extents, mut of_items) = chunk.extents();
    if let Some(inner) = inner.filter(|inner| *inner > 0) {
        // The index belongs to the last item.
        if let Some(last) = of_items.last_mut() {
            last.push(extents.len() as u32);
        }
        extents.push(tail(zarr3::index(bytes / inner, inner), bytes, receipt));
    }
    let ids = items.iter().map(|item| item.id());
    Ok((FileBody::new(name, extents), ids.zip(of_items).collect()))
}

/// The shape of a cell of a tensor that is stored flattened. Its stored shape is the number of cells per axis, and the elements of a cell.
fn cell_of(original: &[u64], stored: &[u64]) -> Dims {
    let cell = original.iter().zip(stored);
    cell.map(|(n, fragments)| n.checked_div(*fragments).unwrap_or(0).max(1))
        .collect()
}

/// What receipts tell, by key.
struct Written(BTreeMap<Box<str>, ArrayFiles>);

#[derive(Default)]
struct ArrayFiles {
    chunk: Dims,
    /// The length and checksum of each part of a file, by their start.
    files: BTreeMap<Name, BTreeMap<u64, (u64, u32)>>,
}

impl Written {
    fn of(written: &[Vec<WriteResult>]) -> Result<Self> {
        let mut out: BTreeMap<Box<str>, ArrayFiles> = BTreeMap::new();
        for result in written.iter().flatten() {
            let array = out.entry((&*result.id.key).into()).or_default();
            for part in &result.parts {
                let read = Receipt::read(&part.receipt, part.range.clone());
                let receipt::Read { chunk, parts } = read.ok_or_else(|| {
                    StrategyError::Internal(format!("{} has no receipt", part.file))
                })?;
                array.chunk = chunk;
                let of_file = array.files.entry(part.file.clone()).or_default();
                of_file.extend(
                    parts
                        .into_iter()
                        .map(|(start, length, crc)| (start, (length, crc))),
                );
            }
        }
        Ok(Self(out))
    }

    /// The shape of an array, and that of its files.
    fn array(&self, t: &TensorRef<'_>) -> (Dims, Dims) {
        let stored = t.shape();
        if let Some(original) = t.original_shape() {
            let cell = cell_of(&original, &stored);
            return (original, cell);
        }
        let chunk = match self.0.get(t.key()).map(|array| &array.chunk) {
            Some(chunk) if chunk.len() == stored.len() && !chunk.is_empty() => chunk.clone(),
            // Nothing of it was written, because it has no elements, or it has no axes.
            _ => stored.iter().map(|n| (*n).max(1)).collect(),
        };
        (stored, chunk)
    }

    /// The checksum of each chunk, or inner chunk of a shard, in row-major order.
    fn checksums(&self, key: &str, meta: &ArrayMeta) -> Result<Vec<Option<u32>>> {
        let no_grid = || StrategyError::Internal(format!("{key}: {} is no grid", meta.cell()));
        let grid = Grid::new(meta.shape.clone(), meta.cell().clone()).ok_or_else(no_grid)?;
        let files = self.0.get(key).map(|array| &array.files);
        let bytes = meta.cell_bytes();
        let crc = |position: Region| {
            let (file, inner) = meta.place(position.offsets);
            let name = Name::new(format!("{key}/{}", meta.keys.name(&file)))?;
            let start = inner.unwrap_or(0).saturating_mul(bytes);
            let parts = files.and_then(|files| files.get(&name));
            Ok(parts.map(|parts| {
                let of_chunk = parts.range(start..start.saturating_add(bytes));
                crc32_combined(of_chunk.map(|(_, part)| *part))
            }))
        };
        grid.positions().blocks(1).map(crc).collect()
    }
}
