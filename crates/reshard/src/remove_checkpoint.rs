//! Removes a whole checkpoint, and nothing else.

use crate::{
    Result,
    attempt::{attempt, is_of_a_save},
    error::Context,
    formats::Formats,
    opened::{self, HowToOpen},
    place,
    replace::{ADVICE, files_of, replace},
    report::some,
    sidecar::{SIDECAR, Sidecar, is_sidecar},
};
use reshard_storage::{
    IfExists, Leftover, Name, PlaceKind, Recovery, StorageError, Store, StoreExt as _, Stores,
};
use reshard_strategy::{BackendVersion, ReadLimits, Registry, StrategyError};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::{Future, IntoFuture},
    path::Path,
    pin::Pin,
    sync::Arc,
};

const ACT: &str = "removing";

/// Removes the checkpoint in a folder. Await the result, or set options on it first.
///
/// In one step nobody finds the checkpoint at its place any more; then its files go. A process that is killed in between leaves a
/// hidden folder beside the place, and another call, or [`prune`](crate::prune()) after a day, does the rest. Only files whose names the
/// checkpoint's format gives are removed; all others stay at the place, as when a checkpoint is [replaced](crate::Save::overwrite).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let place = dir.path().join("step-100");
/// # let mut state = reshard::StateDict::new();
/// # state.insert("step", 100);
/// reshard::blocking::run(reshard::save(&state, &place).note("run", "a7"))?;
/// // Only if its note says so.
/// let other = reshard::remove_checkpoint(&place).noted("run", "b8");
/// assert!(reshard::blocking::run(other).is_err());
/// reshard::blocking::run(reshard::remove_checkpoint(&place).noted("run", "a7"))?;
/// assert!(!place.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Before anything changes: nothing lies there, what lies there is no checkpoint in a folder, it lacks a [note](RemoveCheckpoint::noted), the store can't remove
/// it in one step, or a file system is mounted in it. If the error comes later, the checkpoint is not found any more, and another call goes on.
pub fn remove_checkpoint(place: impl AsRef<Path>) -> RemoveCheckpoint {
    RemoveCheckpoint {
        url: place::place_text(place),
        notes: BTreeMap::new(),
        only_unfinished: false,
        how: HowToOpen::default(),
    }
}

/// A removal with its options; made by [`remove_checkpoint`].
#[derive(Debug)]
#[must_use = "nothing is removed until this is awaited"]
pub struct RemoveCheckpoint {
    url: String,
    notes: BTreeMap<String, String>,
    only_unfinished: bool,
    how: HowToOpen,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemovedCheckpoint {
    /// Files of the checkpoint.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that the checkpoint names as its own, and that stay because no program of its format gives such names.
    pub stays: Vec<Name>,
    /// Earlier removals at this place that were not finished, and are now.
    pub finished: u64,
}

/// One line: `removed 3 files (1200 bytes)`.
impl fmt::Display for RemovedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = some(self.files, "file");
        write!(f, "removed {files} ({} bytes)", self.bytes)?;
        match self.finished {
            0 => Ok(()),
            n => write!(f, ", finished {}", some(n, "earlier removal")),
        }
    }
}

impl RemoveCheckpoint {
    opened::options!();

    /// Removes it only if it has this [note](crate::Save::note), in a `reshard.json` that belongs to it.
    pub fn noted(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.notes.insert(key.into(), value.into());
        self
    }

    /// Whether to finish only earlier removals that were killed. What lies at the place stays.
    pub fn only_unfinished(mut self, only: bool) -> Self {
        self.only_unfinished = only;
        self
    }

    async fn run(mut self) -> Result<RemovedCheckpoint> {
        let url = self.url.clone();
        self.remove().await.during(ACT, &url)
    }

    async fn remove(&mut self) -> Result<RemovedCheckpoint, StrategyError> {
        let registry = match self.how.registry.take() {
            Some(registry) => registry,
            None => Registry::linked()?,
        };
        let formats = Formats::of(&registry)?;
        self.how.registry = Some(registry.clone());
        let asked = self.how.store(&self.url)?;
        // If somebody changes a link meanwhile, it must not lead to another place.
        let place = asked.resolved().await?.unwrap_or(asked);
        let mut report = RemovedCheckpoint {
            finished: self.finish(&place, &formats).await?,
            ..RemovedCheckpoint::default()
        };
        if self.only_unfinished {
            return Ok(report);
        }
        if !place.recovery().is_some_and(Recovery::removes_versions) {
            let why = "this store can't take all its files away in one step, so a crash could leave a part of it; remove it yourself";
            return Err(unsupported(&self.url, why));
        }

        // It is found in the folder that is removed, even if another one takes its place.
        let Some(held) = place.pinned().await? else {
            let path = place.url();
            return Err(StorageError::NotFound { path }.into());
        };
        self.check_notes(&held, &formats).await?;
        let replaced = replace(&held, &registry, PlaceKind::Folder).await;
        let replaced = replaced.map_err(|e| self.not_removed(e))?;
        let IfExists::Replace(files) = replaced.if_exists else {
            let (url, why) = (place.url(), "it has no files".into());
            return Err(StrategyError::NotACheckpoint { url, why });
        };
        let own: BTreeSet<&Name> = files.iter().collect();
        for file in held.files().await? {
            if own.contains(&file.name) {
                report.files += 1;
                report.bytes = report.bytes.saturating_add(file.bytes);
            }
        }
        report.stays = replaced.stays;
        let files = sidecar_last(files.to_vec());
        place.remove_version(&attempt(), &files).await?;
        Ok(report)
    }

    /// Finishes earlier removals at the place that were killed.
    async fn finish(
        &self,
        place: &Arc<dyn Store>,
        formats: &Formats,
    ) -> Result<u64, StrategyError> {
        let mut finished = 0;
        for left in place.leftovers().await? {
            if !left.removed || !is_of_a_save(&left) {
                continue;
            }
            if let Some(files) = self.files_left(&left, formats).await? {
                place.finish_replacing(&left, &files).await?;
                finished += 1;
            }
        }
        Ok(finished)
    }

    /// The files that are left of a checkpoint whose removal was killed. `None` if it lacks a note. The sidecar goes last, so if it is
    /// gone, all are.
    async fn files_left(
        &self,
        left: &Leftover,
        formats: &Formats,
    ) -> Result<Option<Vec<Name>>, StrategyError> {
        let store = self.how.store(&left.path)?;
        let store = store.resolved().await?.unwrap_or(store);
        let noted = Sidecar::any(&store).await;
        let all = store.files().await?;
        let files = files_of(&store, &self.how, all, formats).await?.files;
        // The record may be gone, to which the sidecar belonged.
        let is_ours = files.is_empty() || noted.is_some_and(|sidecar| sidecar.has(&self.notes));
        Ok((is_ours || self.notes.is_empty()).then(|| sidecar_last(files)))
    }

    /// Whether the checkpoint has all notes that it must have.
    async fn check_notes(
        &self,
        held: &Arc<dyn Store>,
        formats: &Formats,
    ) -> Result<(), StrategyError> {
        if self.notes.is_empty() {
            return Ok(());
        }
        let refused = |why: &str| {
            let why =
                format!("{why}, so nobody can tell whether it may be removed; remove it yourself");
            Err(unsupported(&self.url, &why))
        };
        match Sidecar::any(held).await {
            None => refused(&format!(
                "it has no {SIDECAR} with the note that it should have"
            )),
            Some(sidecar) if !sidecar.has(&self.notes) => refused(&format!(
                "its {SIDECAR} does not have the note that it should have"
            )),
            Some(sidecar) if !sidecar.belongs(held, formats).await => {
                refused(&format!("its {SIDECAR} belongs to another version"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The error of a replacement, in the words of a removal.
    fn not_removed(&self, e: StrategyError) -> StrategyError {
        match e {
            StrategyError::Storage(StorageError::Unsupported { why, .. }) => {
                let why = why.strip_suffix(ADVICE).unwrap_or(&why);
                unsupported(&self.url, &format!("{why}; remove it yourself"))
            }
            e => e,
        }
    }
}

fn unsupported(url: &str, why: &str) -> StrategyError {
    let what = format!("removing {url}");
    let why = why.into();
    StorageError::Unsupported { what, why }.into()
}

/// The same files, and at the end the one that says whose they are.
fn sidecar_last(files: Vec<Name>) -> Vec<Name> {
    let (last, mut first): (Vec<_>, Vec<_>) = files
        .into_iter()
        .partition(|name| is_sidecar(name.as_str()));
    first.extend(last);
    first
}

impl IntoFuture for RemoveCheckpoint {
    type Output = Result<RemovedCheckpoint>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
