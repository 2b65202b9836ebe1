//! The format to write: which one, with which settings, and what it can hold.

use crate::{ConvertError, Result};
use reshard::{
    BackendVersion, Registry,
    storage::{Entry, Name, PlaceKind},
    strategy::{Capabilities, Detection, SaveShardedConfig, SaveShardedStrategy, StrategyError},
};
use serde_json::Value as Json;
use std::sync::Arc;

/// Which format is wanted.
#[derive(Debug, Default)]
pub(crate) enum Wanted {
    /// The one whose files have such names as the destination, or else `torch_dist`.
    #[default]
    ByName,
    /// The one of this name.
    Named(BackendVersion),
    /// The one with these settings.
    Config(Box<dyn SaveShardedConfig>),
}

/// A format to write.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its settings as data, because each rank needs a strategy of its own.
    settings: Json,
    strategy: Arc<dyn SaveShardedStrategy>,
}

impl Target {
    /// The wanted format, with some settings changed.
    pub(crate) fn of(
        wanted: &Wanted,
        changes: &[(String, Json)],
        dst: &str,
        registry: &Registry,
    ) -> Result<Self> {
        let found;
        let mut named = false;
        let config = match wanted {
            Wanted::Config(config) => config,
            Wanted::Named(name) => {
                found = registry.save_sharded(name).map_err(ConvertError::Target)?;
                &found
            }
            Wanted::ByName => {
                let by_name = by_name(registry, last_part(dst)).map_err(ConvertError::Target)?;
                named = by_name.is_some();
                let name = by_name.unwrap_or_else(|| BackendVersion::new("torch_dist", 1));
                found = registry.save_sharded(&name).map_err(ConvertError::Target)?;
                &found
            }
        };
        let mut settings = serde_json::to_value(config)
            .map_err(|e| ConvertError::Target(StrategyError::Internal(e.to_string())))?;
        for (name, value) in changes {
            if let Json::Object(all) = &mut settings {
                all.insert(name.clone(), value.clone());
            }
            if let Err(e) = config_of(&settings) {
                return Err(ConvertError::Setting {
                    format: config.build().map_err(ConvertError::Target)?.key(),
                    setting: name.clone(),
                    what: e.to_string(),
                });
            }
        }
        let strategy = config_of(&settings)
            .map_err(|e| ConvertError::Target(StrategyError::Invalid(e.to_string())))?
            .build()
            .map_err(ConvertError::Target)?;
        let target = Self { settings, strategy };
        // Who gives the name of a file wants a file.
        if named && target.place(dst) != PlaceKind::File {
            return Err(ConvertError::NoSingleFile {
                format: target.key(),
                dst: dst.into(),
            });
        }
        Ok(target)
    }

    /// Settings for one rank.
    pub(crate) fn config(&self) -> Result<Box<dyn SaveShardedConfig>> {
        config_of(&self.settings)
            .map_err(|e| ConvertError::Target(StrategyError::Internal(e.to_string())))
    }

    /// Its name.
    pub(crate) fn key(&self) -> BackendVersion {
        self.strategy.key()
    }

    /// What it can write.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.strategy.capabilities()
    }

    /// Whether it stores objects itself.
    pub(crate) fn has_objects(&self) -> bool {
        self.strategy.can_handle_sharded_objects()
    }

    /// The number of files of each rank, if its settings have one.
    pub(crate) fn files_per_rank(&self) -> u32 {
        let files = self.settings.get("files_per_rank").and_then(Json::as_u64);
        u32::try_from(files.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
    }

    /// What of the destination's URL its checkpoints are.
    pub(crate) fn place(&self, dst: &str) -> PlaceKind {
        self.capabilities().place(last_part(dst))
    }
}

fn config_of(settings: &Json) -> serde_json::Result<Box<dyn SaveShardedConfig>> {
    serde_json::from_value(settings.clone())
}

fn last_part(url: &str) -> &str {
    url.trim_end_matches('/').rsplit('/').next().unwrap_or(url)
}

/// The format that can both save and load, whose checkpoints are single files, and that would recognise a file of this name.
fn by_name(registry: &Registry, name: &str) -> Result<Option<BackendVersion>, StrategyError> {
    let Ok(file) = Name::new(name) else {
        return Ok(None);
    };
    let file = Entry {
        name: file,
        bytes: 0,
    };
    for config in registry.all_load_sharded() {
        let format = config.build()?;
        if format.lives_in(PlaceKind::File)
            && format.detect_file(&file) != Detection::No
            && registry.save_sharded(&format.key()).is_ok()
        {
            return Ok(Some(format.key()));
        }
    }
    Ok(None)
}
