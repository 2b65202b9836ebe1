use crate::{Flavour, buckets::Buckets, writer::TorchDistWriter};
use derive_setters::Setters;
use reshard_policy::{ByFiles, ByItem, ShardingPolicy};
use reshard_strategy::{
    BackendVersion, Capabilities, Result, SaveCx, SaveFormat, StorageWriter, StrategyError,
    register_format, settings_of,
};
use reshard_torch_format::archive::{ArchiveOptions, Era};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;

/// The layout of the archives in `.distcp` files. Every PyTorch reads both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ArchiveEra {
    /// The layout of PyTorch 2.7 and later.
    #[default]
    #[serde(rename = "2.7")]
    Torch27,
    /// The layout of PyTorch 2.6 and earlier.
    #[serde(rename = "2.6")]
    Torch26,
}

/// How to store a tensor that is not row-major in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strides {
    /// Row-major, which suits partial reads.
    #[default]
    RowMajor,
    /// If it is dense, in its memory order with its strides, as PyTorch does.
    Keep,
}

/// The maximal number of files per rank. More are surely a mistake.
const MAX_FILES: u32 = 65_536;

/// Settings of the save strategy `("torch_dist", 1)`.
///
/// ```
/// use reshard_strategy::SaveShardedStrategy;
/// use reshard_torch_dist as _; // linked, and so registered
/// let json = r#"{ "format": "torch_dist", "files_per_rank": 2, "flavour": "2.4" }"#;
/// let strategy: SaveShardedStrategy = serde_json::from_str(json).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "torch_dist");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Setters)]
#[setters(prefix = "with_", strip_option)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchDistConfig {
    /// The number of files of each rank. Its items are spread over them by size. 0 means 1.
    pub files_per_rank: u32,
    /// Whether each item gets a file of its own instead.
    pub file_per_item: bool,
    /// The versions of PyTorch to write for.
    pub flavour: Flavour,
    /// The layout of the archives.
    pub archive: ArchiveEra,
    /// How to store tensors that are not row-major.
    pub strides: Strides,
    /// Megatron Core's number of files of each rank, over which it spreads items in another way than `files_per_rank`. Half of them are for
    /// keys with the `separation_hint`, if there is one.
    pub thread_count: Option<u32>,
    /// Megatron Core's separation of files: what has a key that begins with this lies in files of its own, `{hint}__{rank}_{n}.distcp`. So
    /// [`without`](reshard_strategy::StorageReader::without) can remove these files.
    #[setters(into)]
    pub separation_hint: Option<String>,
    /// Whether only main replicas are written, as in Megatron Core. Otherwise any rank with a replica may write it, as in DCP.
    pub keep_only_main_replica: bool,
}

impl Default for TorchDistConfig {
    fn default() -> Self {
        Self {
            files_per_rank: 0,
            file_per_item: false,
            flavour: Flavour::default(),
            archive: ArchiveEra::default(),
            strides: Strides::default(),
            thread_count: None,
            separation_hint: None,
            keep_only_main_replica: true,
        }
    }
}

impl TorchDistConfig {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }
}

impl TorchDistConfig {
    /// The sharding policy for the two settings of files.
    fn policy(&self) -> Option<Arc<dyn ShardingPolicy>> {
        match self.files_per_rank {
            _ if self.file_per_item => Some(Arc::new(ByItem::new())),
            0 | 1 => None,
            files => Some(Arc::new(ByFiles::new(files))),
        }
    }

    /// Megatron Core's buckets, if its settings are given.
    fn buckets(&self) -> Result<Option<Buckets>> {
        let invalid = |what: String| Err(StrategyError::Invalid(what));
        if let Some(hint) = &self.separation_hint
            && (hint.is_empty() || hint.contains(['/', '\0']))
        {
            return invalid(format!(
                "separation_hint {hint:?} can't begin the name of a file; give a beginning of keys without `/`"
            ));
        }
        if let Some(threads) = self.thread_count {
            if threads == 0 || threads > MAX_FILES {
                return invalid(format!(
                    "thread_count is {threads}, but it must be between 1 and {MAX_FILES}"
                ));
            }
            if self.file_per_item || self.files_per_rank > 1 {
                let what =
                    "thread_count excludes file_per_item and files_per_rank; give one of them";
                return invalid(what.into());
            }
        }
        let hint = self.separation_hint.clone();
        let bins = match (self.thread_count, &hint) {
            (None, None) => return Ok(None),
            (Some(threads), None) => threads,
            // Half of the threads write what has the hint. Megatron Core 0.17 makes two of one.
            (threads, Some(_)) => (threads.unwrap_or(2) / 2).max(1),
        };
        Ok(Some(Buckets { bins, hint }))
    }

    /// The writer, or the error for settings that contradict each other.
    fn checked_writer(&self) -> Result<TorchDistWriter> {
        if self.files_per_rank > MAX_FILES {
            let what = format!(
                "files_per_rank is {}, but at most {MAX_FILES} are possible",
                self.files_per_rank
            );
            return Err(StrategyError::Invalid(what));
        }
        if self.file_per_item && self.files_per_rank > 1 {
            let what = "file_per_item and files_per_rank exclude each other; give one of them";
            return Err(StrategyError::Invalid(what.into()));
        }
        let buckets = self.buckets()?;
        let era = match self.archive {
            ArchiveEra::Torch27 => Era::Torch27,
            ArchiveEra::Torch26 => Era::Torch21,
        };
        Ok(TorchDistWriter {
            flavour: self.flavour,
            policy: self.policy(),
            buckets,
            archive: ArchiveOptions::default().with_era(era),
            keep_strides: self.strides == Strides::Keep,
            any_replica: !self.keep_only_main_replica,
        })
    }
}

impl SaveFormat for TorchDistConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(crate::NAME, 1)
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    fn check(&self) -> Result<()> {
        self.checked_writer().map(drop)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            takes_folder: true,
            object_lists: true,
            ..Capabilities::DEFAULT
        }
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(self.checked_writer()?))
    }
}

/// Settings of the load strategy `("torch_dist", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TorchDistLoadConfig {}

register_format!(crate::NAME, 1, save: TorchDistConfig, load: TorchDistLoadConfig);
