use crate::{COMMON_STATE, METADATA_JSON};
use reshard_storage::Name;

/// Digests of the files beside it, which Megatron Core 0.20 and later can write and check.
pub const INTEGRITY: &str = "integrity.json";

/// Keys that Megatron Core has for itself at the top of a state dict.
pub const RESERVED: [&str; 2] = [COMMON_STATE, "content_metadata"];

/// Whether Megatron Core gives a file beside those of the strategies such a name. Other programs have files of these names, too.
pub fn owns(name: &Name) -> bool {
    [METADATA_JSON, INTEGRITY].contains(&name.as_str())
}
