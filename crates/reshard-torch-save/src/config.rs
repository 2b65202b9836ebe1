use crate::{NAME, open::TorchSaveFormat};
use reshard_strategy::{
    LoadShardedConfig, LoadShardedStrategy, Make, Registration, Result, SaveShardedConfig,
    SaveShardedStrategy,
};
use serde::{Deserialize, Serialize};

/// Settings of the save strategy `("torch_save", 1)`.
///
/// ```
/// use reshard_strategy::SaveShardedConfig;
/// use reshard_torch_save as _; // linked, and so known by its tag
/// let config = r#"{ "type": "torch_save", "single_file": true }"#;
/// let config: Box<dyn SaveShardedConfig> = serde_json::from_str(config).unwrap();
/// assert!(config.build().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchSaveConfig {
    /// Whether the URL names a file, and not a folder with files. By default it does if it ends with `.pt`, `.pth`, `.bin` or `.ckpt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single_file: Option<bool>,
}

impl TorchSaveConfig {
    /// Sets whether the URL names a file.
    #[must_use]
    pub fn with_single_file(self, single_file: bool) -> Self {
        Self {
            single_file: Some(single_file),
        }
    }
}

#[typetag::serde(name = "torch_save")]
impl SaveShardedConfig for TorchSaveConfig {
    fn build(&self) -> Result<SaveShardedStrategy> {
        Ok(SaveShardedStrategy::new(self.clone()))
    }
}

/// Settings of the load strategy `("torch_save", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchSaveLoadConfig {}

#[typetag::serde(name = "torch_save")]
impl LoadShardedConfig for TorchSaveLoadConfig {
    fn build(&self) -> Result<LoadShardedStrategy> {
        Ok(LoadShardedStrategy::new(TorchSaveFormat))
    }
}

inventory::submit! { entry(Make::SaveSharded(|| Box::new(TorchSaveConfig::default()))) }
inventory::submit! { entry(Make::LoadSharded(|| Box::new(TorchSaveLoadConfig::default()))) }

const fn entry(make: Make) -> Registration {
    Registration {
        backend: NAME,
        version: 1,
        origin: env!("CARGO_PKG_NAME"),
        origin_version: env!("CARGO_PKG_VERSION"),
        make,
    }
}
