//! The checkpoints of a run: folders that are called after their steps, in one directory.

use crate::StepPattern;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reshard_model::ErrorKind;
use reshard_open::{
    Checkpoint, Context, Error, OpenOptions, Result, explained, place_text, sidecar::Sidecar,
};
use reshard_storage::{Removal, StorageError, Store, StoreExt, Stores, left_place, removed_place};
use reshard_strategy::{BackendVersion, ReadLimits, Registry, StrategyError};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, IntoFuture},
    path::Path,
    pin::Pin,
    sync::Arc,
};

const ACT: &str = "looking for steps in";

/// So many folders are looked at together.
const TOGETHER: usize = 8;

/// Lists the complete checkpoints in a directory whose folders are called after their steps, by default `step-{n}`, in the order of
/// their numbers. Await the result, or set options on it first.
///
/// A checkpoint is complete if what its format or Megatron Core writes last is there. So what a running or killed save has written is left
/// out, and so are folders whose metadata are damaged. Nothing is verified: [`latest`](Steps::latest) also opens the checkpoint, and
/// [`Checkpoint::verify`] looks for damage. Links to folders are not followed.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let run = dir.path();
/// let mut state = reshard::StateDict::new();
/// for step in [100, 200] {
///     state.insert("step", step);
///     reshard::blocking::save(&state, run.join(format!("step-{step}")))?;
/// }
/// std::fs::create_dir(run.join("step-300"))?; // empty: not a checkpoint
/// let steps = reshard_manager::blocking::steps(run)?;
/// assert_eq!(steps.iter().map(|step| step.number).collect::<Vec<_>>(), [100, 200]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Nothing lies there ([`reshard_model::ErrorKind::NotFound`]), it can't be listed, or a folder of a step can't be looked at.
pub fn steps(dir: impl AsRef<Path>) -> Steps {
    Steps {
        url: place_text(dir),
        pattern: StepPattern::default(),
        open: OpenOptions::default(),
    }
}

/// The newest checkpoint in a directory that opens: [`steps`] with its defaults, and then [`Steps::latest`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let run = dir.path();
/// # let mut template = reshard::StateDict::new();
/// # template.insert("step", 100);
/// # reshard::blocking::save(&template, run.join("step-100"))?;
/// if let Some(step) = reshard_manager::blocking::latest(run)? {
///     let state = reshard::blocking::load(template, &step)?;
///     println!("going on after step {}: {state:?}", step.number);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Steps::latest`].
pub async fn latest(dir: impl AsRef<Path>) -> Result<Option<Step>> {
    steps(dir).latest().await
}

/// A search for the checkpoints of a run; made by [`steps`].
#[derive(Debug)]
#[must_use = "nothing is looked for until this is awaited"]
pub struct Steps {
    url: String,
    pattern: StepPattern,
    open: OpenOptions,
}

/// A checkpoint of a run. Functions that take the place of a checkpoint take it: `reshard::load(template, &step)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// Its number.
    pub number: u64,
    /// The name of its folder.
    pub name: String,
    /// Its path or URL: the directory that was given, and the name.
    pub url: String,
    /// Its format.
    pub format: BackendVersion,
    /// What [`Save::note`](reshard::Save::note) noted of it, if `reshard.json` lies directly in its folder, as in local directories. Whether that file belongs to this version
    /// is not checked: [`Checkpoint::sidecar`] does it.
    pub notes: BTreeMap<String, String>,
}

impl AsRef<Path> for Step {
    fn as_ref(&self) -> &Path {
        Path::new(&self.url)
    }
}

impl Steps {
    reshard_open::open_options!(open);

    /// How the folders are called.
    pub fn pattern(mut self, pattern: StepPattern) -> Self {
        self.pattern = pattern;
        self
    }

    /// The complete checkpoint with the highest number that opens. `None` if there is none. A folder that does not open because it is damaged is
    /// passed over with a warning of `tracing`, and the one before it is tried.
    ///
    /// # Errors
    /// As [`steps`]. A checkpoint can't be opened for a reason that is not in its bytes: its format is not linked, a limit, no permission. Then
    /// no older one is returned in its place.
    pub async fn latest(self) -> Result<Option<Step>> {
        let mut numbers = self.found().await?;
        while let Some(number) = numbers.pop() {
            let Some(step) = self.one(number).await? else {
                continue;
            };
            match self.open.clone().open(&step).await {
                Ok(_) => return Ok(Some(step)),
                Err(e) if is_of_its_bytes(e.kind()) => {
                    tracing::warn!(checkpoint = %step.url, error = %e, "passed over: it does not open");
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// The numbers of all folders that have such a name, in their order, also of those that hold no complete checkpoint.
    ///
    /// # Errors
    /// The directory can't be listed, or there is none.
    pub async fn folders(self) -> Result<Vec<u64>> {
        self.found().await
    }

    /// The numbers of checkpoints whose [removal](crate::remove_checkpoint) was begun and not finished, in their order. They are not among the
    /// [`steps`]. Where nothing can be renamed, such as in an object store, these are all folders of steps without a complete checkpoint: a save may be writing one
    /// of them.
    ///
    /// # Errors
    /// The directory can't be listed. One that does not exist has none.
    pub async fn unfinished_removals(self) -> Result<Vec<u64>> {
        self.left(removed_place).await
    }

    /// The numbers of steps of which a killed save or [removal](crate::remove_checkpoint) may have left something beside the folder of its checkpoint, in their
    /// order. [`prune`](crate::prune) of the step removes it, if it is old enough. What a running save writes counts, too, and so does a folder that a save
    /// has replaced. Where nothing can be renamed, such as in an object store, these are all folders of steps without a complete checkpoint.
    ///
    /// # Errors
    /// The directory can't be listed. One that does not exist has none.
    pub async fn unfinished_saves(self) -> Result<Vec<u64>> {
        self.left(left_place).await
    }

    /// The numbers of places to which folders belong that `place_of` knows.
    async fn left(self, place_of: fn(&str) -> Option<&str>) -> Result<Vec<u64>> {
        let listed = match self.open.store_at(&self.url) {
            Ok(store) => store.top().await.map_err(StrategyError::from),
            Err(e) => Err(e),
        };
        let listed = listed.during(ACT, &self.url)?;
        let removal = self.open.store_at(&self.url).map(|store| store.removal());
        if removal.during(ACT, &self.url)? == Removal::Record {
            let numbers = self.numbers().await.during(ACT, &self.url)?;
            let mut left: BTreeSet<u64> = numbers.into_iter().collect();
            for step in self.run().await? {
                left.remove(&step.number);
            }
            return Ok(left.into_iter().collect());
        }
        let places = listed
            .folders
            .iter()
            .filter_map(|name| place_of(name.as_str()));
        let numbers: BTreeSet<u64> = places
            .filter_map(|name| self.pattern.number(name))
            .collect();
        Ok(numbers.into_iter().collect())
    }

    /// The URL of a step.
    fn of(&self, name: &str) -> String {
        let dir = self.url.trim_end_matches('/');
        format!("{dir}/{name}")
    }

    /// The same, with an error that says what lies there instead.
    async fn found(&self) -> Result<Vec<u64>> {
        match self.numbers().await.during(ACT, &self.url) {
            Err(e) => Err(explained(&self.open, &self.url, e).await),
            found => found,
        }
    }

    /// The numbers of all folders that have such a name, complete or not, in their order.
    async fn numbers(&self) -> Result<Vec<u64>, StrategyError> {
        let store = self.open.store_at(&self.url)?;
        let listed = store.top().await?;
        // A store that can pin has nothing to pin. Others have no empty places.
        if listed.is_empty() && store.pinned().await?.is_none() {
            let path = store.url();
            return Err(StorageError::NotFound { path }.into());
        }
        let folders = listed.folders.iter();
        let numbers = folders.filter_map(|name| self.pattern.number(name.as_str()));
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        if let Some(first) = numbers.first() {
            let inside = self.open.store_at(&self.of(&self.pattern.name(*first)))?;
            if inside.url() == store.url() {
                let what = format!(
                    "every URL means {} here, because one store was given; give `Stores` that open the folders in it, too",
                    store.url()
                );
                return Err(StrategyError::Invalid(what));
            }
        }
        Ok(numbers)
    }

    /// What lies in the folder of a number. `None` if it is no complete checkpoint.
    async fn one(&self, number: u64) -> Result<Option<Step>> {
        let name = self.pattern.name(number);
        let url = self.of(&name);
        let found = async {
            let store = self.open.store_at(&url)?;
            let store: Arc<dyn Store> = store.pinned().await?.unwrap_or(store);
            let format = self.open.format_of(&store).await?;
            let sidecar = Sidecar::any(&store).await;
            let notes = sidecar.map_or_else(BTreeMap::new, |sidecar| sidecar.notes);
            Ok((format, notes))
        };
        match found.await {
            Ok((format, notes)) => Ok(Some(Step {
                number,
                name,
                url,
                format,
                notes,
            })),
            Err(e) => {
                let e: StrategyError = e;
                if !is_of_its_bytes(e.kind()) {
                    return Err(Error::new(ACT, &url, e));
                }
                tracing::debug!(checkpoint = %url, error = %e, "left out: it is not complete");
                Ok(None)
            }
        }
    }

    async fn run(self) -> Result<Vec<Step>> {
        let numbers = self.found().await?;
        let me = &self;
        let found = stream::iter(numbers).map(|number| async move { me.one(number).await });
        let found: Vec<Option<Step>> = found.buffered(TOGETHER).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// Whether an error says what lies there, and not why that could not be found out.
fn is_of_its_bytes(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound)
}

impl IntoFuture for Steps {
    type Output = Result<Vec<Step>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Step {
    /// Opens it with default options.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub async fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(self).await
    }
}
