//! The settings of a saver, and what is done with them.

use crate::{Error, Prune, RemoveCheckpoint, Result, Step, StepPattern, Steps, keep::Keep};
use reshard::{
    OpenOptions, Registry, Save, Stores,
    storage::{Removal, StorageError, Store, StoreExt as _, without_secrets},
    strategy::AgreedOptions,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The keys of the notes that a saver writes.
const OWNER: &str = "saver";
const STEP: &str = "step";

/// What is checked before older checkpoints are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// That the new checkpoint is complete: all that a save writes last is there.
    #[default]
    No,
    /// That it opens, and its structure, coverage and sizes: [`Checkpoint::verify`](reshard::Checkpoint::verify) without checksums.
    Quick,
    /// Also every checksum. The coordinator reads the whole checkpoint for that, and the other ranks wait.
    Full,
}

/// The settings of a saver. Those with a text of their own are also methods of it.
#[derive(Clone, Debug, derive_setters::Setters)]
#[setters(generate_delegates(ty = "crate::Saver", field = "settings"))]
pub(crate) struct Settings {
    #[setters(skip)]
    pub(crate) dir: String,
    /// How the folders are called. The default is `step-{n}`.
    pub(crate) pattern: StepPattern,
    /// After how many steps a save is [due](crate::Saver::is_due): 1 or more.
    pub(crate) every: u64,
    #[setters(skip)]
    pub(crate) keep: Keep,
    /// What is verified of a new checkpoint before older ones are removed. If it is damaged, the save is an error ([`Error::Damaged`]), and all stay.
    pub(crate) verify: Verify,
    /// How long what a killed save has left beside the checkpoints must not have changed before the next save removes it. The default is a day, as that of
    /// [`prune`](crate::prune()): only its age tells whether a save is still writing it. With [`Duration::ZERO`] it goes at the next save, so make sure that no other
    /// save to the directory is running.
    pub(crate) unfinished_after: Duration,
    /// Whose checkpoints these are. The name is noted in each of them, and only those with this name are removed. The default is `reshard-manager`. A run
    /// that resumes needs the same name as before.
    #[setters(into)]
    pub(crate) owner: String,
    /// The registry of strategies; by default the linked strategies.
    #[setters(strip_option)]
    pub(crate) registry: Option<Registry>,
    /// The stores in which to look up the directory and the folders in it; by default the linked stores.
    #[setters(strip_option)]
    pub(crate) stores: Option<Stores>,
}

/// Something of the facade that looks up strategies and stores where the saver does. Its options have these names, and no trait.
macro_rules! where_it_looks {
    ($settings:expr, $with:expr) => {{
        let mut with = $with;
        if let Some(registry) = &$settings.registry {
            with = with.registry(registry.clone());
        }
        match &$settings.stores {
            Some(stores) => with.stores(stores.clone()),
            None => with,
        }
    }};
}

impl Settings {
    /// Whether all of them have a meaning.
    pub(crate) fn check(&self) -> Result<()> {
        let zero = [
            ("every", Some(self.every)),
            ("keep", self.keep.newest),
            ("keep_every", self.keep.every),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, value)| *value == Some(0)) {
            return Err(Error::Invalid(format!(
                "`{name}` is 0; it must be 1 or more"
            )));
        }
        if self.keep.every.is_some() && self.keep.newest.is_none() {
            let what = "`keep_every` has no effect without `keep`, because all checkpoints stay; set `keep`, or leave `keep_every` out";
            return Err(Error::Invalid(what.into()));
        }
        Ok(())
    }

    /// The settings that all ranks must pass alike, and the step if there is one. A new field doesn't compile before it is considered here.
    pub(crate) fn agreed_options(&self, step: Option<u64>) -> AgreedOptions {
        let Self {
            dir,
            pattern,
            every,
            keep,
            verify,
            unfinished_after,
            owner,
            // The place that they open is compared.
            registry: _,
            stores: _,
        } = self;
        // A directory that can't be opened is reported by the rank that has to open it.
        let place = self.open_store(dir.trim_end_matches('/'));
        let place = place.map_or_else(|_| without_secrets(dir).into_owned(), |dir| dir.url());
        let step = step.map_or_else(|| "none".to_owned(), |step| step.to_string());
        AgreedOptions::new()
            .with("directory", place)
            .with("pattern", pattern)
            .with("every", every)
            .with("keep", format_args!("{:?}", keep.newest))
            .with("keep_every", format_args!("{:?}", keep.every))
            .with("verify", format_args!("{verify:?}"))
            .with("unfinished_after", format_args!("{unfinished_after:?}"))
            .with("owner", owner)
            .with("step", step)
    }

    /// How checkpoints are removed where they lie.
    pub(crate) fn removal(&self) -> Result<Removal> {
        let store = self.open_store(&self.url(0));
        let store = store.map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(store.removal())
    }

    fn open_store(&self, url: &str) -> Result<Arc<dyn Store>, StorageError> {
        match &self.stores {
            Some(stores) => stores.open(url),
            None => Stores::linked()?.open(url),
        }
    }

    /// Whether checkpoints can be removed where they lie. Otherwise they would pile up, with a warning after each save.
    pub(crate) fn check_removal(&self) -> Result<()> {
        if self.keep.newest.is_none() || self.removal()? != Removal::No {
            return Ok(());
        }
        let dir = &self.dir;
        Err(Error::Invalid(format!(
            "checkpoints in {dir} can't be removed in one step, so a crash could leave a part of one; leave `keep` out, and remove old ones yourself"
        )))
    }

    /// Where the checkpoint of a step lies.
    pub(crate) fn url(&self, step: u64) -> String {
        let dir = self.dir.trim_end_matches('/');
        format!("{dir}/{}", self.pattern.name(step))
    }

    /// A save that is noted as this saver's.
    pub(crate) fn noted<'a>(&self, step: u64, save: Save<'a>) -> Save<'a> {
        let save = save.note(OWNER, &*self.owner).note(STEP, step.to_string());
        where_it_looks!(self, save)
    }

    /// Whether a checkpoint is noted as this saver's, under the name that it has. A copy under another name is not.
    pub(crate) async fn own(&self, step: &Step, removal: Removal) -> bool {
        let own = |notes: &BTreeMap<String, String>| {
            notes.get(OWNER) == Some(&self.owner)
                && notes.get(STEP) == Some(&step.number.to_string())
        };
        // In an object store the notes lie with the data, and the metadata say where that is.
        if removal != Removal::Record || !step.notes.is_empty() {
            return own(&step.notes);
        }
        let Ok(checkpoint) = self.open().open(step).await else {
            return false;
        };
        let (sidecar, _) = checkpoint.sidecar().await;
        sidecar.is_some_and(|sidecar| own(&sidecar.notes))
    }

    pub(crate) fn steps(&self) -> Steps {
        let steps = crate::steps(&self.dir).pattern(self.pattern.clone());
        where_it_looks!(self, steps)
    }

    pub(crate) fn open(&self) -> OpenOptions {
        where_it_looks!(self, OpenOptions::new())
    }

    /// Removes what killed saves of a step have left, and nothing that is too young.
    pub(crate) fn prune(&self, step: u64) -> Prune {
        let prune = crate::prune(self.url(step)).older_than(self.unfinished_after);
        where_it_looks!(self, prune)
    }

    /// Removes the checkpoint of a step, if it is noted as this saver's.
    pub(crate) fn remove(&self, step: u64) -> RemoveCheckpoint {
        let removal = crate::remove_checkpoint(self.url(step))
            .noted(OWNER, &*self.owner)
            .noted(STEP, step.to_string());
        where_it_looks!(self, removal)
    }
}
