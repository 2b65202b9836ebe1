use crate::{NAME, open::Safetensors, settings::SafetensorsConfig};
use reshard_model::DType;
use reshard_strategy::{
    LoadShardedConfig, LoadShardedStrategy, Make, Registration, Result, SaveShardedConfig,
    SaveShardedStrategy, StrategyError,
};
use serde::{Deserialize, Serialize};

#[typetag::serde(name = "safetensors")]
impl SaveShardedConfig for SafetensorsConfig {
    fn build(&self) -> Result<SaveShardedStrategy> {
        let name = &self.name;
        if name.is_empty() || name.contains(['/', '\\', '\0']) || name.starts_with('.') {
            let what = format!("{name:?} is no name of a model; files are named like it");
            return Err(StrategyError::Invalid(what));
        }
        Ok(SaveShardedStrategy::new(self.clone()))
    }
}

/// Settings of the load strategy `("safetensors", 1)`.
///
/// ```
/// use reshard_safetensors as _; // linked, and so known by its tag
/// use reshard_strategy::LoadShardedConfig;
/// let config = r#"{ "type": "safetensors", "dequantize": "bfloat16" }"#;
/// let config: Box<dyn LoadShardedConfig> = serde_json::from_str(config).unwrap();
/// assert!(config.build().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl SafetensorsLoadConfig {
    /// Sets the type as which quantised tensors are read.
    #[must_use]
    pub fn with_dequantize(self, dtype: DType) -> Self {
        Self {
            dequantize: Some(dtype),
            ..self
        }
    }

    /// Sets whether `dequantize` may have no effect.
    #[must_use]
    pub fn with_allow_unquantized(self, allow_unquantized: bool) -> Self {
        Self {
            allow_unquantized,
            ..self
        }
    }
}

#[typetag::serde(name = "safetensors")]
impl LoadShardedConfig for SafetensorsLoadConfig {
    fn build(&self) -> Result<LoadShardedStrategy> {
        let dequantize = self.dequantize;
        if let Some(dtype) = dequantize
            && !(dtype.is_float() && dtype.size() > 1)
        {
            let what = format!(
                "quantised tensors can't be read as {dtype}; choose float32, bfloat16, float16 or float64"
            );
            return Err(StrategyError::Invalid(what));
        }
        Ok(LoadShardedStrategy::new(Safetensors {
            dequantize,
            allow_unquantized: self.allow_unquantized,
        }))
    }
}

inventory::submit! { entry(Make::SaveSharded(|| Box::new(SafetensorsConfig::default()))) }
inventory::submit! { entry(Make::LoadSharded(|| Box::new(SafetensorsLoadConfig::default()))) }

const fn entry(make: Make) -> Registration {
    Registration {
        backend: NAME,
        version: 1,
        origin: env!("CARGO_PKG_NAME"),
        origin_version: env!("CARGO_PKG_VERSION"),
        make,
    }
}
