//! Opens a folder of arrays: reads the description of each, and looks which of their files are there.

use crate::{
    RECORD,
    array::{
        find::{self, Found, Texts},
        meta::{ArrayMeta, Encoding},
        shard::Shard,
    },
    grid::{Grid, MAX_CHUNKS},
    names::{SYNC, ZARR_JSON, ZARRAY, ZMETADATA, join},
    place::PlaceFiles,
    reader::{Array, Shards, ZarrReader, changed, read_indexes},
    record::{ArrayRecord, Record},
    stated::{LONE, Stated},
    undescribed::undescribed,
    version::{V2, V3, Version},
};
use reshard_model::{Dialect, ErrorKind, Region};
use reshard_plan::{Metadata, TensorProperties};
use reshard_storage::{Depth, Listing, Name, StorageError, Store, StoreExt};
use reshard_strategy::{
    OpenCx, ReadLimits, Recent, Refused, Result, Rewritten, StorageReader, StrategyError,
    UnreadPart,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

impl Version {
    /// What reshard has noted, and in which file. A place that is opened as the other version has the record of that version.
    pub(crate) async fn noted(
        &self,
        store: &Arc<dyn Store>,
        limits: &ReadLimits,
    ) -> Result<Option<(&'static str, Record)>> {
        let other = if self.is_v3() { &V2 } else { &V3 };
        for name in [self.record, other.record] {
            if let Some(bytes) = limits.read(store, &Name::new(name)?).await? {
                find::check_memory(limits, name, &bytes)?;
                let record = serde_json::from_slice(&bytes).map_err(|e| damaged(name, &e))?;
                return Ok(Some((name, record)));
            }
        }
        Ok(None)
    }

    pub(crate) async fn open(&'static self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let noted = match cx.saved_over {
            true => None,
            false => self.noted(&cx.store, &cx.limits).await?,
        };
        let (mut files, unlisted) = match cx.store.list(None, Depth::All).await {
            Ok(listed) => (PlaceFiles::from(listed), None),
            Err(e @ StorageError::Unsupported { .. }) => {
                let names = descriptions(noted.as_ref().map(|(_, record)| record))?;
                let there = Listing::of(cx.store.present(names).await?);
                (there.into(), Some(e))
            }
            Err(e) => return Err(e.into()),
        };
        // The lock files of Megatron Core are empty.
        let skip = |folder: &str, bytes| bytes == 0 && folder.ends_with(SYNC);
        let written = match &noted {
            // Elsewhere the descriptions themselves are read as fast.
            Some((_, record)) if cx.store.hints().requests_are_dear() => record.texts(),
            _ => Texts::default(),
        };
        let mut stated = Stated::default();
        let texts = (&written, &mut stated);
        let mut found = find::arrays(&cx.store, &cx.limits, &files, skip, texts).await?;
        // Reshard's record names its arrays itself.
        if noted.is_none() && (!found.is_empty() || cx.dialect == Dialect::Megatron) {
            found.extend(undescribed(&files, &found));
        }
        if found.is_empty()
            && let Some(e) = unlisted
        {
            return Err(e.into());
        }
        let (noted_in, record) = match noted {
            Some((noted_in, record)) => (noted_in, Some(record)),
            None => (self.record, None),
        };

        // Megatron Core's `metadata.json` may describe a checkpoint without tensors.
        if found.is_empty() && record.is_none() && cx.dialect != Dialect::Megatron {
            return Err(StrategyError::NotACheckpoint {
                url: cx.store.url(),
                why: format!("no folder in it has a {ZARRAY} or a {ZARR_JSON} of an array"),
            });
        }
        let room = Room::of(&cx.limits, &files);
        let mut tables = Tables::of(found, record, noted_in, room)?;
        let contradicted = std::mem::take(&mut stated.contradicted);
        let annotations = stated.annotations(&tables.metadata);
        tables.metadata = tables.metadata.with_annotations(annotations);
        if unlisted.is_some() {
            let chunks = cx.store.present(chunks(&tables.arrays)?).await?;
            files.extend(chunks);
        }
        for array in &mut tables.arrays {
            let sums = array.checksums.as_ref();
            let as_written = sums.is_some_and(|sums| sums.iter().all(Option::is_some));
            array.shards = array.shards(&files, as_written)?;
        }
        // The others are read when somebody needs them.
        let mut unread = Vec::new();
        for array in &tables.arrays {
            unread.extend(array.unread_indexes(&files, |_, follow| !follow)?);
        }
        read_indexes(&cx.store, unread).await?;
        Ok(Arc::new(ZarrReader {
            store: Arc::clone(&cx.store),
            version: self,
            limits: cx.limits,
            dialect: cx.dialect,
            metadata: Arc::new(tables.metadata),
            arrays: tables.arrays,
            refused: tables.refused,
            rewritten: tables.rewritten,
            contradicted,
            has_record: tables.has_record,
            noted_in,
            kept: Mutex::new(Recent::new(cx.limits.kept())),
            files,
        }))
    }
}

/// So many files are asked for one by one, at most.
const ONE_BY_ONE: usize = 1 << 16;

/// The descriptions of a place that nobody can list: its own, consolidated ones, and those of the arrays that reshard has noted.
fn descriptions(noted: Option<&Record>) -> Result<BTreeSet<Name>> {
    let own = [ZMETADATA, ZARR_JSON, ZARRAY].map(String::from);
    let arrays = noted.into_iter().flat_map(|record| record.arrays.keys());
    let noted = arrays.take(ONE_BY_ONE).flat_map(|key| {
        let folder = if key == LONE { "" } else { key };
        [ZARRAY, ZARR_JSON].map(|file| join(folder, file))
    });
    let all = own.into_iter().chain(noted).map(Name::new);
    Ok(all.collect::<Result<_, _>>()?)
}

/// The files that arrays may have. Where a chunk has none, it is the fill value.
fn chunks(arrays: &[Array]) -> Result<BTreeSet<Name>> {
    let mut names = BTreeSet::new();
    for array in arrays {
        for number in 0..array.count {
            if names.len() >= ONE_BY_ONE {
                let what = format!(
                    "its arrays may have more than {ONE_BY_ONE} files, each of which has to be asked for, because nobody can list them here; \
                     use the URL of the bucket behind it, or download the files"
                );
                return Err(StorageError::invalid(what).into());
            }
            names.insert(array.file(number)?);
        }
    }
    Ok(names)
}

fn damaged(file: &str, why: &serde_json::Error) -> StrategyError {
    StrategyError::corrupt(
        file,
        None,
        format!("what reshard noted can't be parsed: {why}"),
    )
}

/// What is stored, and what can't be read.
struct Tables {
    metadata: Metadata,
    arrays: Vec<Array>,
    refused: BTreeMap<String, Refused>,
    /// Descriptions that can be read, and are not those in the record.
    rewritten: Vec<Rewritten>,
    has_record: bool,
}

impl Tables {
    fn of(
        found: Vec<Found>,
        record: Option<Record>,
        noted_in: &'static str,
        mut room: Room,
    ) -> Result<Self> {
        let has_record = record.is_some();
        let description = match noted_in {
            RECORD => ZARRAY,
            _ => ZARR_JSON,
        };
        let Record {
            arrays: mut noted,
            planner_data,
            ..
        } = record.unwrap_or_default();
        let (mut builder, mut arrays, mut refused) =
            (Metadata::builder(), Vec::new(), BTreeMap::new());
        let (mut chunks, mut rewritten) = (0, Vec::new());
        for found in by_key(found) {
            let key = found.key().to_owned();
            // An array that reshard did not write may be anybody's: a replacement must not remove it. What should be a group around
            // arrays that it did write is not.
            let is_ours = noted.contains_key(&key)
                || builder.tensor(&key).is_some()
                || (found.meta.is_err() && is_around(&noted, &found.folder));
            if has_record && !is_ours {
                continue;
            }
            let folder = found.folder.clone();
            let text = found.text.as_ref().filter(|_| found.is_assumed);
            let unread = text.map(|text| (found.description.clone(), text.len() as u64));
            if found.meta.is_ok() && is_rewritten(&found, noted.get(&key)) {
                rewritten.push(Rewritten::new(Name::new(&*found.description)?, None));
            }
            let taken = match builder.tensor(&key) {
                None => array(found, noted.remove(&key), noted_in),
                Some(_) => Err(Refused::unknown("a folder in it has the same key")),
            };
            let taken = taken.and_then(|(meta, noted)| {
                let (grid, count) = room.take(&meta, noted.as_ref())?;
                Ok((meta, noted, grid, count))
            });
            let (meta, noted, grid, count) = match taken {
                Ok(taken) => taken,
                Err(why) => {
                    refused.insert(key, why);
                    continue;
                }
            };
            let unread = match (unread, &noted) {
                (Some((file, bytes)), Some(noted)) => {
                    Some(UnreadPart::new(Name::new(file)?, bytes, noted.zarray))
                }
                _ => None,
            };
            let (properties, checksums) = match noted {
                Some(noted) => (noted.properties, Some(noted.chunks)),
                None => (TensorProperties::default(), None),
            };
            let tensor = builder.add_tensor(&key, meta.dtype, &meta.shape, properties)?;
            for position in grid.positions().blocks(1).map(|p: Region| p.offsets) {
                builder.add_chunk(tensor, &grid.region(&position))?;
            }
            arrays.push(Array {
                key: key.into(),
                folder: folder.into(),
                shards: Shards::default(),
                meta,
                grid,
                count,
                first: chunks,
                checksums,
                unread,
            });
            chunks += count;
        }
        for key in noted.into_keys() {
            let what = format!("{noted_in} names it, but its {description} is not there");
            refused.insert(key, Refused::damaged(what));
        }
        Ok(Self {
            metadata: builder.finish(planner_data)?,
            arrays,
            refused,
            rewritten,
            has_record,
        })
    }
}

/// Whether a folder holds noted arrays.
fn is_around(noted: &BTreeMap<String, ArrayRecord>, folder: &str) -> bool {
    let below = format!("{folder}/");
    folder.is_empty()
        || noted
            .range(below.clone()..)
            .next()
            .is_some_and(|(key, _)| key.starts_with(&below))
}

/// In the order of their keys. Of two with one key, the one in a folder comes first.
fn by_key(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by(|a, b| (a.key(), &b.folder).cmp(&(b.key(), &a.folder)));
    found
}

/// Whether the description of an array is not the noted one.
fn is_rewritten(found: &Found, noted: Option<&ArrayRecord>) -> bool {
    let crc = || found.text.as_deref().map(crc32fast::hash);
    noted.is_some_and(|noted| crc() != Some(noted.zarray))
}

/// The description of an array, and what the record says of it.
fn array(
    found: Found,
    noted: Option<ArrayRecord>,
    noted_in: &str,
) -> Result<(ArrayMeta, Option<ArrayRecord>), Refused> {
    if is_rewritten(&found, noted.as_ref()) {
        return Err(changed(&found.description, noted_in));
    }
    Ok((found.meta?, noted))
}

/// How many chunks may be described. A short description can claim any number of chunks.
struct Room {
    bytes: u64,
}

impl Room {
    /// What is stored takes some in any case: a file for each chunk, or an entry in the index of a shard.
    fn of(limits: &ReadLimits, files: &BTreeMap<Name, u64>) -> Self {
        let stored = files.values().fold(0u64, |sum, n| sum.saturating_add(*n));
        Self {
            bytes: limits.memory(stored.saturating_add(8 * files.len() as u64)),
        }
    }

    /// The grid of an array's chunks, and their number.
    fn take(
        &mut self,
        meta: &ArrayMeta,
        noted: Option<&ArrayRecord>,
    ) -> Result<(Grid, u32), Refused> {
        let too_many = |count: &str| {
            let what = format!(
                "its shape {} has {count} chunks of {}, which take too much memory as they are listed; the option max_memory raises the limit",
                meta.shape,
                meta.cell()
            );
            Refused::new(ErrorKind::Limit, what)
        };
        let grid = Grid::new(meta.shape.clone(), meta.cell().clone())
            .ok_or_else(|| Refused::damaged(format!("its chunks {} are no grid", meta.cell())))?;
        let Some(count) = grid.count() else {
            return Err(too_many("more than 2⁶⁴"));
        };
        // The index of a shard lists those beyond the shape, too.
        let listed = match &meta.encoding {
            Encoding::Chunk(_) => Some(count),
            Encoding::Sharded(sharding) => meta
                .files()
                .and_then(|shards| shards.count())
                .and_then(|n| n.checked_mul(Shard::of(meta, sharding).count())),
        };
        let each = 64 + 16 * meta.shape.len() as u64;
        let left = listed
            .and_then(|listed| listed.max(count).checked_mul(each))
            .and_then(|takes| self.bytes.checked_sub(takes));
        let (Some(left), ..=MAX_CHUNKS) = (left, count) else {
            return Err(too_many(&count.to_string()));
        };
        if let Some(noted) = noted
            && noted.chunks.len() as u64 != count
        {
            let what = format!(
                "{RECORD} has {} checksums for its {count} chunks",
                noted.chunks.len()
            );
            return Err(Refused::damaged(what));
        }
        self.bytes = left;
        Ok((grid, count as u32))
    }
}
