//! What a checkpoint strategy is, where strategies are found, and the pipeline that drives them.
//!
//! A *strategy* is a format with its algorithm. A [`Registry`] finds it by `(backend, version)`, as in Megatron Core. There are four
//! kinds: [`SaveShardedStrategy`], [`LoadShardedStrategy`], [`SaveCommonStrategy`], [`LoadCommonStrategy`].
//!
//! A format says where an item is stored ([`StorageWriter`]) and reads it again ([`StorageReader`]; these are PyTorch DCP's names). A
//! strategy is such a format with its settings ([`SaveFormat`], [`LoadFormat`]) and layers around its planning ([`SaveLayer`], [`LoadLayer`]).
//! A save has these phases:
//!
//! ```text
//! plan   (collective)  local plan -> gather -> global plan, sharding policy -> scatter -> finish_plan
//! write  (local)       layout of files; bytes, from the caller's buffers or staged copies; meanwhile ranks exchange items if plans say so
//! finish (collective)  outcomes of all ranks; the coordinator makes the format record
//! ```
//!
//! A strategy is data: it has a JSON form, `{ "format": "torch_dist", "settings": { … }, "layers": [ … ] }`.
//! `docs/strategies.md` shows how to write a crate with your own strategy.

mod agree;
mod ahead;
mod capabilities;
mod checked_items;
mod common;
mod config;
mod context;
mod crc;
mod declared;
mod elements;
mod error;
mod few;
mod findings;
mod foreign;
mod format;
mod format_info;
mod format_record;
mod formats;
mod hex;
mod indexed;
mod kept;
mod limits;
mod load_sharded;
mod mosaic;
mod not_covered;
mod objects;
mod options;
mod pipeline;
mod progress;
mod recent;
mod refused;
mod registry;
mod replicas;
mod report;
mod save_sharded;
mod sharded;
mod staging;
#[cfg(feature = "torch-format")]
pub mod torch;
mod unique;
mod unread;
mod verify;

#[doc(hidden)]
pub use inventory;

pub use agree::agree;
pub use capabilities::Capabilities;
pub use checked_items::CheckedItems;
pub use common::{LoadCommonStrategy, SaveCommonStrategy};
pub use config::{load_format, save_format, settings_of};
pub use context::{
    DEFAULT_COPY_AHEAD, DEFAULT_EXCHANGE_MEMORY, LoadCx, LoadPipelineOptions, OpenCx,
    PipelineOptions, SaveCx,
};
pub use crc::{
    Crc32, Crc32Check, CrcCheck, ElementChecksum, PartialCrc, crc_of, crc32_combined,
    crc32_differs, crc32_of, read_in_steps,
};
pub use declared::{Declares, declaration_digest};
pub use elements::{Blocks, Elements, decode_object, encode_object, other_kind};
pub use error::{Result, StrategyError, cause};
pub use few::{few, first};
pub use findings::{Damage, Rest, Unlisted, VerifyReport};
pub use foreign::{FOREIGN, Foreign, HEAD, TAIL};
pub use format::{
    ExtentId, FileLayout, FileRole, FinishCx, Footprint, PolicyUse, Producer, ReadCx, ReadObject,
    ReadTensor, ReaderHooks, Records, Resolve, Rewritten, StorageInfo, StorageReader,
    StorageWriter, WriteResult, WriterHooks, item_files, item_parts,
};
pub use format_info::{Detection, FormatInfo, OwnFile};
pub use format_record::{is_default, known_schema};
pub use formats::Formats;
pub use hex::hex;
pub use indexed::{IndexReader, ItemIndex, ItemPlace, TensorIndex};
pub use kept::{KeptLoadPlan, KeptPlan};
pub use limits::{LimitOption, REPEATED, ReadLimits, SMALL, check_steps, read_small, repeats};
pub use load_sharded::{LoadFormat, LoadLayer, LoadSetup, LoadShardedStrategy};
pub use mosaic::{Piece, mosaic, run_of};
pub use not_covered::{NotCovered, Uncovered, overlapping, unclaimed};
pub use options::{AgreedOptions, Differences};
pub use pipeline::PreparedSave;
pub use progress::{LoadProgress, LoadReporter};
pub use recent::Recent;
pub use refused::Refused;
pub use registry::{Action, BackendVersion, Make, Registration, Registry, StrategyKey};
pub use replicas::{check_replicas, crc32_of_all};
pub use report::{LoadNotes, SaveTotals};
pub use reshard_model::FlatView;
pub use reshard_model::with_sources;
pub use reshard_plan::{Selection, WriteData};
pub use reshard_storage::Traffic;
pub use save_sharded::{SaveFormat, SaveLayer, SaveSetup, SaveShardedStrategy};
pub use sharded::{ExchangeTimes, LoadFailure, Loaded, Removal, Saved};
pub use staging::{AsyncStager, BlockingAsyncStager, KeyedData, Staging, stage_save};
pub use unique::{UniqueJson, UniqueMap};
pub use unread::{UnreadPart, read_in_batches};
pub use verify::{BoxVerifier, ChunkCheck, ItemCheck, ItemVerifier, ObjectCheck, VerifyRun};

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
