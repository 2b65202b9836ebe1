use crate::{Flavour, open::TorchDist, writer::TorchDistWriter};
use reshard_policy::{ByFiles, ByItem, ShardingPolicy};
use reshard_strategy::{
    LoadShardedConfig, LoadShardedStrategy, Make, Planned, PlannedLoad, Registration, Result,
    SaveShardedConfig, SaveShardedStrategy, StrategyError,
};
use reshard_torch_format::archive::{ArchiveOptions, Era};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Layout of the archives in `.distcp` files; every PyTorch reads both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ArchiveEra {
    /// As PyTorch 2.7 and later write them.
    #[default]
    #[serde(rename = "2.7")]
    Torch27,
    /// As PyTorch 2.6 and earlier write them.
    #[serde(rename = "2.6")]
    Torch26,
}

/// What becomes of a tensor that does not lie row-major in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strides {
    /// It is stored row-major, which suits partial reads.
    #[default]
    RowMajor,
    /// A dense one is stored in its memory order with its strides, as PyTorch does.
    Keep,
}

/// More is surely a mistake.
const MAX_FILES: u32 = 65_536;

/// Settings of the save strategy `("torch_dist", 1)`.
///
/// ```
/// use reshard_strategy::SaveShardedConfig;
/// use reshard_torch_dist as _; // linked, and so known by its tag
/// let json = r#"{ "type": "torch_dist", "files_per_rank": 2, "flavour": "2.4" }"#;
/// let config: Box<dyn SaveShardedConfig> = serde_json::from_str(json).unwrap();
/// assert!(config.build().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchDistConfig {
    /// Files of each rank, over which its items are spread by size; 0 means 1.
    pub files_per_rank: u32,
    /// A file for each item instead.
    pub file_per_item: bool,
    /// For which versions of PyTorch.
    pub flavour: Flavour,
    /// Layout of the archives.
    pub archive: ArchiveEra,
    /// Tensors that are not row-major.
    pub strides: Strides,
}

impl TorchDistConfig {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// As many files for each rank.
    pub fn with_files_per_rank(mut self, files: u32) -> Self {
        self.files_per_rank = files;
        self
    }

    /// For other versions of PyTorch.
    pub fn with_flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// With another layout of archives.
    pub fn with_archive(mut self, archive: ArchiveEra) -> Self {
        self.archive = archive;
        self
    }

    /// With strides kept or not.
    pub fn with_strides(mut self, strides: Strides) -> Self {
        self.strides = strides;
        self
    }

    /// With a file for each item.
    pub fn with_file_per_item(mut self, file_per_item: bool) -> Self {
        self.file_per_item = file_per_item;
        self
    }
}

impl TorchDistConfig {
    /// Both settings of files are sharding policies.
    fn policy(&self) -> Option<Arc<dyn ShardingPolicy>> {
        match self.files_per_rank {
            _ if self.file_per_item => Some(Arc::new(ByItem::new())),
            0 | 1 => None,
            files => Some(Arc::new(ByFiles::new(files))),
        }
    }

    /// The format's writer, for strategies around it. [`build`](SaveShardedConfig::build) drives it by [`Planned`].
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn writer(&self) -> Result<TorchDistWriter> {
        if self.files_per_rank > MAX_FILES {
            let what = format!("files_per_rank is {}, at most {MAX_FILES} are possible", self.files_per_rank);
            return Err(StrategyError::Invalid(what));
        }
        if self.file_per_item && self.files_per_rank > 1 {
            return Err(StrategyError::Invalid("file_per_item and files_per_rank exclude each other".into()));
        }
        let era = match self.archive {
            ArchiveEra::Torch27 => Era::Torch27,
            ArchiveEra::Torch26 => Era::Torch21,
        };
        Ok(TorchDistWriter {
            flavour: self.flavour,
            policy: self.policy(),
            archive: ArchiveOptions::default().with_era(era),
            keep_strides: self.strides == Strides::Keep,
        })
    }
}

#[typetag::serde(name = "torch_dist")]
impl SaveShardedConfig for TorchDistConfig {
    fn build(&self) -> Result<Arc<dyn SaveShardedStrategy>> {
        Ok(Arc::new(Planned::new(self.writer()?)))
    }
}

/// Settings of the load strategy `("torch_dist", 1)`: none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchDistLoadConfig {}

#[typetag::serde(name = "torch_dist")]
impl LoadShardedConfig for TorchDistLoadConfig {
    fn build(&self) -> Result<Arc<dyn LoadShardedStrategy>> {
        Ok(Arc::new(PlannedLoad::new(TorchDist)))
    }
}

macro_rules! register {
    ($make:expr) => {
        inventory::submit! { Registration {
            backend: crate::NAME,
            version: 1,
            origin: env!("CARGO_PKG_NAME"),
            origin_version: env!("CARGO_PKG_VERSION"),
            make: $make,
        } }
    };
}

register!(Make::SaveSharded(|| Box::new(TorchDistConfig::default())));
register!(Make::LoadSharded(|| Box::new(TorchDistLoadConfig::default())));
