//! What is stored, and how to get regions of it.

use crate::{
    ExampleLoadConfig, NAME,
    index::{INDEX, Index, Place},
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{BoxError, Dialect, Layout, ObjectCodec, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Checksum, Entry, Name, Progress, RecordRead, Store, StoreExt};
use reshard_strategy::{
    BackendVersion, BoxVerifier, ChunkCheck, Crc32, FileRole, FormatInfo, ItemVerifier, LoadFormat,
    ObjectCheck, OpenCx, OwnFile, ReadCx, ReadLimits, ReadObject, ReadTensor, ReaderHooks, Result,
    Selection, StorageInfo, StorageReader, StrategyError, Traffic, VerifyRun, crc_of, settings_of,
};
use reshard_torch_format::{Limits, LoadOptions, TorchSave, archive::ArchiveOptions};
use serde_json::Value as Json;
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Its name, and its files.
const INFO: FormatInfo = FormatInfo {
    backend: NAME,
    own_file,
    probes: &[INDEX],
    ..FormatInfo::NEW
};

fn own_file(name: &str) -> Option<OwnFile> {
    let of_a_rank = || {
        name.strip_prefix("rank-")?
            .strip_suffix(".bin")?
            .parse::<u32>()
            .ok()
    };
    match name {
        INDEX => Some(OwnFile::Record),
        _ => of_a_rank().map(|_| OwnFile::Data),
    }
}

#[async_trait]
impl LoadFormat for ExampleLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let OpenCx {
            store,
            limits,
            dialect,
            ..
        } = cx;
        // Its length is looked at before memory is taken for it.
        let Some(index) = limits.read(store, &Name::new(INDEX)?).await? else {
            return Err(StrategyError::NotACheckpoint {
                url: store.url(),
                why: format!("it has no {INDEX}"),
            });
        };
        let index: Index = serde_json::from_slice(&index).map_err(|e| StrategyError::Corrupt {
            file: INDEX.into(),
            offset: None,
            what: "it is no index".into(),
            source: Some(Box::new(e)),
        })?;
        Ok(Arc::new(ExampleReader::new(
            Arc::clone(store),
            *limits,
            index,
            *dialect,
        )?))
    }
}

/// An opened checkpoint: the logical half is `metadata`, the physical one the places, by the same ids.
#[derive(Debug)]
struct ExampleReader {
    store: Arc<dyn Store>,
    limits: ReadLimits,
    dialect: Dialect,
    metadata: Arc<Metadata>,
    chunks: Vec<Place>,
    objects: Vec<Place>,
}

impl ExampleReader {
    fn new(
        store: Arc<dyn Store>,
        limits: ReadLimits,
        index: Index,
        dialect: Dialect,
    ) -> Result<Self> {
        // Files may be damaged or hostile. The builder refuses tables that contradict themselves; what it does not look at,
        // lengths of chunks, is checked here. That chunks cover what is wanted of a tensor is checked by each load.
        let (mut builder, mut chunks, mut objects) = (Metadata::builder(), Vec::new(), Vec::new());
        for t in index.tensors {
            let id = builder.add_tensor(&t.key, t.dtype, &t.shape, t.properties)?;
            for c in t.chunks {
                let elements =
                    Layout::contiguous(t.dtype.size(), &c.region.lengths).map(|l| l.bytes());
                let stored = c.place.ranges().map(|(data, _)| data.end - data.start);
                if stored.is_none() || stored != elements {
                    let what = format!(
                        "{}: chunk {} can't have {} bytes",
                        t.key, c.region, c.place.length
                    );
                    return Err(StrategyError::corrupt(INDEX, None, what));
                }
                builder.add_chunk(id, &c.region)?;
                chunks.push(c.place);
            }
        }
        for o in index.objects {
            if o.place.ranges().is_none() {
                return Err(StrategyError::corrupt(
                    INDEX,
                    None,
                    format!("object {} has no sound place", o.key),
                ));
            }
            builder.add_object(&o.key)?;
            objects.push(o.place);
        }
        let metadata = Arc::new(builder.finish(index.planner_data)?);
        Ok(Self {
            store,
            limits,
            dialect,
            metadata,
            chunks,
            objects,
        })
    }

    fn chunk(&self, id: ChunkId) -> Result<&Place> {
        let unknown = || StrategyError::corrupt(INDEX, None, format!("it has no chunk {}", id.0));
        self.chunks.get(id.0 as usize).ok_or_else(unknown)
    }

    /// How the elements of a chunk lie in its record. That is all that a format says of them: where in the record a selection lies
    /// follows.
    fn layout(&self, id: ChunkId) -> Result<Layout> {
        let stored = self.metadata.chunk(id);
        let layout =
            stored.and_then(|(t, region)| Layout::contiguous(t.dtype().size(), &region.lengths));
        layout
            .ok_or_else(|| StrategyError::corrupt(INDEX, None, format!("it has no chunk {}", id.0)))
    }

    /// The checksums behind items.
    async fn sums(&self, places: &[&Place]) -> Result<Vec<u32>> {
        let ranges = places
            .iter()
            .map(|p| Ok((p.file.clone(), split(p)?.1)))
            .collect::<Result<_>>()?;
        let sum = |b: Bytes| b.iter().rev().fold(0, |sum, &b| sum << 8 | u32::from(b));
        Ok(self
            .store
            .read_ranges(ranges)
            .await?
            .0
            .into_iter()
            .map(sum)
            .collect())
    }

    fn object(&self, id: ObjectId) -> Result<&Place> {
        let unknown = || StrategyError::corrupt(INDEX, None, "it lacks an object");
        self.objects.get(id.0 as usize).ok_or_else(unknown)
    }

    /// Whether an item lies in its file, and if it is to be read, whether its bytes are those that were written. They are not all in memory at
    /// once. Returns how many were read.
    async fn check(&self, place: &Place, read: bool, progress: &Progress) -> Result<u64> {
        const STEP: u64 = 1 << 20;
        let (data, sum) = split(place)?;
        if sum.end > self.store.len(&place.file).await?.unwrap_or(0) {
            let what = "the file is cut";
            return Err(StrategyError::corrupt(
                &place.file,
                Some(place.offset),
                what,
            ));
        }
        if !read {
            return Ok(0);
        }
        let written = self.sums(&[place]).await?[0];
        let store = &*self.store;
        let found = crc_of::<Crc32>(store, &place.file, data, STEP, progress).await?;
        match found == written {
            true => Ok(place.length),
            false => Err(wrong(place, differs(found, written).into())),
        }
    }
}

fn split(place: &Place) -> Result<(Range<u64>, Range<u64>)> {
    place
        .ranges()
        .ok_or_else(|| StrategyError::corrupt(INDEX, None, "a place ends before it starts"))
}

fn wrong(place: &Place, source: BoxError) -> StrategyError {
    let what = "an item is damaged".into();
    StrategyError::Corrupt {
        file: place.file.to_string(),
        offset: Some(place.offset),
        what,
        source: Some(source),
    }
}

fn differs(found: u32, written: u32) -> String {
    format!("its CRC-32 is {found:08x}, {written:08x} was written")
}

/// Compares the CRC-32 of bytes with what stands behind them.
struct Sum {
    hasher: crc32fast::Hasher,
    stored: u32,
}

impl Sum {
    fn new(stored: u32) -> Self {
        Self {
            hasher: crc32fast::Hasher::new(),
            stored,
        }
    }
}

impl Checksum for Sum {
    fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        match self.hasher.finalize() {
            found if found == self.stored => Ok(()),
            found => Err(differs(found, self.stored).into()),
        }
    }
}

impl ReaderHooks for ExampleReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for ExampleReader {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        self.chunks
            .get(chunk.0 as usize)
            .map(part_at)
            .into_iter()
            .collect()
    }

    fn owns(&self, name: &Name) -> bool {
        own_file(name.as_str()).is_some()
    }

    fn role(&self, file: &Entry) -> FileRole {
        match file.name.as_str() {
            INDEX => FileRole::Part,
            // Of a rank that an older save had.
            _ if self.owns(&file.name) => FileRole::Leftover,
            _ => FileRole::Foreign,
        }
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        self.objects
            .get(object.0 as usize)
            .map(part_at)
            .into_iter()
            .collect()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        let limits = Limits {
            memory: self.limits.max_memory,
            ..Limits::default()
        };
        Arc::new(TorchSave::new(
            LoadOptions::default().with_limits(limits),
            ArchiveOptions::default(),
        ))
    }

    // The store does the work: it coalesces, reads in parallel and puts elements into the regions. The format says where the
    // elements lie, and which checksum a record that is read as a whole must have.
    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let mut by_chunk: BTreeMap<ChunkId, Vec<ReadTensor>> = BTreeMap::new();
        for read in reads {
            by_chunk.entry(read.selection.chunk).or_default().push(read);
        }
        let mut totals = Traffic::default();
        let (mut records, mut whole) = (Vec::new(), Vec::new());
        for (id, reads) in by_chunk {
            let place = self.chunk(id)?;
            let stored = self.layout(id)?;
            let elements = stored.elements();
            if cx.verify
                && reads
                    .iter()
                    .any(|read| Selection::cover_once(&[&read.selection], elements))
            {
                whole.push((records.len(), place));
            }
            let parts = reads
                .into_iter()
                .map(|read| read.part(&stored))
                .collect::<Result<_>>()?;
            let (record, _) = split(place)?;
            records.push(RecordRead {
                name: place.file.clone(),
                record,
                parts,
                check: None,
            });
        }
        let places: Vec<&Place> = whole.iter().map(|(_, place)| *place).collect();
        for ((record, _), sum) in whole.iter().zip(self.sums(&places).await?) {
            records[*record].check = Some(Box::new(Sum::new(sum)));
            totals.beside += crate::index::CRC;
            totals.requests += 1;
            totals.verified += 1;
        }
        let stats = self.store.read_into(records, cx.progress.clone()).await?;
        totals.needed += stats.needed;
        totals.bytes += stats.bytes;
        totals.requests += stats.requests;
        Ok(totals)
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        let mut out = Vec::new();
        for read in reads {
            let place = self.object(read.object)?;
            self.limits.whole(&place.file, place.length)?;
            let bytes = self.store.read(&place.file, split(place)?.0).await?;
            if cx.verify {
                let mut sum = Sum::new(self.sums(&[place]).await?[0]);
                sum.update(&bytes);
                Box::new(sum).finish().map_err(|e| wrong(place, e))?;
            }
            out.push(Payload::Encoded {
                codec: TorchSave::default().name(),
                bytes,
            });
        }
        Ok(out)
    }

    async fn verifier<'r>(&'r self, _: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        Ok(Box::new(Checks(self)))
    }
}

/// The checks of items. The walk over them is the same for all formats.
struct Checks<'r>(&'r ExampleReader);

#[async_trait]
impl<'r> ItemVerifier<'r> for Checks<'r> {
    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let place = self.0.chunk(item.id)?;
        self.0.check(place, item.read, run.progress).await
    }

    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let place = self.0.object(item.id)?;
        self.0.check(place, item.read, run.progress).await
    }
}

fn part_at(place: &Place) -> StorageInfo {
    StorageInfo::new(
        place.file.clone(),
        place.offset..place.offset.saturating_add(place.length),
    )
}
