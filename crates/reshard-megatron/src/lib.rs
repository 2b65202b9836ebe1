//! What Megatron Core adds to a checkpoint of any format.
//!
//! Leaves of a state dict that are not sharded are *common state*. The coordinator saves it, as a file `common.pt` or
//! (since Megatron Core 0.19) as an object of the sharded part. `metadata.json` names the strategies of both parts
//! ([`MetadataJson`]). It is written last.
//!
//! The common strategy `("torch", 1)` ([`TorchCommon`]) registers itself if a program links and names this crate.

mod cells;
mod common;
mod grids;
mod integrity;
mod metadata_json;
mod names;

pub use common::{
    COMMON, COMMON_STATE, COMMON_STATE_CELL, TorchCommon, decode_common, encode_common,
};
pub use grids::incomplete_arrays;
pub use integrity::{INTEGRITY, Integrity};
pub use metadata_json::{METADATA_JSON, MetadataJson, Whose, is_unfinished};
pub use names::{RESERVED, owns};
