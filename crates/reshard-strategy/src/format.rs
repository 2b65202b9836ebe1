//! What a format has to say: DCP's StorageWriter and StorageReader, without the pipeline around them.

use crate::{BackendVersion, ReadTotals, Result};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{DType, Dialect, ObjectCodec, Payload, Region, RegionMut, Value};
use reshard_plan::{ChunkId, LoadPlan, Metadata, ObjectId, PieceId, SavePlan, WriteData, WriteItem};
use reshard_policy::ShardingPolicy;
use reshard_storage::{Entry, FileBody, Name, Progress};
use serde::{Deserialize, Serialize};
use std::{any::Any, collections::BTreeMap, fmt, sync::Arc};

/// Where a stored item lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteResult {
    /// Which item.
    pub id: PieceId,
    /// In which file.
    pub file: Name,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Files of one rank, decided before their first byte is written.
#[derive(Debug, Default)]
pub struct FileLayout {
    /// The files, with exact lengths.
    pub files: Vec<FileBody>,
    /// Where each item lies in them.
    pub results: Vec<WriteResult>,
}

/// What a planned item is made of: tensor elements of exactly its region, or an object.
pub type Resolve<'a> = dyn Fn(&WriteItem) -> Result<WriteData> + Sync + 'a;

/// DCP's StorageWriter: the layout of a format. The pipeline calls the methods in the order in which they stand here.
pub trait StorageWriter: fmt::Debug + Send + Sync + 'static {
    /// Its name.
    fn key(&self) -> BackendVersion;
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
    /// Which files this rank writes, and where each item lies in them. Sizes are exact; elements are pulled later.
    /// [`SavePlan::by_file`] says which items share a file.
    ///
    /// # Errors
    /// Items that the format can't store, objects that can't be encoded.
    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout>;
    /// The files that make a checkpoint of the written items, the commit record last. On the coordinator, of all ranks; for a
    /// rank-local checkpoint on every rank, of its own items, with `rank` given.
    ///
    /// # Errors
    /// Items that the format can't describe.
    fn finish(
        &self,
        metadata: &Metadata,
        results: &[Vec<WriteResult>],
        rank: Option<u32>,
    ) -> Result<Vec<(Name, Bytes)>>;
}

/// A region of one stored chunk, and where it lands.
#[derive(Debug)]
pub struct ReadTensor {
    /// Which chunk.
    pub chunk: ChunkId,
    /// What of it, from the chunk's start.
    pub region: Region,
    /// Element type of the region; that of the stored tensor.
    pub dtype: DType,
    /// The place for the elements.
    pub into: RegionMut,
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
    /// Tensors that are stored flattened, chunk by chunk, and can only be shown as they are stored.
    #[serde(default)]
    pub flattened: u64,
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

/// DCP's StorageReader: an opened checkpoint. The logical table is shared ([`Metadata`]), the physical one is the format's;
/// [`ChunkId`] and [`ObjectId`] join them.
#[async_trait]
pub trait StorageReader: Any + fmt::Debug + Send + Sync {
    /// Name of the format.
    fn key(&self) -> BackendVersion;
    /// What is stored.
    fn metadata(&self) -> &Arc<Metadata>;
    /// Whose conventions it follows.
    fn dialect(&self) -> Dialect;
    /// Where a chunk lies; `None` when the checkpoint does not say.
    fn locate_chunk(&self, chunk: ChunkId) -> Option<WriteResult>;
    /// Where an object lies; `None` when the checkpoint does not say.
    fn locate_object(&self, object: ObjectId) -> Option<WriteResult>;
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
    /// Fills the regions; no byte outside of the wanted regions is read, save what lies between near ranges.
    /// With `verify`, the checksum of every item that is read as a whole is checked.
    ///
    /// # Errors
    /// The first read that fails.
    async fn read_tensors(
        &self,
        reads: Vec<ReadTensor>,
        verify: bool,
        progress: &Progress,
    ) -> Result<ReadTotals>;
    /// Reads objects, encoded as they are, in the order asked for.
    ///
    /// # Errors
    /// The first read that fails.
    async fn read_objects(&self, reads: &[ReadObject], verify: bool) -> Result<Vec<Payload>>;
    /// Looks for damage: structure, coverage and sizes; with `full`, every checksum too.
    ///
    /// # Errors
    /// Only what stops the check as a whole.
    async fn verify(&self, full: bool, progress: &Progress) -> Result<VerifyReport>;
}
