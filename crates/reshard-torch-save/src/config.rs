use crate::NAME;
use reshard_strategy::register_format;
use serde::{Deserialize, Serialize};

/// Settings of the save strategy `("torch_save", 1)`.
///
/// ```
/// use reshard_strategy::SaveShardedStrategy;
/// use reshard_torch_save as _; // linked, and so registered
/// let config = r#"{ "format": "torch_save", "single_file": true }"#;
/// let strategy: SaveShardedStrategy = serde_json::from_str(config).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "torch_save");
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

/// Settings of the load strategy `("torch_save", 1)`.
///
/// ```
/// use reshard_torch_save::TorchSaveLoadConfig;
/// let config = TorchSaveLoadConfig::default().with_open_modules(true);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchSaveLoadConfig {
    /// Whether to read the tensors of pickled modules and of TorchScript under the names that `state_dict()` gives them. Nothing is executed.
    /// By default a pickled module is one object, and TorchScript is refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open_modules: bool,
}

impl TorchSaveLoadConfig {
    /// Sets whether modules are opened.
    #[must_use]
    pub fn with_open_modules(self, open_modules: bool) -> Self {
        Self { open_modules }
    }
}

register_format!(NAME, 1, save: TorchSaveConfig, load: TorchSaveLoadConfig);
