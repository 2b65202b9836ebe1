//! The format to write: which one, with which settings, and what it can hold.

use crate::{Convert, ConvertError, Result};
use reshard::{
    BackendVersion, Registry,
    plan::AnnotationKind,
    storage::{Entry, Name, PlaceKind},
    strategy::{Action, Capabilities, Detection, SaveShardedStrategy, StrategyError},
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
    /// This one, with its settings.
    Strategy(SaveShardedStrategy),
}

/// A format to write.
#[derive(Debug)]
pub(crate) struct Target {
    /// The strategy of every rank.
    pub(crate) strategy: SaveShardedStrategy,
    /// What of the destination's URL the checkpoint is.
    pub(crate) place: PlaceKind,
    /// Whether a policy decides on files.
    by_policy: bool,
}

impl Target {
    /// The wanted format, with some settings changed. If objects are to be kept, and have no place otherwise, they are kept beside the
    /// tensors.
    pub(crate) fn of(setup: &Convert<'_>, registry: &Registry) -> Result<Self> {
        let dst = &*setup.dst;
        let by_name = by_name(registry, last_part(dst)).map_err(ConvertError::Target)?;
        let named = |name: &BackendVersion| registry.save_sharded(name);
        let strategy = match (&setup.format, &by_name) {
            (Wanted::Strategy(strategy), _) => Ok(strategy.clone()),
            (Wanted::Named(name), _) | (Wanted::ByName, Some(name)) => named(name),
            (Wanted::ByName, None) => named(&registry.default_of(Action::SaveSharded)),
        };
        let mut target = Self {
            strategy: strategy.map_err(ConvertError::Target)?,
            place: PlaceKind::Folder,
            by_policy: setup.policy.is_some() || setup.max_shard_size.is_some(),
        };
        for (name, value) in &setup.settings {
            target.change(name, value.clone(), registry)?;
        }
        target.find_place(dst);
        if setup.keep_objects && !target.has_objects() {
            target.change(KEEP_OBJECTS, true.into(), registry)?;
            target.find_place(dst);
        }
        let checked = target.strategy.format.check();
        checked.map_err(ConvertError::Target)?;
        // Who gives the name of a file wants a file.
        if by_name.is_some() && target.place != PlaceKind::File {
            return Err(ConvertError::NoSingleFile {
                format: target.key(),
                dst: dst.into(),
            });
        }
        Ok(target)
    }

    fn find_place(&mut self, dst: &str) {
        self.place = self.capabilities().place(last_part(dst));
    }

    /// Changes one of the settings of the format.
    fn change(&mut self, name: &str, value: Json, registry: &Registry) -> Result<()> {
        let refused = |what| ConvertError::Setting {
            format: self.key(),
            setting: name.into(),
            what,
        };
        let make = |settings| {
            let format = registry.save_format(&self.key(), settings);
            format.map_err(|e| refused(e.to_string()))
        };
        let was = &self.strategy.format;
        let Json::Object(mut settings) = was.settings() else {
            return Err(refused("it has no settings by name".into()));
        };
        // What the settings don't say would be lost, and a program may have a format of its own under this name.
        let again = make(settings.clone().into())?;
        if format!("{again:?}") != format!("{was:?}") {
            let what = "the JSON of its settings doesn't make the same format again; set it in the strategy";
            return Err(refused(what.into()));
        }
        settings.insert(name.into(), value);
        self.strategy.format = make(settings.into())?;
        Ok(())
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
        let settings = self.strategy.format.settings();
        let files = settings.get("files_per_rank").and_then(Json::as_u64);
        u32::try_from(files.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
    }
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
    for format in registry.all_load_sharded() {
        let format = format?;
        if format.info().lives_in(PlaceKind::File)
            && format.info().detect_file(&file) != Detection::No
            && registry.save_sharded(&format.key()).is_ok()
        {
            return Ok(Some(format.key()));
        }
    }
    Ok(None)
}
