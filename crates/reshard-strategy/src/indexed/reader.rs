//! Reads checkpoints with an [`ItemIndex`].

use super::{ItemIndex, ItemPlace};
use crate::{
    BackendVersion, BoxVerifier, ChunkCheck, Crc32, Crc32Check, ElementChecksum, FileRole,
    FormatInfo, ItemVerifier, ObjectCheck, OpenCx, OwnFile, ReadCx, ReadObject, ReadTensor,
    ReaderHooks, Result, StorageInfo, StorageReader, StrategyError, Traffic, VerifyRun, crc_of,
    crc32_differs, decode_object, item_parts, overlapping,
};
use async_trait::async_trait;
use reshard_model::{Dialect, Layout, ObjectCodec, Payload};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Checksum, Entry, Name, StoreExt};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Bytes that a check reads at a time.
const STEP: u64 = 1 << 20;

/// An open checkpoint whose items lie where an [`ItemIndex`] says.
#[derive(Debug)]
pub struct IndexReader {
    info: FormatInfo,
    cx: OpenCx,
    dialect: Dialect,
    codec: Arc<dyn ObjectCodec>,
    metadata: Arc<Metadata>,
    chunks: Vec<ItemPlace>,
    objects: Vec<ItemPlace>,
    /// The files in which items lie.
    files: BTreeSet<Name>,
}

impl IndexReader {
    /// A checkpoint with this index, whose format record is called `record`. The index may be damaged or hostile. `codec` decodes its
    /// objects. The files of [`own_file`](FormatInfo::own_file) are those that a replacement of the checkpoint removes.
    ///
    /// # Errors
    /// [`StrategyError::Corrupt`] if an item is listed twice, shares bytes with another one, or does not have as many bytes as its shape
    /// says. Whether files have all the bytes is checked when they are read.
    pub fn new(
        cx: &OpenCx,
        info: &FormatInfo,
        record: &str,
        index: ItemIndex,
        codec: impl ObjectCodec + 'static,
    ) -> Result<Self> {
        let corrupt = |what: String| StrategyError::corrupt(record, None, what);
        let (mut builder, mut chunks, mut objects) = (Metadata::builder(), Vec::new(), Vec::new());
        for t in index.tensors {
            let id = builder.add_tensor(&t.key, t.dtype, &t.shape, t.properties);
            let id = id.map_err(|e| corrupt(e.to_string()))?;
            builder.set_original_shape(id, t.original_shape);
            for (region, place) in t.chunks {
                let elements = Layout::contiguous(t.dtype.size(), &region.lengths);
                let stored = place.bytes.end.checked_sub(place.bytes.start);
                if stored.is_none() || stored != elements.map(|l| l.bytes()) {
                    let (key, bytes) = (&t.key, &place.bytes);
                    let what = format!("tensor {key}: chunk {region} can't be bytes {bytes:?}");
                    return Err(corrupt(what));
                }
                let added = builder.add_chunk(id, &region);
                added.map_err(|e| corrupt(e.to_string()))?;
                chunks.push(place);
            }
        }
        for (key, place) in index.objects {
            if place.bytes.start > place.bytes.end {
                let what = format!("object {key} can't be bytes {:?}", place.bytes);
                return Err(corrupt(what));
            }
            let added = builder.add_object(&key);
            added.map_err(|e| corrupt(e.to_string()))?;
            objects.push(place);
        }
        let files = chunks.iter().chain(&objects).map(|p| p.file.clone());
        let files = files.collect();
        let mut places: Vec<&ItemPlace> = chunks.iter().chain(&objects).collect();
        places.sort_by_key(|place| (&place.file, place.bytes.start));
        if let Some((_, place)) =
            overlapping(places, |place| (&place.file, place.bytes.clone())).next()
        {
            let ItemPlace { file, bytes, .. } = place;
            let what = format!("two items share bytes of {file}, at byte {}", bytes.start);
            return Err(corrupt(what));
        }
        let metadata = builder.finish(index.planner_data);
        Ok(Self {
            info: *info,
            cx: cx.clone(),
            dialect: index.dialect,
            codec: Arc::new(codec),
            metadata: Arc::new(metadata.map_err(|e| corrupt(e.to_string()))?),
            chunks,
            objects,
            files,
        })
    }

    fn chunk(&self, id: ChunkId) -> Result<&ItemPlace> {
        let place = self.chunks.get(id.0 as usize);
        place.ok_or_else(|| StrategyError::Invalid(format!("there is no chunk {}", id.0)))
    }

    fn object(&self, id: ObjectId) -> Result<(&str, &ItemPlace)> {
        let place = self.objects.get(id.0 as usize);
        let found = self.metadata.object_key(id).zip(place);
        found.ok_or_else(|| StrategyError::Invalid(format!("there is no object {}", id.0)))
    }

    /// The bytes of objects, in one read.
    async fn objects(&self, wanted: &[ObjectId], verify: bool) -> Result<Vec<Payload>> {
        let wanted = wanted.iter().map(|id| self.object(*id));
        let wanted: Vec<_> = wanted.collect::<Result<_>>()?;
        for (key, place) in &wanted {
            let bytes = place.bytes.end - place.bytes.start;
            self.cx.limits.whole(format_args!("object {key}"), bytes)?;
        }
        let ranges = wanted
            .iter()
            .map(|(_, p)| (p.file.clone(), p.bytes.clone()));
        let (read, _) = self.cx.store.read_ranges(ranges.collect()).await?;
        let checked = wanted.into_iter().zip(read).map(|((key, place), bytes)| {
            if verify {
                let found = crc32fast::hash(&bytes);
                place.check(&format!("object {key}"), found)?;
            }
            let codec = self.codec.name();
            Ok(Payload::Encoded { codec, bytes })
        });
        checked.collect()
    }
}

impl ItemPlace {
    fn info(&self) -> StorageInfo {
        StorageInfo::new(self.file.clone(), self.bytes.clone())
    }

    /// Compares the CRC-32 of what was read. `what` is the item, such as `tensor w`.
    fn check(&self, what: &str, found: u32) -> Result<()> {
        if found == self.crc32 {
            return Ok(());
        }
        let what = crc32_differs(what, found, self.crc32);
        Err(StrategyError::corrupt(
            &self.file,
            Some(self.bytes.start),
            what,
        ))
    }
}

impl ReaderHooks for IndexReader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for IndexReader {
    fn key(&self) -> BackendVersion {
        self.info.key()
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        self.chunk(chunk).map(ItemPlace::info).into_iter().collect()
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        let place = self.object(object).map(|(_, place)| place.info());
        place.into_iter().collect()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        Arc::clone(&self.codec)
    }

    fn owns(&self, name: &Name) -> bool {
        self.info.own_file(name.as_str()).is_some()
    }

    fn role(&self, file: &Entry) -> FileRole {
        match self.info.own_file(file.name.as_str()) {
            Some(OwnFile::Record) => FileRole::Part,
            Some(_) => FileRole::Leftover,
            None => FileRole::Foreign,
        }
    }

    fn reads_columns_together(&self) -> bool {
        true
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let (mut verified, mut records) = (0, Vec::new());
        for (id, reads) in ReadTensor::by_chunk(reads) {
            let place = self.chunk(id)?;
            let found = self.metadata.chunk(id);
            let stored = found.and_then(|(t, region)| {
                let layout = Layout::contiguous(t.dtype().size(), &region.lengths);
                Some((t.key(), layout?))
            });
            let none = || StrategyError::Internal(format!("chunk {} has no layout", id.0));
            let (key, layout) = stored.ok_or_else(none)?;
            let check = || -> Option<Box<dyn Checksum>> {
                let what = format!("tensor {key}");
                let check = Crc32Check::new(layout.bytes(), place.crc32, &what);
                Some(Box::new(check))
            };
            let at = (place.file.clone(), place.bytes.clone());
            let record = ReadTensor::record(reads, at, &layout, cx.verify, check)?;
            verified += u64::from(record.check.is_some());
            records.push(record);
        }
        let read = self.cx.store.read_into(records, cx.progress.clone());
        let mut totals = read.await?;
        totals.verified += verified;
        Ok(totals)
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        let wanted: Vec<ObjectId> = reads.iter().map(|read| read.object).collect();
        self.objects(&wanted, cx.verify).await
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        let sum = |id: &ChunkId| Ok(Some(ElementChecksum::Crc32(self.chunk(*id)?.crc32)));
        chunks.iter().map(sum).collect()
    }

    fn covers(&self, file: &Name) -> bool {
        self.files.contains(file)
    }

    async fn verifier<'r>(&'r self, _: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        let files = self.cx.store.files_or(|| self.files.clone()).await?;
        let sizes = files.into_iter().filter(|file| self.covers(&file.name));
        let sizes = sizes.map(|file| (file.name, file.bytes)).collect();
        Ok(Box::new(IndexVerifier {
            reader: self,
            sizes,
        }))
    }
}

struct IndexVerifier<'r> {
    reader: &'r IndexReader,
    /// The lengths of the files in which items lie, in bytes.
    sizes: BTreeMap<Name, u64>,
}

impl IndexVerifier<'_> {
    /// Checks that the file of an item is long enough.
    fn is_there(&self, place: &ItemPlace) -> Result<()> {
        let ItemPlace { file, bytes, .. } = place;
        let what = match self.sizes.get(file) {
            _ if bytes.is_empty() => return Ok(()),
            None => "its file is missing".into(),
            Some(size) if *size < bytes.end => {
                format!("it reaches beyond the end of the file, which has {size} bytes")
            }
            Some(_) => return Ok(()),
        };
        Err(StrategyError::corrupt(file, Some(bytes.start), what))
    }
}

#[async_trait]
impl<'r> ItemVerifier<'r> for IndexVerifier<'r> {
    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let place = self.reader.chunk(item.id)?;
        self.is_there(place)?;
        if !item.read {
            return Ok(0);
        }
        let (store, bytes) = (&*self.reader.cx.store, place.bytes.clone());
        let found = crc_of::<Crc32>(store, &place.file, bytes, STEP, run.progress).await?;
        place.check(&format!("tensor {}", item.key), found)?;
        Ok(place.bytes.end - place.bytes.start)
    }

    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let (key, place) = self.reader.object(item.id)?;
        self.is_there(place)?;
        if !item.read {
            return Ok(0);
        }
        for object in self.reader.objects(&[item.id], true).await? {
            decode_object(&*self.reader.codec, key, object)?;
        }
        let bytes = place.bytes.end - place.bytes.start;
        run.progress.add(bytes);
        Ok(bytes)
    }

    async fn rest(&mut self, run: &mut VerifyRun<'r>) -> Result<()> {
        if run.items.is_all() {
            run.between(&self.sizes, item_parts(self.reader));
        }
        Ok(())
    }
}
