//! Strategies by name. The registry is a checked value. It is filled at link time and by hand.

use crate::{
    LoadCommonStrategy, LoadFormat, LoadShardedStrategy, Result, SaveCommonStrategy, SaveFormat,
    SaveShardedStrategy, StrategyError, config::no_settings,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

/// The name of a strategy, such as `torch_dist` version 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackendVersion {
    /// Such as `torch_dist` or `zarr`.
    pub backend: Box<str>,
    /// Counted from 1.
    pub version: u32,
}

impl BackendVersion {
    /// A name.
    pub fn new(backend: &str, version: u32) -> Self {
        Self {
            backend: backend.into(),
            version,
        }
    }
}

/// `torch_dist/1`.
impl fmt::Display for BackendVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.backend, self.version)
    }
}

/// Parses `torch_dist/1`, or `torch_dist`, which means version 1.
impl FromStr for BackendVersion {
    type Err = StrategyError;
    fn from_str(text: &str) -> Result<Self> {
        let (backend, version) = text.split_once('/').unwrap_or((text, "1"));
        match version.parse() {
            Ok(version) if !backend.is_empty() => Ok(Self::new(backend, version)),
            _ => Err(StrategyError::Invalid(format!(
                "{text:?} is not the name of a strategy; write it as torch_dist or torch_dist/1"
            ))),
        }
    }
}

/// What a strategy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Saves sharded leaves.
    SaveSharded,
    /// Loads sharded leaves.
    LoadSharded,
    /// Saves common state.
    SaveCommon,
    /// Loads common state.
    LoadCommon,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 4] = [
        Self::SaveSharded,
        Self::LoadSharded,
        Self::SaveCommon,
        Self::LoadCommon,
    ];
}

/// Megatron Core's name of the action, such as `save_sharded`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SaveSharded => "save_sharded",
            Self::LoadSharded => "load_sharded",
            Self::SaveCommon => "save_common",
            Self::LoadCommon => "load_common",
        })
    }
}

/// Parses Megatron Core's name, such as `save_sharded`.
impl FromStr for Action {
    type Err = StrategyError;
    fn from_str(text: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|a| a.to_string() == text);
        named.ok_or_else(|| {
            let all = Self::ALL.map(|a| a.to_string()).join(", ");
            StrategyError::Invalid(format!("{text:?} is not an action; the actions are {all}"))
        })
    }
}

/// The key under which a strategy is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StrategyKey {
    /// What it does.
    pub action: Action,
    /// Its name.
    pub name: BackendVersion,
}

impl fmt::Display for StrategyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.action, self.name)
    }
}

/// How a strategy is made. The variant says what it does.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Make {
    /// Makes a format of settings for saves, such as [`save_format::<MyConfig>`](crate::save_format).
    SaveSharded(fn(Json) -> Result<Arc<dyn SaveFormat>>),
    /// Makes a format of settings for loads, such as [`load_format::<MyLoadConfig>`](crate::load_format).
    LoadSharded(fn(Json) -> Result<Arc<dyn LoadFormat>>),
    /// A strategy that saves common state.
    SaveCommon(fn() -> Arc<dyn SaveCommonStrategy>),
    /// A strategy that loads common state.
    LoadCommon(fn() -> Arc<dyn LoadCommonStrategy>),
}

/// One strategy of one crate. Register it with `inventory::submit!`. Then every program that links and names the crate finds it:
/// `use reshard_torch_dist as _;`.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Name, such as `torch_dist`.
    pub backend: &'static str,
    /// Version, counted from 1.
    pub version: u32,
    /// The crate: `env!("CARGO_PKG_NAME")`.
    pub origin: &'static str,
    /// The crate's version: `env!("CARGO_PKG_VERSION")`.
    pub origin_version: &'static str,
    /// How it is made.
    pub make: Make,
}

inventory::collect!(Registration);

impl Registration {
    /// The key under which it is found.
    pub fn key(&self) -> StrategyKey {
        let action = match self.make {
            Make::SaveSharded(_) => Action::SaveSharded,
            Make::LoadSharded(_) => Action::LoadSharded,
            Make::SaveCommon(_) => Action::SaveCommon,
            Make::LoadCommon(_) => Action::LoadCommon,
        };
        StrategyKey {
            action,
            name: BackendVersion::new(self.backend, self.version),
        }
    }
}

/// All strategies that a program knows, and the default of each action. If two crates register one key, that is an error.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    by_key: BTreeMap<StrategyKey, Registration>,
    /// Defaults that replace those of reshard.
    defaults: BTreeMap<Action, BackendVersion>,
}

/// Registers a format for saves and loads, with its settings for both.
///
/// ```text
/// reshard_strategy::register_format!("my_format", 1, save: MyConfig, load: MyLoadConfig);
/// ```
#[macro_export]
macro_rules! register_format {
    ($backend:expr, $version:expr, save: $save:ty, load: $load:ty) => {
        $crate::register_format!(
            $backend,
            $version,
            SaveSharded($crate::save_format::<$save>)
        );
        $crate::register_format!(
            $backend,
            $version,
            LoadSharded($crate::load_format::<$load>)
        );
    };
    ($backend:expr, $version:expr, $action:ident($make:expr)) => {
        $crate::inventory::submit! {
            $crate::Registration {
                backend: $backend,
                version: $version,
                origin: env!("CARGO_PKG_NAME"),
                origin_version: env!("CARGO_PKG_VERSION"),
                make: $crate::Make::$action($make),
            }
        }
    };
}

impl Registry {
    /// The strategies of all linked crates.
    ///
    /// # Errors
    /// [`StrategyError::Duplicate`].
    pub fn linked() -> Result<Self> {
        let mut out = Self::default();
        // Link order is arbitrary; sorting makes the error of a duplicate the same each time.
        let mut all: Vec<&Registration> = inventory::iter::<Registration>.into_iter().collect();
        all.sort_by_key(|r| (r.origin, r.key()));
        for r in all {
            out.register(*r)?;
        }
        Ok(out)
    }

    /// Adds a strategy by hand, for tests and for platforms on which link-time registration does not work.
    ///
    /// # Errors
    /// [`StrategyError::Duplicate`].
    pub fn register(&mut self, r: Registration) -> Result<()> {
        if let Some(old) = self.by_key.get(&r.key()) {
            return Err(StrategyError::Duplicate {
                key: r.key(),
                a: old.origin,
                b: r.origin,
            });
        }
        self.by_key.insert(r.key(), r);
        Ok(())
    }

    /// All strategies, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.by_key.values()
    }

    fn find(&self, action: Action, name: &BackendVersion) -> Result<&Registration> {
        let key = StrategyKey {
            action,
            name: name.clone(),
        };
        self.by_key.get(&key).ok_or_else(|| {
            let linked = self
                .by_key
                .keys()
                .filter(|k| k.action == action)
                .map(|k| k.name.to_string())
                .collect();
            let newest = self.of_backend(action, name).next();
            let update = newest
                .filter(|r| r.version < name.version)
                .map(|r| format!("{} {}", r.origin, r.origin_version));
            StrategyError::Unknown {
                key,
                linked,
                update,
            }
        })
    }

    /// All versions of a backend, the newest first.
    fn of_backend<'r>(
        &'r self,
        action: Action,
        name: &'r BackendVersion,
    ) -> impl Iterator<Item = &'r Registration> {
        let of = move |key: &StrategyKey| key.action == action && key.name.backend == name.backend;
        let all = self.by_key.iter().rev();
        all.filter(move |(key, _)| of(key)).map(|(_, r)| r)
    }

    /// The strategy of that name, or another version of its backend that `accepts` it: the newest of these.
    fn find_or<T>(
        &self,
        action: Action,
        name: &BackendVersion,
        accepts: impl Fn(&Registration) -> Option<T>,
    ) -> Result<T> {
        let exact = self.find(action, name);
        let others = || self.of_backend(action, name).find_map(&accepts);
        match exact {
            Ok(registration) => accepts(registration).or_else(others).ok_or_else(mixed_up),
            Err(e) => others().ok_or(e),
        }
    }

    /// The strategy of an action that is used unless another one is chosen: `torch_dist/1` for sharded leaves, `torch/1` for common state.
    pub fn default_of(&self, action: Action) -> BackendVersion {
        self.defaults.get(&action).cloned().unwrap_or_else(|| {
            let backend = match action {
                Action::SaveSharded | Action::LoadSharded => "torch_dist",
                Action::SaveCommon | Action::LoadCommon => "torch",
            };
            BackendVersion::new(backend, 1)
        })
    }

    /// Replaces the default of an action: Megatron Core's `register_default_strategy`. Where requests are dear, a load takes a place that
    /// has the first of the default format's [probes](crate::FormatInfo::probes) for a checkpoint of it, and asks for no other format.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`], which lists what is linked.
    pub fn with_default(mut self, action: Action, name: BackendVersion) -> Result<Self> {
        self.find(action, &name)?;
        self.defaults.insert(action, name);
        Ok(self)
    }

    /// The newest version of a backend for an action, or the version that `name` contains.
    fn named(&self, action: Action, name: &str) -> Result<BackendVersion> {
        let name_of: BackendVersion = name.parse()?;
        let newest = self.of_backend(action, &name_of).next();
        Ok(match newest {
            Some(newest) if !name.contains('/') => newest.key().name,
            _ => name_of,
        })
    }

    /// The format that saves under a name, such as `zarr3` (its newest version) or `zarr3/1`.
    ///
    /// # Errors
    /// Text that is no name.
    pub fn named_save(&self, name: &str) -> Result<BackendVersion> {
        self.named(Action::SaveSharded, name)
    }

    /// As [`named_save`](Self::named_save), for loads.
    ///
    /// # Errors
    /// The same.
    pub fn named_load(&self, name: &str) -> Result<BackendVersion> {
        self.named(Action::LoadSharded, name)
    }

    /// A format that saves, with these settings.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`], which lists what is linked; settings that can't be read, or contradict each other.
    pub fn save_format(
        &self,
        name: &BackendVersion,
        settings: Json,
    ) -> Result<Arc<dyn SaveFormat>> {
        match self.find(Action::SaveSharded, name)?.make {
            Make::SaveSharded(make) => make(settings),
            _ => Err(mixed_up()),
        }
    }

    /// A format that loads, with these settings.
    ///
    /// # Errors
    /// As [`save_format`](Self::save_format).
    pub fn load_format(
        &self,
        name: &BackendVersion,
        settings: Json,
    ) -> Result<Arc<dyn LoadFormat>> {
        match self.find(Action::LoadSharded, name)?.make {
            Make::LoadSharded(make) => make(settings),
            _ => Err(mixed_up()),
        }
    }

    /// A strategy that saves sharded leaves, with default settings.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`], which lists what is linked.
    pub fn save_sharded(&self, name: &BackendVersion) -> Result<SaveShardedStrategy> {
        let format = self.save_format(name, no_settings())?;
        Ok(SaveShardedStrategy {
            format,
            layers: Vec::new(),
            common: None,
        })
    }

    /// A strategy that loads sharded leaves, with default settings: the one of that name, or of another version of its backend that
    /// [can load](LoadShardedStrategy::check_compatibility) this one, too.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`], which lists what is linked, and names the crate to update if the version is newer than all of them.
    pub fn load_sharded(&self, name: &BackendVersion) -> Result<LoadShardedStrategy> {
        self.find_or(Action::LoadSharded, name, |registration| {
            let strategy = default_load(registration)?.ok()?;
            let serves =
                registration.key().name == *name || strategy.check_compatibility(name).is_ok();
            serves.then_some(strategy)
        })
    }

    /// All strategies that load sharded leaves, with default settings, in the order of their names.
    pub fn all_load_sharded(&self) -> impl Iterator<Item = Result<LoadShardedStrategy>> {
        self.iter().filter_map(default_load)
    }

    /// A strategy that saves common state.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`], which lists what is linked.
    pub fn save_common(&self, name: &BackendVersion) -> Result<Arc<dyn SaveCommonStrategy>> {
        match self.find(Action::SaveCommon, name)?.make {
            Make::SaveCommon(f) => Ok(f()),
            _ => Err(mixed_up()),
        }
    }

    /// A strategy that loads common state, as [`load_sharded`](Self::load_sharded) finds one.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`], which lists what is linked, and names the crate to update if the version is newer than all of them.
    pub fn load_common(&self, name: &BackendVersion) -> Result<Arc<dyn LoadCommonStrategy>> {
        self.find_or(Action::LoadCommon, name, |registration| {
            let Make::LoadCommon(f) = registration.make else {
                return None;
            };
            let strategy = f();
            let serves =
                registration.key().name == *name || strategy.check_compatibility(name).is_ok();
            serves.then_some(strategy)
        })
    }
}

/// The load strategy of a registration with default settings. `None` if it is registered for another action.
fn default_load(registration: &Registration) -> Option<Result<LoadShardedStrategy>> {
    let Make::LoadSharded(make) = registration.make else {
        return None;
    };
    Some(make(no_settings()).map(|format| LoadShardedStrategy {
        format,
        layers: Vec::new(),
        common: None,
    }))
}

fn mixed_up() -> StrategyError {
    StrategyError::Internal(
        "a strategy is registered for another action than it is made for".into(),
    )
}
