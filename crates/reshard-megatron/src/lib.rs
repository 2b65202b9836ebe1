//! Floor 3 of reshard: what Megatron Core adds to a checkpoint of any format.
//!
//! Leaves of a state dict that are not sharded are *common state*, which rank 0 saves: as a file `common.pt`, or as an object of
//! the sharded part, since Megatron Core 0.19. `metadata.json`, which is written last, names the strategies of both parts
//! ([`MetadataJson`]).
//!
//! The common strategy `("torch", 1)` ([`TorchCommon`]) registers itself where this crate is linked and named.

mod common;
mod metadata_json;

pub use common::{COMMON, COMMON_STATE, COMMON_STATE_CELL, TorchCommon};
pub use metadata_json::{METADATA_JSON, MetadataJson, Whose};

use reshard_storage::Name;

/// Digests of the files beside it, which Megatron Core 0.20 and later can write and check.
pub const INTEGRITY: &str = "integrity.json";

/// Keys that Megatron Core has for itself at the top of a state dict.
pub const RESERVED: [&str; 2] = [COMMON_STATE, "content_metadata"];

/// Whether Megatron Core gives a file beside those of the strategies such a name. Other programs have files of these names, too.
pub fn owns(name: &Name) -> bool {
    [METADATA_JSON, INTEGRITY].contains(&name.as_str())
}
