use derive_setters::Setters;
use reshard_policy::ByteSize;
use serde::{Deserialize, Serialize};

/// Settings of the save strategy `("safetensors", 1)`.
///
/// ```
/// use reshard_safetensors as _; // linked, and so registered
/// use reshard_strategy::SaveShardedStrategy;
/// let config = r#"{ "format": "safetensors", "max_shard_size": "2GB" }"#;
/// let strategy: SaveShardedStrategy = serde_json::from_str(config).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "safetensors");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Setters)]
#[setters(prefix = "with_")]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SafetensorsConfig {
    /// The most bytes of a file of tensors, with its header, unless one tensor alone has more. Tensors are never cut. The default is 5 GB,
    /// as in `transformers`, which does not count headers. A sharding policy of the save decides instead, if there is one.
    #[setters(into)]
    pub max_shard_size: ByteSize,
    /// The name of the model, with which the names of files begin. The default is `model`.
    #[setters(into)]
    pub name: String,
    /// Whether each rank writes its pieces to files of its own, as PyTorch DCP's `HuggingFaceStorageWriter` with `save_distributed`. Only
    /// its `HuggingFaceStorageReader` and reshard put the pieces together. The default is no: each tensor lies in one file.
    pub sharded: bool,
    /// Whether tensors of a type that safetensors lacks (complex128, for example) are stored as bytes, with one axis more. Only reshard
    /// gives such a tensor its type again. The default is no: such a tensor is refused.
    pub types_as_bytes: bool,
    /// Whether leaves that are no tensors are kept in a file of their own beside the tensors ([`OBJECTS`](crate::OBJECTS)). Only reshard
    /// reads it. A checkpoint of one file has no place for it. The default is no: such a leaf is refused.
    pub keep_objects: bool,
}

impl Default for SafetensorsConfig {
    fn default() -> Self {
        Self {
            max_shard_size: ByteSize(5_000_000_000),
            name: "model".into(),
            sharded: false,
            types_as_bytes: false,
            keep_objects: false,
        }
    }
}

impl SafetensorsConfig {
    /// Whether the index names all files, so that these may lie in a folder. Files of ranks have no index, and it does not name the file of
    /// objects.
    pub(crate) fn takes_folder(&self) -> bool {
        !self.sharded && !self.keep_objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_at_most_5_gb_unless_somebody_asks_for_another_size() {
        let default = SafetensorsConfig::default();
        assert_eq!(default.max_shard_size, ByteSize(5_000_000_000));
        let of_nothing: SafetensorsConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(of_nothing, default);
    }
}
