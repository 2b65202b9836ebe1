//! The format to write: which one, with which settings, and what it can hold.

use crate::{ConvertError, Result};
use reshard::{
    BackendVersion, Registry,
    plan::AnnotationKind,
    storage::{Entry, Name, PlaceKind},
    strategy::{Capabilities, Detection, SaveShardedConfig, SaveShardedStrategy, StrategyError},
};
use serde_json::Value as Json;

/// The setting by which a format of tensors keeps objects beside them.
const KEEP_OBJECTS: &str = "keep_objects";

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
    strategy: SaveShardedStrategy,
    place: PlaceKind,
    /// Whether a policy decides on files.
    by_policy: bool,
}

impl Target {
    /// The wanted format, with some settings changed. If objects are to be kept, and have no place otherwise, they are kept beside the
    /// tensors.
    pub(crate) fn of(
        wanted: &Wanted,
        (changes, keep_objects): (&[(String, Json)], bool),
        (dst, by_policy): (&str, bool),
        registry: &Registry,
    ) -> Result<Self> {
        let found;
        let by_name = by_name(registry, last_part(dst)).map_err(ConvertError::Target)?;
        let config = match wanted {
            Wanted::Config(config) => config,
            Wanted::Named(name) => {
                found = registry.save_sharded(name).map_err(ConvertError::Target)?;
                &found
            }
            Wanted::ByName => {
                let default = || BackendVersion::new("torch_dist", 1);
                let name = by_name.clone().unwrap_or_else(default);
                found = registry.save_sharded(&name).map_err(ConvertError::Target)?;
                &found
            }
        };
        let mut settings = serde_json::to_value(config)
            .map_err(|e| ConvertError::Target(StrategyError::Internal(e.to_string())))?;
        for (name, value) in changes {
            change(&mut settings, name, value.clone(), &**config)?;
        }
        let mut target = Self::with(settings.clone(), dst, by_policy)?;
        if keep_objects && !target.has_objects() {
            change(&mut settings, KEEP_OBJECTS, true.into(), &**config)?;
            target = Self::with(settings, dst, by_policy)?;
        }
        // Who gives the name of a file wants a file.
        if by_name.is_some() && target.place != PlaceKind::File {
            return Err(ConvertError::NoSingleFile {
                format: target.key(),
                dst: dst.into(),
            });
        }
        Ok(target)
    }

    fn with(settings: Json, dst: &str, by_policy: bool) -> Result<Self> {
        let strategy = config_of(&settings)
            .map_err(|e| ConvertError::Target(StrategyError::Invalid(e.to_string())))?
            .build()
            .map_err(ConvertError::Target)?;
        Ok(Self {
            settings,
            place: strategy.capabilities().place(last_part(dst)),
            strategy,
            by_policy,
        })
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
        let has_place = self.capabilities().has_objects(self.place, self.by_policy);
        has_place && self.strategy.can_handle_sharded_objects()
    }

    /// Whether it has a place for annotations of a kind.
    pub(crate) fn annotates(&self, kind: AnnotationKind) -> bool {
        self.capabilities()
            .annotates(kind, self.place, self.by_policy)
    }

    /// Whether it has a place for `requires_grad`. A folder notes it beside its tensors; a file has it if it knows the tensors of Python.
    pub(crate) fn keeps_gradients(&self) -> bool {
        self.place != PlaceKind::File || self.annotates(AnnotationKind::TensorClass)
    }

    /// Whether one rank that has several tensors with the same elements stores these once.
    pub(crate) fn has_ties(&self) -> bool {
        self.capabilities().ties && !self.by_policy
    }

    /// The number of files of each rank, if its settings have one.
    pub(crate) fn files_per_rank(&self) -> u32 {
        let files = self.settings.get("files_per_rank").and_then(Json::as_u64);
        u32::try_from(files.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
    }

    /// What of the destination's URL the checkpoint is.
    pub(crate) fn place(&self) -> PlaceKind {
        self.place
    }
}

/// Changes one of the settings of a format.
fn change(settings: &mut Json, name: &str, value: Json, of: &dyn SaveShardedConfig) -> Result<()> {
    if let Json::Object(all) = settings {
        all.insert(name.into(), value);
    }
    match config_of(settings) {
        Ok(_) => Ok(()),
        Err(e) => Err(ConvertError::Setting {
            format: of.build().map_err(ConvertError::Target)?.key(),
            setting: name.into(),
            what: e.to_string(),
        }),
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
        if format.info().lives_in(PlaceKind::File)
            && format.info().detect_file(&file) != Detection::No
            && registry.save_sharded(&format.key()).is_ok()
        {
            return Ok(Some(format.key()));
        }
    }
    Ok(None)
}
