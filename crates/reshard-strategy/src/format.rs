//! What a format has to say: DCP's StorageWriter and StorageReader, without the pipeline around them.

use crate::{BackendVersion, ReadTotals, Result, StrategyError, with_sources};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{Dialect, Dims, ErrorKind, Layout, ObjectCodec, Payload, RegionMut, Tensor, Value};
use reshard_plan::{
    ChunkId, LoadPlan, Metadata, ObjectId, PieceId, SavePlan, Selection, WriteData, WriteItem,
};
use reshard_policy::ShardingPolicy;
use reshard_storage::{Entry, FileBody, Name, Part, Progress, Written, WrittenExtent};
use serde::{Deserialize, Serialize};
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::Arc,
};

/// DCP's `_StorageInfo`: where a part of a stored item lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageInfo {
    /// In which file.
    pub file: Name,
    /// Which bytes of it.
    pub range: Range<u64>,
    /// What the format's extent said of these bytes when they were written ([`Extent::receipt`]); nothing in an opened checkpoint.
    ///
    /// [`Extent::receipt`]: reshard_storage::Extent::receipt
    pub receipt: Bytes,
}

impl StorageInfo {
    /// Without a receipt.
    pub fn new(file: Name, range: Range<u64>) -> Self {
        Self { file, range, receipt: Bytes::new() }
    }

    /// Number of its bytes.
    pub fn length(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

/// DCP's `WriteResult`: where an item lies, known when it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteResult {
    /// Which item.
    pub id: PieceId,
    /// Its parts, in the order of their extents. One for formats that store an item as one range.
    pub parts: Vec<StorageInfo>,
}

impl WriteResult {
    /// Number of its bytes.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(StorageInfo::length).fold(0, u64::saturating_add)
    }

    /// Its one part.
    ///
    /// # Errors
    /// [`StrategyError::Internal`] when it has none, or several.
    pub fn part(&self) -> Result<&StorageInfo> {
        match &*self.parts {
            [part] => Ok(part),
            parts => {
                let what =
                    format!("{} was written in {} parts, where the format has one", self.id, parts.len());
                Err(StrategyError::Internal(what))
            }
        }
    }
}

/// An extent of a layout: the number of its file, and its number in that file.
pub type ExtentId = (u32, u32);

/// Files of one rank, decided before their first byte is written.
#[derive(Debug, Default)]
pub struct FileLayout {
    /// The files.
    pub files: Vec<FileBody>,
    /// The extents that each item is made of.
    pub items: Vec<(PieceId, Vec<ExtentId>)>,
    /// Items that lie in files which are copied as they are: where they lie is known.
    pub copied: Vec<WriteResult>,
}

impl FileLayout {
    /// Where each item lies, after its files were written.
    ///
    /// # Errors
    /// When the layout names an extent that it has not, or the store says of a file what can't be.
    pub fn results(
        items: Vec<(PieceId, Vec<ExtentId>)>,
        copied: Vec<WriteResult>,
        written: &[Written],
    ) -> Result<Vec<WriteResult>> {
        let mut out = copied;
        out.reserve(items.len());
        for (id, extents) in items {
            let part = |(file, extent): ExtentId| {
                let file = written.get(file as usize)?;
                let WrittenExtent { range, receipt } = file.extents.get(extent as usize)?.clone();
                Some(StorageInfo { file: file.name.clone(), range, receipt })
            };
            let parts = extents.iter().map(|extent| part(*extent)).collect::<Option<_>>();
            let missing = || StrategyError::Internal(format!("{id} lies in an extent that was not written"));
            let parts = parts.ok_or_else(missing)?;
            out.push(WriteResult { id, parts });
        }
        Ok(out)
    }
}

/// What [`StorageWriter::finish`] may look at.
#[derive(Debug)]
#[non_exhaustive]
pub struct FinishCx<'a> {
    /// Where the checkpoint will lie.
    pub url: &'a str,
    /// Whose conventions it follows.
    pub dialect: Dialect,
    /// What is stored.
    pub metadata: &'a Metadata,
    /// Where each item lies, by rank, in the order of writing. For a rank-local checkpoint of the own rank alone.
    pub written: &'a [Vec<WriteResult>],
    /// The rank, if the checkpoint is rank-local.
    pub rank: Option<u32>,
}

impl<'a> FinishCx<'a> {
    /// Of a checkpoint of all ranks.
    pub fn new(
        url: &'a str,
        dialect: Dialect,
        metadata: &'a Metadata,
        written: &'a [Vec<WriteResult>],
    ) -> Self {
        Self { url, dialect, metadata, written, rank: None }
    }

    /// Of one rank of a rank-local checkpoint.
    #[must_use]
    pub fn of_rank(self, rank: u32) -> Self {
        Self { rank: Some(rank), ..self }
    }
}

/// The files that make a checkpoint of the items that are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// In any order.
    pub files: Vec<(Name, Bytes)>,
    /// The one whose presence makes a checkpoint, written last; `None` for formats that have none of their own.
    pub commit: Option<(Name, Bytes)>,
}

impl Records {
    /// One file, which commits.
    pub fn one(name: Name, bytes: Bytes) -> Self {
        Self { files: Vec::new(), commit: Some((name, bytes)) }
    }

    /// All of them, the one that commits last.
    pub fn into_files(self) -> impl Iterator<Item = (Name, Bytes)> {
        self.files.into_iter().chain(self.commit)
    }
}

/// What a planned item is made of: tensor elements of exactly its region, or an object.
pub type Resolve<'a> = dyn Fn(&WriteItem) -> Result<WriteData> + Sync + 'a;

/// The calls by which DCP lets a StorageWriter take part in planning. All have bodies: a format that has nothing to add says
/// `impl WriterHooks for MyWriter {}`.
///
/// The pipeline calls them in the order in which they stand here, before [`StorageWriter::layout`]; the planner's are between them.
pub trait WriterHooks: fmt::Debug + Send + Sync + 'static {
    /// A new save to `url` begins.
    fn reset(&self, _url: &str) {}
    /// What planners shall know of the storage.
    fn storage_meta(&self) -> Option<Value> {
        None
    }
    /// Before planning, on every rank.
    ///
    /// # Errors
    /// A configuration that can't work here.
    fn set_up(&self, _rank: u32, _is_coordinator: bool) -> Result<()> {
        Ok(())
    }
    /// May add to this rank's plan.
    ///
    /// # Errors
    /// Items that the format can't store.
    fn prepare_local_plan(&self, plan: SavePlan) -> Result<SavePlan> {
        Ok(plan)
    }
    /// May add to all plans, on the coordinator.
    ///
    /// # Errors
    /// Items that the format can't store.
    fn prepare_global_plan(&self, plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
        Ok(plans)
    }
}

/// DCP's StorageWriter: the layout of a format. Its [`key`](Self::key), [`layout`](Self::layout) and [`finish`](Self::finish) have
/// no body.
pub trait StorageWriter: WriterHooks {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Whether it stores sharded objects; if not, it is never given any, and the common strategy stores them.
    fn can_handle_sharded_objects(&self) -> bool {
        true
    }
    /// Whether a cell of an object array is stored as a list of what all leaves of that cell on one rank hold.
    fn object_lists(&self) -> bool {
        false
    }
    /// How it encodes objects. Only a policy that brings all items to one rank needs it.
    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        None
    }
    /// Whether [`layout`](Self::layout) keeps to the files that a plan names, so that a sharding policy can decide upon them.
    fn takes_policy(&self) -> bool {
        false
    }
    /// The policy of its configuration, for saves that name none.
    fn policy(&self) -> Option<Arc<dyn ShardingPolicy>> {
        None
    }
    /// Which files this rank writes, and which extents of them each item is made of. Elements are pulled later.
    /// [`SavePlan::by_file`] says which items share a file.
    ///
    /// # Errors
    /// Items that the format can't store, objects that can't be encoded.
    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout>;
    /// The files that make a checkpoint of the written items. On the coordinator, of all ranks; for a rank-local checkpoint on every
    /// rank, of its own items.
    ///
    /// # Errors
    /// Items that the format can't describe.
    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records>;
}

/// What is wanted of one stored chunk, and where it lands.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadTensor {
    /// What is wanted.
    pub selection: Selection,
    /// The place for the elements. It has the shape of the region; axes of extent 1 may be missing, since leaves prepend such axes.
    pub into: RegionMut,
}

impl ReadTensor {
    /// A selection and its place.
    pub fn new(selection: Selection, into: RegionMut) -> Self {
        Self { selection, into }
    }

    /// The read that a store does, if all elements of the chunk lie in their record as `stored` says.
    ///
    /// # Errors
    /// When the chunk has not what is selected, or the place has another shape.
    pub fn part(self, stored: &Layout) -> Result<Part> {
        let source = self.selection.layout(stored)?;
        let source = source.squeeze_to(self.into.shape()).ok_or_else(|| {
            let (have, want) = (source.shape(), Dims::from(self.into.shape()));
            StrategyError::Invalid(format!("a region of shape {have} can't fill one of shape {want}"))
        })?;
        Ok(Part { source, into: self.into })
    }

    /// Copies what is wanted of a chunk that is in memory.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn fill_from(self, chunk: &Tensor) -> Result<()> {
        let Part { source, into } = self.part(chunk.layout())?;
        Ok(into.fill_from(chunk, &source)?)
    }
}

/// How items are read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadCx<'a> {
    /// Whether the checksum of every item that is read as a whole is checked.
    pub verify: bool,
    /// Called with the bytes of tensors that were read.
    pub progress: &'a Progress,
    /// [`LoadPlan::storage_data`] of this rank's plan; empty for reads that nobody planned.
    pub storage_data: &'a [u8],
}

impl<'a> ReadCx<'a> {
    /// Without data of a plan.
    pub fn new(verify: bool, progress: &'a Progress) -> Self {
        Self { verify, progress, storage_data: &[] }
    }

    /// With what the format has put into this rank's plan.
    #[must_use]
    pub fn with_storage_data(self, storage_data: &'a [u8]) -> Self {
        Self { storage_data, ..self }
    }
}

/// A stored object to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadObject {
    /// Which object.
    pub object: ObjectId,
}

/// What a file in a checkpoint's directory is to the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileRole {
    /// Items lie in it.
    Items,
    /// It belongs to the checkpoint, though no item lies in it.
    Part,
    /// A save of this format made it, and nothing needs it any more.
    Leftover,
    /// The commit record of another checkpoint of this format, of which no other trace is looked at. The earlier one of the
    /// two is left over.
    Record,
    /// Nothing of this format.
    Foreign,
}

/// Who wrote a checkpoint, as far as its bytes tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// Programs and version ranges, such as `PyTorch 2.4 to 2.14`.
    pub written_by: Vec<String>,
    /// Programs and version ranges that can load it.
    pub loadable_by: Vec<String>,
    /// What is peculiar about it.
    pub notes: Vec<String>,
    /// Keys of tensors of another shape than is stored of them: they can only be read as they are stored.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub as_stored: BTreeSet<String>,
    /// Keys of tensors and objects that are stored in a way that is not understood, and what it is about them. They are not in
    /// the metadata, and can't be read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: BTreeMap<String, String>,
}

/// One thing that is wrong with a checkpoint, or that is not known to be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Which key, if one is concerned.
    pub key: Option<String>,
    /// Which file, if one is concerned.
    pub file: Option<String>,
    /// Where in it.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl Damage {
    /// What an error says. Key and place have members of their own, so what is wrong does not name them again.
    pub fn of(key: Option<&str>, e: &StrategyError) -> Self {
        let (file, offset, what) = match e {
            StrategyError::Corrupt { file, offset, what, .. } => (Some(file.clone()), *offset, what.clone()),
            StrategyError::Object { what, .. } => (None, None, (*what).into()),
            e => (None, None, e.to_string()),
        };
        Self { key: key.map(Into::into), file, offset, what: with_sources(what, e) }
    }

    /// Place, and what is wrong, for a list that names the key elsewhere.
    pub fn without_key(&self) -> String {
        match (&self.file, self.offset) {
            (Some(file), Some(at)) => format!("{file} at byte {at}: {}", self.what),
            (Some(file), None) => format!("{file}: {}", self.what),
            _ => self.what.clone(),
        }
    }
}

/// Key, place, and what is wrong, in a line.
impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.without_key())
    }
}

/// What a check of a checkpoint found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// What is wrong; it is sound when this and the next three are empty.
    pub damage: Vec<Damage>,
    /// What could not be checked, because of I/O.
    pub unchecked: Vec<Damage>,
    /// What is stored in a way that this version does not understand. It may be sound.
    #[serde(default)]
    pub not_understood: Vec<Damage>,
    /// What asks for more than the [`ReadLimits`](crate::ReadLimits) allow. It may be sound.
    #[serde(default)]
    pub not_read: Vec<Damage>,
    /// Stored items that were looked at.
    pub items: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// The calls by which DCP lets a StorageReader take part in planning, as [`WriterHooks`]. They come before the first read.
pub trait ReaderHooks: Any + fmt::Debug + Send + Sync {
    /// A new load begins.
    fn reset(&self, _url: &str) {}
    /// Before planning, on every rank.
    ///
    /// # Errors
    /// A checkpoint that this rank can't read.
    fn set_up(&self, _rank: u32, _is_coordinator: bool) -> Result<()> {
        Ok(())
    }
    /// May change this rank's plan.
    ///
    /// # Errors
    /// Items that the format can't read.
    fn prepare_local_plan(&self, plan: LoadPlan) -> Result<LoadPlan> {
        Ok(plan)
    }
    /// May change all plans, on the coordinator.
    ///
    /// # Errors
    /// Items that the format can't read.
    fn prepare_global_plan(&self, plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>> {
        Ok(plans)
    }
}

impl VerifyReport {
    /// Adds what an error of this kind stands for.
    pub fn add(&mut self, kind: ErrorKind, found: Damage) {
        match kind {
            ErrorKind::Unavailable => self.unchecked.push(found),
            ErrorKind::Unsupported => self.not_understood.push(found),
            ErrorKind::Limit => self.not_read.push(found),
            _ => self.damage.push(found),
        }
    }
}

/// DCP's StorageReader: an opened checkpoint. The logical table is shared ([`Metadata`]), the physical one is the format's;
/// [`ChunkId`] and [`ObjectId`] join them.
#[async_trait]
pub trait StorageReader: ReaderHooks {
    /// Name of the format.
    fn key(&self) -> BackendVersion;
    /// What is stored.
    fn metadata(&self) -> &Arc<Metadata>;
    /// Whose conventions it follows.
    fn dialect(&self) -> Dialect;
    /// Where the parts of a chunk lie; none when the checkpoint does not say.
    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo>;
    /// Where the parts of an object lie; none when the checkpoint does not say.
    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo>;
    /// How objects are encoded.
    fn codec(&self) -> Arc<dyn ObjectCodec>;
    /// Whether a cell of an object array is stored as a list of what all leaves of that cell on one rank held.
    fn object_lists(&self) -> bool {
        false
    }
    /// Who wrote it.
    fn producer(&self) -> Producer {
        Producer::default()
    }

    /// Why a key can't be loaded as a template asks for it, where the format knows more than that shapes differ.
    fn why_not(&self, _key: &str) -> Option<String> {
        None
    }

    /// Whether the limits allow that a tensor is read; asked before memory is taken for one.
    ///
    /// # Errors
    /// [`StrategyError::Limit`](crate::StrategyError::Limit).
    fn permits(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Whether saves of this format name their files so. When a checkpoint is replaced, its files go that are named so, and no
    /// others: what metadata say of files may have been written to make somebody remove them. Without this nothing goes but
    /// what the facade adds, and files of one name stand in the way of those of the new checkpoint.
    fn owns(&self, _name: &Name) -> bool {
        false
    }

    /// What a file is to the checkpoint in which none of its items lies; [`FileRole::Foreign`] by default. What is left over
    /// may be removed, and what is not foreign goes when the checkpoint is replaced, if the format [`owns`](Self::owns) its name.
    fn role(&self, _file: &Entry) -> FileRole {
        FileRole::Foreign
    }

    /// Fills the places; no byte outside of the selections is read, save what lies between near ranges.
    ///
    /// # Errors
    /// The first read that fails.
    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<ReadTotals>;
    /// Reads objects, encoded as they are, in the order asked for.
    ///
    /// # Errors
    /// The first read that fails.
    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>>;
    /// Looks for damage: structure, coverage and sizes; with `full`, every checksum too.
    ///
    /// # Errors
    /// Only what stops the check as a whole.
    async fn verify(&self, full: bool, progress: &Progress) -> Result<VerifyReport>;
}
