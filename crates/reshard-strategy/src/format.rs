//! What a format has to implement: DCP's StorageWriter and StorageReader, without the pipeline around them.

use crate::{
    BackendVersion, BoxVerifier, Capabilities, CheckedItems, ElementChecksum, Refused, Removal,
    Result, StrategyError, Traffic, VerifyReport, VerifyRun, common::unsupported, verify,
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{
    BoxError, Dialect, Dims, ErrorKind, Layout, ObjectCodec, Payload, RegionMut, Tensor, Value,
};
use reshard_plan::{
    ChunkId, LoadPlan, Metadata, ObjectId, PieceId, SavePlan, SavePlanner, Selection, WriteData,
    WriteItem,
};
use reshard_policy::{PolicyMetrics, ShardingPolicy};
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
    /// What the format's extent returned about these bytes when they were written ([`Extent::receipt`]). Empty in an opened checkpoint.
    ///
    /// [`Extent::receipt`]: reshard_storage::Extent::receipt
    pub receipt: Bytes,
}

impl StorageInfo {
    /// Without a receipt.
    pub fn new(file: Name, range: Range<u64>) -> Self {
        Self {
            file,
            range,
            receipt: Bytes::new(),
        }
    }

    /// Number of its bytes.
    pub fn length(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

/// DCP's `WriteResult`: where an item lies. It is known once the item is written.
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
        self.parts
            .iter()
            .map(StorageInfo::length)
            .fold(0, u64::saturating_add)
    }

    /// Its one part.
    ///
    /// # Errors
    /// [`StrategyError::Internal`] when it has none, or several.
    pub fn part(&self) -> Result<&StorageInfo> {
        match &*self.parts {
            [part] => Ok(part),
            parts => {
                let what = format!(
                    "{} was written in {} parts, but the format expects one",
                    self.id,
                    parts.len()
                );
                Err(StrategyError::Internal(what))
            }
        }
    }
}

/// An extent of a layout: the number of its file, and its number in that file.
pub type ExtentId = (u32, u32);

/// The layout of one rank's files, made before their first byte is written.
#[derive(Debug, Default)]
pub struct FileLayout {
    /// The files.
    pub files: Vec<FileBody>,
    /// The extents that make up each item. If several items lie in one extent, it is that of the first of them, and the others follow
    /// it with none: files that wait for other ranks are told by that.
    pub items: Vec<(PieceId, Vec<ExtentId>)>,
    /// Items in files that are copied unchanged, so their locations are already known.
    pub copied: Vec<WriteResult>,
}

impl FileLayout {
    /// Where each item lies, once its files are written.
    ///
    /// # Errors
    /// The layout names an extent that does not exist, or the store returns an impossible result.
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
                let WrittenExtent { range, receipt, .. } =
                    file.extents.get(extent as usize)?.clone();
                Some(StorageInfo {
                    file: file.name.clone(),
                    range,
                    receipt,
                })
            };
            let parts = extents
                .iter()
                .map(|extent| part(*extent))
                .collect::<Option<_>>();
            let missing =
                || StrategyError::Internal(format!("{id} lies in an extent that was not written"));
            let parts = parts.ok_or_else(missing)?;
            out.push(WriteResult { id, parts });
        }
        Ok(out)
    }
}

/// The context of [`StorageWriter::finish`].
#[derive(Debug, derive_setters::Setters)]
#[setters(generate = false)]
#[non_exhaustive]
pub struct FinishCx<'a> {
    /// Where the checkpoint will lie.
    pub url: &'a str,
    /// Whose conventions it follows.
    pub dialect: Dialect,
    /// What is stored.
    pub metadata: &'a Metadata,
    /// Where each item lies, by rank, in the order of writing. In a rank-local checkpoint it has only this rank's items.
    pub written: &'a [Vec<WriteResult>],
    /// The rank, if the checkpoint is rank-local.
    #[setters(generate, strip_option, rename = "of_rank")]
    pub rank: Option<u32>,
}

impl<'a> FinishCx<'a> {
    /// For a checkpoint of all ranks.
    pub fn new(
        url: &'a str,
        dialect: Dialect,
        metadata: &'a Metadata,
        written: &'a [Vec<WriteResult>],
    ) -> Self {
        Self {
            url,
            dialect,
            metadata,
            written,
            rank: None,
        }
    }
}

/// The files that turn the written items into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// In any order.
    pub files: Vec<(Name, Bytes)>,
    /// The format record: the file in which the format says what is stored, such as `.metadata`. `reshard.json` has its digest. It is
    /// written after `files`. It is also the commit record, which is written last, unless the dialect has another one (`metadata.json` in
    /// Megatron's dialect). `None` for formats without a format record.
    pub commit: Option<(Name, Bytes)>,
    /// What a sharding policy did, if the format has asked it in place of the pipeline.
    pub policy: Option<PolicyMetrics>,
}

impl Records {
    /// Only a format record.
    pub fn one(name: Name, bytes: Bytes) -> Self {
        Self {
            commit: Some((name, bytes)),
            ..Self::default()
        }
    }

    /// All files; the format record comes last.
    pub fn into_files(self) -> impl Iterator<Item = (Name, Bytes)> {
        self.files.into_iter().chain(self.commit)
    }
}

/// Returns the data of a planned item: the tensor elements of exactly its region, or an object. If another rank has the data, the
/// elements come while they are read, best in row-major order, and an object is complete when this returns.
pub type Resolve<'a> = dyn Fn(&WriteItem) -> Result<WriteData> + Sync + 'a;

/// DCP's calls by which a StorageWriter takes part in planning. All have defaults. If your format has nothing to add, write
/// `impl WriterHooks for MyWriter {}`.
///
/// The pipeline calls them in the order of this trait. The planner's hooks are called in between:
///
/// 1. on each rank: `reset`, `storage_meta`, the planner's `set_up`, `set_up`, the planner's `create_local_plan`, `prepare_local_plan`;
/// 2. the plans are gathered;
/// 3. on the coordinator: the planner's `create_global_plan`, the sharding policy, `prepare_global_plan`. In a rank-local save each rank
///    does this for itself alone, and nothing is gathered;
/// 4. each rank gets its plan;
/// 5. on each rank: the planner's `finish_plan`;
/// 6. later, when the rank writes: [`StorageWriter::layout`]. Its `resolve` calls the planner's `lookup_object`, then `transform_object`.
///
/// If the save has a sharding policy, objects are also looked up and encoded at the end of step 1, because the policy counts their bytes.
pub trait WriterHooks: fmt::Debug + Send + Sync + 'static {
    /// A new save to `url` begins.
    fn reset(&self, _url: &str) {}
    /// The name of its type, which is a part of a kept plan.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
    /// Data of the storage for planners.
    fn storage_meta(&self) -> Option<Value> {
        None
    }
    /// All settings of the format on which plans depend, as text, also by way of [`storage_meta`](Self::storage_meta). A save whose
    /// structure is known from the save before it does not plan again, if its format says so: then only `reset`, `storage_meta` and
    /// `set_up` are called before [`StorageWriter::layout`]. So two writers of one type with equal settings must make equal plans of equal
    /// plans. `None`, the default, means that each save is planned anew.
    fn plan_settings(&self) -> Option<String> {
        None
    }
    /// Called before planning, on every rank.
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
    /// May add to all plans, on the coordinator. In a rank-local save each rank calls it with its own plan alone.
    ///
    /// # Errors
    /// Items that the format can't store.
    fn prepare_global_plan(&self, plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
        Ok(plans)
    }
}

/// How a format uses the sharding policy of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyUse {
    /// A save with a policy fails.
    Refused,
    /// The pipeline calls the policy with the pieces of all ranks, and [`StorageWriter::layout`] uses the files that the plan names.
    Pipeline,
    /// The [planner of the format](StorageWriter::planner) calls the policy with whole tensors. The pipeline checks the limit.
    Format,
    /// The checkpoint is a single file, so the policy isn't called: it must have a limit ([`ShardingPolicy::max_file_bytes`]), and a save
    /// whose file exceeds the limit fails.
    Limit,
}

/// DCP's StorageWriter: the layout of a format. You have to implement [`key`](Self::key), [`layout`](Self::layout) and
/// [`finish`](Self::finish).
pub trait StorageWriter: WriterHooks {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Wraps the planner of a save, after the layers of the strategy. The default returns it unchanged.
    ///
    /// # Errors
    /// A planner that doesn't support the settings of the format.
    fn planner(&self, base: Arc<dyn SavePlanner>) -> Result<Arc<dyn SavePlanner>> {
        Ok(base)
    }
    /// Whether a cell of an object array is stored as a list, with one value for each leaf that one rank has of this cell.
    fn object_lists(&self) -> bool {
        false
    }
    /// The codec of its objects. It is needed where one rank writes the objects of others: a planner or a policy that gathers says so.
    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        None
    }
    /// How it uses the sharding policy of a save. By default a save with a policy fails.
    fn policy_use(&self) -> PolicyUse {
        PolicyUse::Refused
    }
    /// The policy in its configuration, for saves without a policy.
    fn policy(&self) -> Option<Arc<dyn ShardingPolicy>> {
        None
    }
    /// Describes how an item is stored in a file, for sharding policies. The default is that every part of a tensor can be stored, and takes
    /// no bytes but its elements.
    ///
    /// # Errors
    /// An item that the format can't store.
    fn footprint(&self, _item: &WriteItem) -> Result<Footprint> {
        Ok(Footprint::default())
    }
    /// Upper bound of the bytes of each file that belong to no item: headers, what is stated of the whole checkpoint, padding. The default
    /// is none.
    ///
    /// # Errors
    /// Plans that the format can't read.
    fn file_overhead(&self, _plans: &[SavePlan]) -> Result<u64> {
        Ok(0)
    }
    /// The bytes that an encoded object takes in a file. The default is all of them.
    fn object_bytes(&self, encoded: &Bytes) -> u64 {
        encoded.len() as u64
    }
    /// Returns an object that takes about this number of bytes in a file. A dry run lays it out in place of an object that another rank has.
    /// The default is zeros.
    ///
    /// # Errors
    /// The format has no codec.
    fn blank_object(&self, bytes: u64) -> Result<Payload> {
        let codec = self.codec().ok_or_else(|| StrategyError::Unsupported {
            strategy: self.key().to_string(),
            what: "bringing objects to another rank".into(),
        })?;
        let bytes = vec![0; usize::try_from(bytes).unwrap_or_default()].into();
        let codec = codec.name();
        Ok(Payload::Encoded { codec, bytes })
    }
    /// Figures of the policy on the coordinator, for [`PolicyUse::Format`]. A dry run uses them, because it makes no [`Records`].
    fn policy_metrics(&self) -> Option<PolicyMetrics> {
        None
    }
    /// Decides which files this rank writes, and which extents of these files make up each item. Elements are pulled later.
    /// [`SavePlan::by_file`] says which items share a file.
    ///
    /// # Errors
    /// Items that the format can't store, objects that can't be encoded.
    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout>;
    /// Makes the files that turn the written items into a checkpoint. It runs on the coordinator, for the items of all ranks. In a
    /// rank-local checkpoint it runs on every rank, for its own items; then the names of its files must have the rank
    /// ([`FinishCx::rank`]), or the format refuses.
    ///
    /// Store all of [`FinishCx::metadata`]: the [`TensorProperties`](reshard_plan::TensorProperties) of tensors, and the
    /// [`planner_data`](Metadata::planner_data), without which the nesting of a state in PyTorch's dialect is lost.
    /// `testkit::metadata_contract` checks it.
    ///
    /// # Errors
    /// Items that the format can't describe; a rank-local checkpoint, if the format has none.
    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records>;
}

/// How an item is stored in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Whether the tensor of the item is stored only as a whole, so that all its pieces belong to one file.
    pub whole: bool,
    /// Upper bound of the bytes in addition to the elements, for the item or any part of it that a policy cuts: an entry in a header, the
    /// records of an archive, padding. For an object it is what its encoding does not have.
    pub overhead: u64,
}

/// What is wanted of one stored chunk, and where it goes.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadTensor {
    /// What is wanted.
    pub selection: Selection,
    /// The destination of the elements. It has the shape of the region, but may lack axes of length 1, because leaves prepend such axes.
    pub into: RegionMut,
}

impl ReadTensor {
    /// A selection and its destination.
    pub fn new(selection: Selection, into: RegionMut) -> Self {
        Self { selection, into }
    }

    /// The reads of each chunk, by the numbers of the chunks. Reads of one chunk keep their order.
    pub fn by_chunk(mut reads: Vec<Self>) -> impl Iterator<Item = (ChunkId, Vec<Self>)> + Send {
        reads.sort_by_key(|read| read.selection.chunk);
        let mut left = reads.into_iter().peekable();
        std::iter::from_fn(move || {
            let first = left.next()?;
            let chunk = first.selection.chunk;
            // Most chunks have one read, and there may be very many chunks.
            let mut reads = vec![first];
            while let Some(next) = left.next_if(|read| read.selection.chunk == chunk) {
                reads.push(next);
            }
            Some((chunk, reads))
        })
    }

    /// What is selected of each chunk, by the numbers of the chunks.
    pub fn selections<'r>(
        reads: impl IntoIterator<Item = &'r Self>,
    ) -> BTreeMap<ChunkId, Vec<&'r Selection>> {
        let mut of_chunk: BTreeMap<ChunkId, Vec<&Selection>> = BTreeMap::new();
        for Self { selection, .. } in reads {
            of_chunk.entry(selection.chunk).or_default().push(selection);
        }
        of_chunk
    }

    /// The read for the store, if the chunk has the layout `stored` in its record.
    ///
    /// # Errors
    /// The chunk does not have the selected elements, or the destination has another shape.
    pub fn part(self, stored: &Layout) -> Result<Part> {
        let source = self.selection.layout(stored)?;
        let source = source.squeeze_to(self.into.shape()).ok_or_else(|| {
            let (have, want) = (source.shape(), Dims::from(self.into.shape()));
            StrategyError::Invalid(format!(
                "a region of shape {have} can't fill one of shape {want}"
            ))
        })?;
        Ok(Part {
            source,
            into: self.into,
        })
    }

    /// Copies the wanted elements of a chunk that is in memory.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn fill_from(self, chunk: &Tensor) -> Result<()> {
        let Part { source, into } = self.part(chunk.layout())?;
        Ok(into.fill_from(chunk, &source)?)
    }
}

/// How items are read.
#[derive(Clone, Copy, Debug, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
#[non_exhaustive]
pub struct ReadCx<'a> {
    /// Whether the checksum of every item that is read as a whole is checked.
    pub verify: bool,
    /// Told how many bytes of elements have come. For a call of [`read_tensors`](StorageReader::read_tensors) they are in all those of the selections, as
    /// they are stored: also where they are compressed, or are not stored and have a fill value.
    pub progress: &'a Progress,
    /// [`LoadPlan::storage_data`] of this rank's plan. Empty for reads without a plan.
    #[setters(generate)]
    pub storage_data: &'a [u8],
}

impl<'a> ReadCx<'a> {
    /// Without data of a plan.
    pub fn new(verify: bool, progress: &'a Progress) -> Self {
        Self {
            verify,
            progress,
            storage_data: &[],
        }
    }
}

/// The codec of formats without objects.
#[derive(Clone, Copy, Debug)]
struct NoObjects;

impl ObjectCodec for NoObjects {
    fn name(&self) -> &'static str {
        "none"
    }
    fn decode(&self, _: &Bytes) -> Result<Value, BoxError> {
        Err("this format has no objects".into())
    }
    fn encode(&self, _: &Value) -> Result<Bytes, BoxError> {
        Err("this format has no objects".into())
    }
}

/// A stored object to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadObject {
    /// Which object.
    pub object: ObjectId,
}

/// The role of a file in a checkpoint's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileRole {
    /// Items lie in it.
    Items,
    /// It belongs to the checkpoint, although no item lies in it.
    Part,
    /// A save of this format made it, but nothing needs it any more.
    Leftover,
    /// The format record of another checkpoint of this format in the same directory. The earlier of the two is left over.
    Record,
    /// It does not belong to this format.
    Foreign,
}

/// Which programs wrote a checkpoint, as far as its bytes tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// Programs and version ranges, such as `PyTorch 2.4 to 2.14`.
    pub written_by: Vec<String>,
    /// Programs and version ranges that can load it.
    pub loadable_by: Vec<String>,
    /// Peculiarities.
    pub notes: Vec<String>,
    /// Reasons why another program may read other tensors from the same files. Whatever is done with the checkpoint, its user has to
    /// know them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Facts about the save itself, by name: nothing of the state is in them, and a copy is a save of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub save: BTreeMap<String, String>,
    /// Keys of tensors whose elements are not those that are stored, but computed from them and from scales.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dequantized: BTreeSet<String>,
    /// Keys of the stored scales from which they are computed. They are not in the metadata.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub scales: BTreeSet<String>,
    /// Keys of items that several ranks have saved under one key, each for itself. Only that of one rank is read.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub copies: BTreeSet<String>,
    /// Keys of tensors and objects that are not understood, and why. They are not in the metadata, and can't be read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: BTreeMap<String, String>,
    /// Keys of which opening has found that they are damaged, and why. They are not in the metadata either.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub damaged: BTreeMap<String, String>,
}

impl Producer {
    /// Adds keys that opening has refused, and why. What is [`Corrupt`](ErrorKind::Corrupt) is damaged; the others are not understood.
    pub fn with_refused<'k>(
        mut self,
        refused: impl IntoIterator<Item = (&'k (impl AsRef<str> + 'k), &'k Refused)>,
    ) -> Self {
        for (key, why) in refused {
            let keys = match why.kind {
                ErrorKind::Corrupt => &mut self.damaged,
                _ => &mut self.unknown,
            };
            keys.insert(key.as_ref().into(), why.what.clone());
        }
        self
    }
}

/// DCP's calls by which a StorageReader takes part in planning, as [`WriterHooks`]. The pipeline calls them in this order, after
/// [`LoadFormat::open`](crate::LoadFormat::open) and before the first read of a tensor or object:
///
/// 1. on each rank: `reset`, the planner's `set_up`, `set_up`, the planner's `create_local_plan`, `prepare_local_plan`;
/// 2. the plans are gathered;
/// 3. on the coordinator: the planner's `create_global_plan`, `prepare_global_plan`;
/// 4. each rank gets its plan;
/// 5. on each rank: the planner's `finish_plan`;
/// 6. later, when the rank reads: the planner's `lookup_tensor` and `transform_tensor` around [`StorageReader::read_tensors`],
///    `load_object` after [`StorageReader::read_objects`], and at the end `commit_tensor`.
pub trait ReaderHooks: Any + fmt::Debug + Send + Sync {
    /// A new load begins.
    fn reset(&self, _url: &str) {}
    /// The name of its type, which is a part of a kept plan.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
    /// All on which plans depend beside [`StorageReader::metadata`], as text. A load whose template and checkpoint have the structure of
    /// the load before it does not plan again, if its format says so: then `prepare_local_plan` and `prepare_global_plan` are not called.
    /// `None`, the default, means that each load is planned anew.
    fn plan_settings(&self) -> Option<String> {
        None
    }
    /// Called before planning, on every rank.
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

/// DCP's StorageReader: an opened checkpoint. All formats share the logical table ([`Metadata`]). Each format has its own table of
/// locations. [`ChunkId`] and [`ObjectId`] join the two.
#[async_trait]
pub trait StorageReader: ReaderHooks {
    /// Name of the format.
    fn key(&self) -> BackendVersion;
    /// What is stored.
    fn metadata(&self) -> &Arc<Metadata>;
    /// The dialect that it follows.
    fn dialect(&self) -> Dialect;
    /// Where the parts of a chunk lie. Empty if the checkpoint does not say.
    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo>;
    /// Where the parts of an object lie. Empty if the checkpoint does not say.
    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo>;
    /// How objects are encoded. The default is for formats without objects.
    fn codec(&self) -> Arc<dyn ObjectCodec> {
        Arc::new(NoObjects)
    }
    /// Whether a cell of an object array is stored as a list, with one value for each leaf that one rank had of this cell.
    fn object_lists(&self) -> bool {
        false
    }
    /// What checkpoints of its form can represent: element types, objects, annotations. A comparison of two checkpoints counts only what both
    /// can represent. The default is that of [`Capabilities`].
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    /// Who wrote it.
    fn producer(&self) -> Producer {
        Producer::default()
    }

    /// Keys that are stored in a way that this version does not understand, sorted. They are not in the [`metadata`](Self::metadata).
    fn not_understood(&self) -> Vec<String> {
        self.producer().unknown.into_keys().collect()
    }

    /// Why a key can't be loaded as a template asks for it, if the format knows more than that shapes differ.
    fn why_not(&self, _key: &str) -> Option<String> {
        None
    }

    /// Where the elements of a tensor are that no file of the place holds, if the format knows it: a clause for the error of whoever reads
    /// them. The default is that it does not.
    fn lacks(&self, _key: &str) -> Option<String> {
        None
    }

    /// Checks that a tensor may be read: that the limits allow it, and that what is said of it does not contradict itself. It is called
    /// before memory is allocated for the tensor. The default allows all.
    ///
    /// # Errors
    /// [`StrategyError::Limit`](crate::StrategyError::Limit), [`StrategyError::Corrupt`](crate::StrategyError::Corrupt).
    fn permits(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Whether saves of this format give a file such a name. A replacement of the checkpoint removes only files with such names. What the
    /// metadata say about files is not enough, because metadata may be made to have somebody's files removed. The default is no file;
    /// then only the facade's own files are removed, and old files block new ones with the same name.
    fn owns(&self, _name: &Name) -> bool {
        false
    }

    /// The role of a file in which no item lies. The default is [`FileRole::Foreign`]. A leftover may be removed. A replacement of the
    /// checkpoint removes files that are not foreign, if the format [`owns`](Self::owns) their names.
    fn role(&self, _file: &Entry) -> FileRole {
        FileRole::Foreign
    }

    /// Whether all that the descriptions in it speak of is there, judging by names and lengths. This is asked of a checkpoint that is older than
    /// commit records, before it is recognised without one. The default can't tell.
    ///
    /// # Errors
    /// What is missing, or why nobody can tell.
    fn is_whole(&self) -> Result<(), String> {
        Err(format!("the files of {} do not tell", self.key()))
    }

    /// Descriptions that are not those in a record that only reshard writes, though they can be read. Either another program has saved here,
    /// or they are damaged: the elements tell which. Where requests are expensive, a description may be read only when it is needed. The default
    /// is none.
    fn rewritten(&self) -> Vec<Rewritten> {
        Vec::new()
    }

    /// Whether each rank saved metadata of its own: DCP's `use_collectives=False`. The ranks of a load may then open different places. The
    /// default is no.
    fn is_rank_local(&self) -> bool {
        false
    }

    /// Whether one call of [`read_tensors`](Self::read_tensors) reads selections of one chunk together, in long ranges, even if they are
    /// columns of the same rows. Then ranks of one process that read for each other fill each other's leaves directly; otherwise the
    /// rank that reads gets whole blocks into memory and hands them over. The default is no.
    fn reads_columns_together(&self) -> bool {
        false
    }

    /// Fills the destinations. It reads only the selected bytes, and short gaps between neighbouring ranges.
    ///
    /// # Errors
    /// The first read that fails.
    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic>;
    /// Reads objects, in their stored encoding or as values. Returns them in the order of `reads`. The default is for formats without objects.
    ///
    /// # Errors
    /// The first read that fails. By default: not supported.
    async fn read_objects(&self, reads: &[ReadObject], _cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        match reads {
            [] => Ok(Vec::new()),
            _ => Err(unsupported(&self.key(), "reading objects")),
        }
    }
    /// The checksum of the elements of each of these chunks, in row-major order and little-endian, as the checkpoint says. `None` for a chunk of which nothing of
    /// this kind is stored. A tool that reads every element once checks by it what it reads, instead of reading everything twice. The default
    /// is that nothing is stored.
    ///
    /// # Errors
    /// The first chunk of which it can't be told, because something is damaged or can't be read.
    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        Ok(vec![None; chunks.len()])
    }
    /// Which stored elements a chunk has, if other chunks may have the same ones: two chunks that say the same have the same elements in the
    /// same row-major order. The default is that each chunk has its own.
    fn shared_elements(&self, _chunk: ChunkId) -> Option<String> {
        None
    }
    /// Begins a check for damage: adds problems of the whole checkpoint and refused keys to the report, and returns the checks of the
    /// items. [`verify_items`](Self::verify_items) calls it.
    ///
    /// # Errors
    /// Only errors that stop the whole check. Damage goes into the report.
    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>>;
    /// Whether a check of all items looks at every byte of this file, but for those that its report lists in
    /// [`VerifyReport::not_covered`]. The default is that it does not, so that the whole file is listed.
    fn covers(&self, _file: &Name) -> bool {
        false
    }
    /// Describes a new version of the checkpoint that lacks all tensors and objects whose key starts with `prefix`. It writes nothing:
    /// `reshard_manager::remove_sharded_tensors` writes and commits.
    ///
    /// # Errors
    /// By default: not supported.
    async fn without(&self, _prefix: &str) -> Result<Removal> {
        Err(unsupported(&self.key(), "removing sharded tensors"))
    }

    /// Looks for damage: it checks structure and sizes of all items, and coverage if the verifier does. It also reads the given items, checks their checksums, and
    /// counts those that have none. Formats implement [`verifier`](Self::verifier); only a reader around another one overrides this.
    ///
    /// # Errors
    /// Only errors that stop the whole check. Damage is in the report.
    async fn verify_items(
        &self,
        items: &CheckedItems,
        progress: &Progress,
    ) -> Result<VerifyReport> {
        verify::verify(self, items, progress).await
    }
    /// The same, and with `full` all items are read, otherwise none.
    ///
    /// # Errors
    /// As [`verify_items`](Self::verify_items).
    async fn verify(&self, full: bool, progress: &Progress) -> Result<VerifyReport> {
        self.verify_items(&full.into(), progress).await
    }
}

/// A description that is not the one in the format's own record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rewritten {
    /// The file that has it.
    pub file: Name,
    /// The elements that lie in the same file, as the record has them: the range of each tensor, and its CRC-32. `None` if they lie in other files.
    pub elements: Option<Vec<(Range<u64>, u32)>>,
}

impl Rewritten {
    /// A description in this file.
    pub fn new(file: Name, elements: Option<Vec<(Range<u64>, u32)>>) -> Self {
        Self { file, elements }
    }
}

/// Names of the files that hold the items of a checkpoint.
pub fn item_files(reader: &dyn StorageReader) -> BTreeSet<Name> {
    item_parts(reader).map(|part| part.file).collect()
}

/// The parts of files that hold the items of a checkpoint: those of chunks, and those of objects.
pub fn item_parts(reader: &dyn StorageReader) -> impl Iterator<Item = StorageInfo> {
    let metadata = reader.metadata();
    let chunks = metadata.tensors().flat_map(|t| t.chunks());
    let chunks = chunks.flat_map(|(id, _)| reader.locate_chunk(id));
    let objects = metadata.objects();
    let objects = objects.flat_map(|(id, _)| reader.locate_object(id));
    chunks.chain(objects)
}
