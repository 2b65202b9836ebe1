//! Save the state of a model that is spread over any number of ranks, and load it onto any other number, with any other split.
//!
//! ```
//! use reshard::{ShardedTensor, StateDict, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let place = dir.path().join("step-1000"); // a path or a URL
//! let (rank, world) = (0, 1);
//! let mut state = StateDict::new();
//! // this rank holds row block `rank` of `world`
//! let local = Tensor::from_vec(&[2, 3], vec![1f32, 2., 3., 4., 5., 6.])?;
//! state.insert_piece(ShardedTensor::from_rank_offsets("layer.weight", local, &[(0, rank, world)])?);
//! state.insert("step", 1000); // common: the coordinator (rank 0 by default) saves it
//!
//! reshard::blocking::save(&state, &place)?; // torch_dist, version 1, by default; no group: one rank
//!
//! // random access: reads one row
//! let ckpt = reshard::blocking::Checkpoint::open(&place)?;
//! let row = ckpt.tensor("layer.weight")?.read(reshard::Region::rows(1..2))?;
//! assert_eq!(row.to_vec::<f32>()?, [4., 5., 6.]);
//!
//! // a load fills the template's buffers; this template has none, so reshard allocates
//! let mut template = StateDict::new();
//! template.insert_piece(ShardedTensor::template("layer.weight", reshard::DType::Float32, &[2, 3]));
//! let state = reshard::blocking::load(template, &place)?;
//! assert_eq!(state.int("step")?, 1000);
//! # Ok(())
//! # }
//! ```
//!
//! A load may rename: `template.insert("my.name", ShardedTensor::template("stored.name", …))` ([`load`]). `Checkpoint::mapped` (feature `map`) reads a
//! checkpoint under the names, shapes and types that the rules of a map make.
//!
//! Inside an executor, use [`save`], [`load`] and [`Checkpoint`]. `reshard::save(&state, url).group(&group).await`
//! saves from all ranks of a process group. Local files work with any executor.
//!
//! [`prelude`] has the names that most programs need. The root has these too, and the types that saves, loads and
//! [`Checkpoint`] take and return. Everything else is in the module of its crate: [`model`], [`plan`], [`policy`],
//! [`strategy`], [`storage`], [`comm`], [`megatron`], [`torch_dist`].
//!
//! Formats and places are features. `torch-dist` and `local` (directories of this machine) are on by default. `torch-save`, `safetensors`,
//! `tensor-bundle` and `zarr` are other formats, and `map` reads checkpoints under other names. `full` has all. You may leave them
//! out if you link strategies and stores of your own.
//!
//! This crate only combines the parts: formats are strategies ([`Registry`]), places are stores ([`Stores`]), and
//! ranks form process groups ([`ProcessGroup`]). Other crates can add to each of them.

mod advice;
mod agreement;
mod alike;
mod background;
mod consistent;
mod events;
mod in_flight;
mod load;
mod ranks;
#[cfg(doctest)]
mod readme;
mod report;
mod save;
mod side_by_side;
mod stateful;
mod tally;

pub mod blocking;
pub mod prelude;

pub use background::{
    AsyncCallsQueue, AsyncRequest, AsyncSaver, Finalized, FrozenRequest, SaveHandle,
};
pub use consistent::CommonDifference;
pub use events::{PHASE_EVENTS, PhaseEvent};
pub use load::{Load, LoadError, load};
pub use report::{LoadReport, Phase, SaveReport};
pub use save::{Save, save};
pub use stateful::Stateful;

pub use reshard_comm::{self as comm, LocalGroup, ProcessGroup, Rank, SingleProcess};
/// Mapping files; feature `map`.
#[cfg(feature = "map")]
pub use reshard_map as map;
/// What Megatron Core adds to a checkpoint of any format.
pub use reshard_megatron as megatron;
pub use reshard_model::{
    self as model, DType, Data, Dialect, ErrorKind, Region, ShardedObject, ShardedTensor,
    StateDict, Tensor, Value, ValueTree,
};
/// Object stores; feature `object-store`, with `aws`, `gcp`, `azure` and `http` for the services.
#[cfg(feature = "object-store")]
pub use reshard_object_store as object_store;
pub use reshard_open::{
    Checkpoint, CommonForm, Error, ErrorWith, OpenOptions, Result, SIDECAR, Sample, Sidecar,
    StoredChunk, StoredCommon, TensorHandle, Tie, Whereabouts, is_distributed_checkpoint,
    load_common, load_content_metadata, load_metadata, load_plain_tensors,
    load_plain_tensors_and_common, load_sharded_metadata, load_tensors_metadata, place_text,
};
#[cfg(feature = "map")]
pub use reshard_open::{MappedCheckpoint, MappedTensorHandle, OnCast};
pub use reshard_plan::{self as plan, Cast, StrictHandling};
pub use reshard_policy::{self as policy, ShardingPolicy};
/// The `safetensors` format and its settings; feature `safetensors`.
#[cfg(feature = "safetensors")]
pub use reshard_safetensors as safetensors;
pub use reshard_storage::{self as storage, Durability, Stores};
pub use reshard_strategy::{
    self as strategy, AsyncStager, BackendVersion, BlockingAsyncStager, KeptLoadPlan, KeptPlan,
    LoadProgress, ReadLimits, Registry, Staging,
};
/// TensorFlow's V2 checkpoints; feature `tensor-bundle`.
#[cfg(feature = "tensor-bundle")]
pub use reshard_tensor_bundle as tensor_bundle;
/// The `torch_dist` format and its settings; feature `torch-dist`, by default.
#[cfg(feature = "torch-dist")]
pub use reshard_torch_dist as torch_dist;
/// The `torch_save` format and its settings; feature `torch-save`.
#[cfg(feature = "torch-save")]
pub use reshard_torch_save as torch_save;

/// The `zarr` format and its settings; feature `zarr`.
#[cfg(feature = "zarr")]
pub use reshard_zarr as zarr;
