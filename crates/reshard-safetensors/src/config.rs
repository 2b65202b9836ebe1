use crate::{NAME, settings::SafetensorsConfig};
use reshard_model::DType;
use reshard_strategy::register_format;
use serde::{Deserialize, Serialize};

/// Settings of the load strategy `("safetensors", 1)`.
///
/// ```
/// use reshard_safetensors as _; // linked, and so registered
/// use reshard_strategy::LoadShardedStrategy;
/// let config = r#"{ "format": "safetensors", "dequantize": "bfloat16" }"#;
/// let strategy: LoadShardedStrategy = serde_json::from_str(config).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "safetensors");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, derive_setters::Setters)]
#[setters(prefix = "with_", strip_option)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SafetensorsLoadConfig {
    /// The floating-point type as which quantised tensors are read: float8 in blocks with `weight_scale_inv`, and MXFP4 in `_blocks` and
    /// `_scales`. The scales are then no tensors of the checkpoint. The default is none: everything is read as it is stored.
    pub dequantize: Option<DType>,
    /// Whether `dequantize` may have no effect. Without it, a checkpoint in which no tensor is quantised in a form that is known is refused. The
    /// default is no.
    pub allow_unquantized: bool,
}

register_format!(NAME, 1, save: SafetensorsConfig, load: SafetensorsLoadConfig);
