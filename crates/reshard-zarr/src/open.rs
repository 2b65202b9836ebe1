//! Opens a folder of arrays: reads the description of each, and looks which of their files are there.

use crate::{
    NAME, RECORD,
    array::meta::{ArrayMeta, Encoding, Fault, FaultKind, parse_zarray},
    grid::{Grid, MAX_CHUNKS},
    names::{SYNC, ZARRAY},
    reader::{Array, Refused, ZarrReader},
    record::{ArrayRecord, Record},
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{Dialect, ErrorKind, Region};
use reshard_plan::{Metadata, MetadataBuilder, TensorProperties};
use reshard_storage::{Depth, Listing, Name, Store};
use reshard_strategy::{
    BackendVersion, Detection, OpenCx, OpenFormat, OwnFile, ReadLimits, Result, StorageReader,
    StrategyError,
};
use std::{collections::BTreeMap, sync::Arc};

/// The format.
#[derive(Debug)]
pub(crate) struct Zarr;

#[async_trait]
impl OpenFormat for Zarr {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn own_file(&self, name: &str) -> Option<OwnFile> {
        (name == RECORD).then_some(OwnFile::Record)
    }

    fn detect(&self, top: &Listing) -> Detection {
        let array = |name: &str| matches!(name.rsplit_once('/'), Some((_, ZARRAY)));
        match top.names().any(|name| name == RECORD || array(name)) {
            true => Detection::Yes,
            false => Detection::No,
        }
    }

    fn probes(&self) -> &'static [&'static str] {
        &[RECORD]
    }

    fn probes_in_folders(&self) -> &'static [&'static str] {
        &[ZARRAY]
    }

    fn can_handle_sharded_objects(&self) -> bool {
        false
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let record = match cx.limits.read(&cx.store, &Name::new(RECORD)?).await? {
            None => None,
            Some(bytes) => Some(Record::parse(&bytes).map_err(|e| damaged_record(&e))?),
        };
        let files: BTreeMap<Name, u64> = cx
            .store
            .list(None, Depth::All)
            .await?
            .files
            .into_iter()
            .map(|entry| (entry.name, entry.bytes))
            .collect();
        let texts = texts(&cx.store, &files).await?;

        // Megatron Core's `metadata.json` may describe a checkpoint without tensors.
        if texts.is_empty() && record.is_none() && cx.dialect != Dialect::Megatron {
            return Err(StrategyError::NotACheckpoint {
                url: cx.store.url(),
                why: format!("no folder in it has a {ZARRAY}, and there is no {RECORD}"),
            });
        }
        let tables = Tables::of(texts, record, &cx.limits)?;
        Ok(Arc::new(ZarrReader {
            store: Arc::clone(&cx.store),
            limits: cx.limits,
            dialect: cx.dialect,
            metadata: Arc::new(tables.metadata),
            arrays: tables.arrays,
            refused: tables.refused,
            has_record: tables.has_record,
            files,
        }))
    }
}

fn damaged_record(why: &str) -> StrategyError {
    StrategyError::corrupt(RECORD, None, format!("it can't be parsed: {why}"))
}

/// A description is a few hundred bytes; one with many filters is a few thousand.
const DESCRIPTION: u64 = 1 << 20;

/// How many descriptions are read in one call.
const AT_ONCE: usize = 512;

/// The description of each array, by its folder. `None` for one that is too long to be one.
async fn texts(
    store: &Arc<dyn Store>,
    files: &BTreeMap<Name, u64>,
) -> Result<Vec<(String, Option<Bytes>)>> {
    let mut found = Vec::new();
    for (name, &bytes) in files {
        let Some((folder, ZARRAY)) = name.as_str().rsplit_once('/') else {
            continue;
        };
        // The lock files of Megatron Core are empty.
        if bytes == 0 && folder.ends_with(SYNC) {
            continue;
        }
        found.push((folder.to_owned(), name.clone(), bytes));
    }
    let mut out = Vec::with_capacity(found.len());
    for part in found.chunks(AT_ONCE) {
        let short = part.iter().filter(|(.., bytes)| *bytes <= DESCRIPTION);
        let ranges = short.map(|(_, name, bytes)| (name.clone(), 0..*bytes));
        let mut read = store.read_ranges(ranges.collect()).await?.0.into_iter();
        for (folder, _, bytes) in part {
            let text = (*bytes <= DESCRIPTION).then(|| read.next()).flatten();
            out.push((folder.clone(), text));
        }
    }
    Ok(out)
}

/// What is stored, and what can't be read.
struct Tables {
    metadata: Metadata,
    arrays: Vec<Array>,
    refused: BTreeMap<String, Refused>,
    has_record: bool,
}

impl Tables {
    fn of(
        texts: Vec<(String, Option<Bytes>)>,
        record: Option<Record>,
        limits: &ReadLimits,
    ) -> Result<Self> {
        let has_record = record.is_some();
        let Record {
            arrays: mut noted,
            planner_data,
            ..
        } = record.unwrap_or_default();
        let (mut builder, mut arrays, mut refused) =
            (Metadata::builder(), Vec::new(), BTreeMap::new());
        let mut room = Room::of(limits);
        let mut chunks = 0;
        for (key, text) in texts {
            let found = array(text.as_deref(), noted.remove(&key))
                .and_then(|(meta, noted)| room.take(meta, noted));
            match found {
                Err(why) => drop(refused.insert(key, why)),
                Ok(found) => {
                    let array = found.enter(&key, &mut builder, chunks)?;
                    chunks += array.count;
                    arrays.push(array);
                }
            }
        }
        for key in noted.into_keys() {
            let what = format!("{RECORD} names it, but its {ZARRAY} is not there");
            refused.insert(key, Refused::damaged(what));
        }
        Ok(Self {
            metadata: builder.finish(planner_data)?,
            arrays,
            refused,
            has_record,
        })
    }
}

/// The description of an array, and what the record says of it.
fn array(
    text: Option<&[u8]>,
    noted: Option<ArrayRecord>,
) -> Result<(ArrayMeta, Option<ArrayRecord>), Refused> {
    let text = text.ok_or_else(|| {
        Refused::damaged(format!("its {ZARRAY} has more than {DESCRIPTION} bytes"))
    })?;
    if let Some(noted) = &noted
        && noted.zarray != crc32fast::hash(text)
    {
        let what = format!(
            "its {ZARRAY} is not the one that was written, judging by {RECORD}; if it was changed on purpose, remove {RECORD}"
        );
        return Err(Refused::damaged(what));
    }
    let meta = parse_zarray(text).map_err(|Fault { kind, what }| Refused {
        kind: match kind {
            FaultKind::Damaged => ErrorKind::Corrupt,
            FaultKind::Unknown => ErrorKind::Unsupported,
        },
        what,
    })?;
    Ok((meta, noted))
}

/// How many chunks may be described. A short description can claim any number of chunks.
struct Room {
    bytes: u64,
}

impl Room {
    fn of(limits: &ReadLimits) -> Self {
        Self {
            bytes: limits.max_memory.unwrap_or(4 << 30),
        }
    }

    fn take(&mut self, meta: ArrayMeta, noted: Option<ArrayRecord>) -> Result<Found, Refused> {
        let too_many = |count: &str| Refused {
            kind: ErrorKind::Limit,
            what: format!(
                "its shape {} has {count} chunks of {}, which are more than this version reads",
                meta.shape, meta.chunk
            ),
        };
        let grid = Grid::new(meta.shape.clone(), meta.chunk.clone())
            .ok_or_else(|| Refused::damaged(format!("its chunks {} are no grid", meta.chunk)))?;
        let Some(count) = grid.count() else {
            return Err(too_many("more than 2⁶⁴"));
        };
        let each = 64 + 16 * meta.shape.len() as u64;
        let left = count
            .checked_mul(each)
            .and_then(|takes| self.bytes.checked_sub(takes));
        let (Some(left), ..=MAX_CHUNKS) = (left, count) else {
            return Err(too_many(&count.to_string()));
        };
        if let Some(noted) = &noted
            && noted.chunks.len() as u64 != count
        {
            let what = format!(
                "{RECORD} has {} checksums for its {count} chunks",
                noted.chunks.len()
            );
            return Err(Refused::damaged(what));
        }
        match &meta.encoding {
            Encoding::Chunk(stored) if stored.is_plain(meta.dtype) => {}
            Encoding::Chunk(_) => return Err(Refused::unknown("its chunks are encoded")),
            Encoding::Sharded(_) => return Err(Refused::unknown("it is stored in shards")),
        }
        self.bytes = left;
        Ok(Found {
            meta,
            grid,
            count,
            noted,
        })
    }
}

/// An array that can be read.
struct Found {
    meta: ArrayMeta,
    grid: Grid,
    count: u64,
    noted: Option<ArrayRecord>,
}

impl Found {
    /// Adds it to the table of what is stored, which has so many chunks.
    fn enter(self, key: &str, builder: &mut MetadataBuilder, first: u32) -> Result<Array> {
        let Self {
            meta,
            grid,
            count,
            noted,
        } = self;
        let (properties, checksums) = match noted {
            Some(noted) => (noted.properties, Some(noted.chunks)),
            None => (TensorProperties::default(), None),
        };
        let tensor = builder.add_tensor(key, meta.dtype, &meta.shape, properties)?;
        for position in grid.positions().blocks(1).map(|p: Region| p.offsets) {
            builder.add_chunk(tensor, &grid.region(&position))?;
        }
        Ok(Array {
            key: key.into(),
            meta,
            grid,
            count: count as u32,
            first,
            checksums,
        })
    }
}
