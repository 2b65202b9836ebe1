//! Opens a folder of arrays: reads the description of each, and looks which of their files are there.

use crate::{
    NAME, RECORD,
    array::{
        find::{self, Found, Texts, ZARR_JSON, ZMETADATA},
        meta::{ArrayMeta, Encoding, Fault},
        shard::Shard,
    },
    grid::{Grid, MAX_CHUNKS},
    names::{SYNC, ZARRAY},
    place::PlaceFiles,
    reader::{Array, Kept, Shards, UnreadDescription, ZarrReader, changed, read_indexes},
    record::{ArrayRecord, Record},
    stated::{LONE, Stated},
    undescribed::undescribed,
    zarr3,
};
use reshard_model::{Dialect, ErrorKind, Region};
use reshard_plan::{Metadata, MetadataBuilder, TensorProperties};
use reshard_storage::{Depth, Listing, Name, StorageError, Store, StoreExt};
use reshard_strategy::{
    Detection, FormatInfo, LimitOption, OpenCx, OwnFile, ReadLimits, Refused, Result, Rewritten,
    StorageReader, StrategyError,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The formats `zarr` and `zarr3`. They read the same folders: arrays of both versions of Zarr. They differ in the version that they are
/// recognised by, and that they write.
#[derive(Debug)]
pub(crate) struct Zarr {
    pub(crate) v3: bool,
}

const V2_INFO: FormatInfo = FormatInfo {
    backend: NAME,
    loads_objects: false,
    own_file: |name| (name == RECORD).then_some(OwnFile::Record),
    detect: Some(|top| {
        let is_array = |name: &str| V2.contains(&name) || is_last(name, ZARRAY);
        let is_v2 = || !top.names().any(is_v3) && top.names().any(is_array);
        detected(top.has(RECORD) || is_v2())
    }),
    probes: &V2,
    probes_in_folders: &[ZARRAY],
    ..FormatInfo::NEW
};

const V3_INFO: FormatInfo = FormatInfo {
    backend: zarr3::NAME,
    loads_objects: false,
    own_file: |name| (name == zarr3::RECORD).then_some(OwnFile::Record),
    detect: Some(|top| {
        let is_v3 = || top.names().any(is_v3) && !top.has(RECORD);
        detected(top.has(zarr3::RECORD) || is_v3())
    }),
    probes: &[zarr3::RECORD, ZARR_JSON],
    probes_in_folders: &[ZARR_JSON],
    ..FormatInfo::NEW
};

/// Whether the last part of a path is this name.
fn is_last(path: &str, name: &str) -> bool {
    path.rsplit('/').next() == Some(name)
}

fn is_v3(path: &str) -> bool {
    is_last(path, ZARR_JSON)
}

fn detected(is: bool) -> Detection {
    match is {
        true => Detection::Yes,
        false => Detection::No,
    }
}

impl Zarr {
    /// The file in which reshard notes what zarr has no place for.
    fn record(&self) -> &'static str {
        match self.v3 {
            true => zarr3::RECORD,
            false => RECORD,
        }
    }

    /// What reshard has noted, and in which file. A place that is opened as the other version has the record of that version.
    pub(crate) async fn noted(
        &self,
        store: &Arc<dyn Store>,
        limits: &ReadLimits,
    ) -> Result<Option<(&'static str, Record)>> {
        let other = Self { v3: !self.v3 };
        for name in [self.record(), other.record()] {
            if let Some(bytes) = limits.read(store, &Name::new(name)?).await? {
                if !find::affords(limits, &bytes) {
                    return Err(StrategyError::Limit {
                        what: format!("{name} takes too much memory as it is parsed"),
                        option: LimitOption::MaxMemory,
                        max: limits.memory(bytes.len() as u64),
                    });
                }
                let record = Record::parse(&bytes).map_err(|e| damaged(name, &e))?;
                return Ok(Some((name, record)));
            }
        }
        Ok(None)
    }
}

impl Zarr {
    pub(crate) fn info(&self) -> &'static FormatInfo {
        match self.v3 {
            true => &V3_INFO,
            false => &V2_INFO,
        }
    }

    pub(crate) async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
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
            None => (self.record(), None),
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
            array.shards = Shards::of(&array.meta, |at| array.file_at(at), &files, as_written)?;
        }
        // The others are read when somebody needs them.
        let mut unread = Vec::new();
        for array in &tables.arrays {
            unread.extend(array.unread_indexes(&files, |_, follow| !follow)?);
        }
        read_indexes(&cx.store, unread).await?;
        Ok(Arc::new(ZarrReader {
            store: Arc::clone(&cx.store),
            key: self.info().key(),
            limits: cx.limits,
            dialect: cx.dialect,
            metadata: Arc::new(tables.metadata),
            arrays: tables.arrays,
            refused: tables.refused,
            rewritten: tables.rewritten,
            contradicted,
            has_record: tables.has_record,
            kept: Kept::new(cx.limits.kept()),
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
        [ZARRAY, ZARR_JSON].map(|file| match &**key {
            LONE => file.to_owned(),
            folder => format!("{folder}/{file}"),
        })
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

/// Files directly in a folder of Zarr v2. TensorStore makes none of them.
const V2: [&str; 4] = [RECORD, ".zgroup", ".zmetadata", ZARRAY];

fn damaged(file: &str, why: &str) -> StrategyError {
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
            let unread = found.is_assumed.then(|| found.description.clone());
            if found.meta.is_ok() && is_rewritten(&found, noted.get(&key)) {
                rewritten.push(Rewritten::new(Name::new(&*found.description)?, None));
            }
            let taken = match builder.tensor(&key) {
                None => array(found, noted.remove(&key), noted_in),
                Some(_) => Err(Refused::unknown("a folder in it has the same key")),
            };
            match taken.and_then(|(meta, noted)| room.take(meta, noted)) {
                Err(why) => drop(refused.insert(key, why)),
                Ok(found) => {
                    let crc = found.noted.as_ref().map(|noted| noted.zarray);
                    let mut array = found.enter(&key, folder, &mut builder, chunks)?;
                    if let (Some(file), Some(crc)) = (unread, crc) {
                        let file = Name::new(file)?;
                        array.unread = Some(UnreadDescription::new(file, crc, noted_in));
                    }
                    chunks += array.count;
                    arrays.push(array);
                }
            }
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
    let refused = |Fault { kind, what }| Refused::new(kind.of_error(), what);
    let meta = found.meta.map_err(refused)?;
    Ok((meta, noted))
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

    fn take(&mut self, meta: ArrayMeta, noted: Option<ArrayRecord>) -> Result<Taken, Refused> {
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
            Encoding::Sharded(sharding) => Grid::new(meta.shape.clone(), meta.chunk.clone())
                .and_then(|shards| shards.count())
                .and_then(|n| n.checked_mul(Shard::of(&meta, sharding).count())),
        };
        let each = 64 + 16 * meta.shape.len() as u64;
        let left = listed
            .and_then(|listed| listed.max(count).checked_mul(each))
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
        self.bytes = left;
        Ok(Taken {
            meta,
            grid,
            count,
            noted,
        })
    }
}

/// An array that can be read.
struct Taken {
    meta: ArrayMeta,
    grid: Grid,
    count: u64,
    noted: Option<ArrayRecord>,
}

impl Taken {
    /// Adds it to the table of what is stored, which has so many chunks.
    fn enter(
        self,
        key: &str,
        folder: String,
        builder: &mut MetadataBuilder,
        first: u32,
    ) -> Result<Array> {
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
            folder: folder.into(),
            shards: Shards::default(),
            meta,
            grid,
            count: count as u32,
            first,
            checksums,
            unread: None,
        })
    }
}
