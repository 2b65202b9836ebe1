use crate::{COMMON_STATE, INTEGRITY, METADATA_JSON};
use reshard_storage::Name;

/// Keys at the top of a state dict that Megatron Core reserves for itself.
pub const RESERVED: [&str; 2] = [COMMON_STATE, "content_metadata"];

/// Whether Megatron Core gives such a name to a file of its own, besides the files of the strategies. Other programs use
/// these names too.
pub fn owns(name: &Name) -> bool {
    [METADATA_JSON, INTEGRITY].contains(&name.as_str())
}
