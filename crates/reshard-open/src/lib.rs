//! Finds, opens, reads and checks distributed checkpoints of any format: [`Checkpoint`], and the rules by which a place is a checkpoint.
//!
//! Programs use it by the crate `reshard`, whose documentation has the examples. The modules are for crates that write checkpoints or remove
//! them, and must agree with this one on what belongs to a checkpoint: `reshard` and `reshard-manager`.

mod bound;
mod checkpoint;
mod common;
mod control;
mod covered;
mod error;
mod identify;
mod known;
#[cfg(feature = "map")]
mod mapped;
mod place;
mod recognise;
mod whereabouts;
mod written;

pub mod attempt;
pub mod integrity;
pub mod opened;
pub mod outside;
pub mod replace;
pub mod sidecar;

pub use checkpoint::{
    Checkpoint, Handle, Sample, StoredChunk, TensorHandle, Tie, is_distributed_checkpoint,
    load_common, load_content_metadata, load_metadata, load_plain_tensors,
    load_plain_tensors_and_common, load_sharded_metadata, load_tensors_metadata,
};
pub use common::{CommonForm, StoredCommon};
pub use control::sha256;
pub use error::{Context, Error, ErrorWith, OPEN, Result};
#[cfg(feature = "map")]
pub use mapped::{MappedCheckpoint, MappedTensorHandle, OnCast};
pub use opened::OpenOptions;
pub use place::place_text;
pub use recognise::is_no_folder;
pub use sidecar::{SIDECAR, Sidecar};
pub use whereabouts::{Whereabouts, explained};
