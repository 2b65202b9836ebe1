//! Floor 3 of reshard: what Megatron Core adds to a checkpoint of any format.
//!
//! Leaves of a state dict that are not sharded are *common state*, which rank 0 saves: as a file `common.pt`, or as an object of
//! the sharded part, since Megatron Core 0.19. `metadata.json`, which is written last, names the strategies of both parts
//! ([`MetadataJson`]).
//!
//! The common strategy `("torch", 1)` ([`TorchCommon`]) registers itself where this crate is linked and named.

mod common;
mod metadata_json;
mod names;

pub use common::{COMMON, COMMON_STATE, COMMON_STATE_CELL, TorchCommon};
pub use metadata_json::{METADATA_JSON, MetadataJson, Whose, is_unfinished};
pub use names::{INTEGRITY, RESERVED, owns};
