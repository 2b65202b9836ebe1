//! Removes a whole checkpoint, and nothing else.

use reshard_megatron::{COMMON, METADATA_JSON};
use reshard_model::{ErrorKind, some};
use reshard_open::{
    Context, Result,
    attempt::{attempt, in_folder, is_of_a_save},
    opened::OpenOptions,
    place_text,
    replace::{ADVICE, files_of, replace},
    sidecar::{SIDECAR, Sidecar, is_sidecar},
};
use reshard_storage::{
    IfExists, Leftover, Name, PlaceKind, Removal, StorageError, Store, StoreExt as _, Stores,
};
use reshard_strategy::{BackendVersion, Formats, ReadLimits, Registry, StrategyError, read_small};
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
/// checkpoint's format gives are removed; all others stay at the place, as when a checkpoint is [replaced](reshard::Save::overwrite).
///
/// In a place where nothing can be renamed, such as an object store, the commit record goes first. Formats without one, such as `zarr`, are refused there. What
/// a killed process leaves is finished only by a call with the [notes](RemoveCheckpoint::noted) of the checkpoint, because without them it looks like what a save
/// is writing.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let place = dir.path().join("step-100");
/// # let mut state = reshard::StateDict::new();
/// # state.insert("step", 100);
/// reshard::blocking::run(reshard::save(&state, &place).note("run", "a7"))?;
/// // Only if its note says so.
/// let other = reshard_manager::remove_checkpoint(&place).noted("run", "b8");
/// assert!(reshard::blocking::run(other).is_err());
/// reshard::blocking::run(reshard_manager::remove_checkpoint(&place).noted("run", "a7"))?;
/// assert!(!place.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Before anything changes: nothing lies there, what lies there is no checkpoint in a folder, it lacks a [note](RemoveCheckpoint::noted), the store can't remove
/// it in one step, or a file system is mounted in it. If the error comes later, the checkpoint is not found any more, and another call goes on.
pub fn remove_checkpoint(place: impl AsRef<Path>) -> RemoveCheckpoint {
    RemoveCheckpoint {
        url: place_text(place),
        notes: BTreeMap::new(),
        only_unfinished: false,
        open: OpenOptions::default(),
    }
}

/// A removal with its options; made by [`remove_checkpoint`].
#[derive(Debug)]
#[must_use = "nothing is removed until this is awaited"]
pub struct RemoveCheckpoint {
    url: String,
    notes: BTreeMap<String, String>,
    only_unfinished: bool,
    open: OpenOptions,
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

impl RemovedCheckpoint {
    /// Counts those of these files that are there.
    async fn count(&mut self, store: &Arc<dyn Store>, files: &[Name]) -> Result<(), StrategyError> {
        let own: BTreeSet<&Name> = files.iter().collect();
        for file in store.files().await? {
            if own.contains(&file.name) {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(file.bytes);
            }
        }
        Ok(())
    }
}

/// What to do if nothing proves whose a checkpoint is.
const UNCLEAR: &str = ", so nobody can tell whether it may be removed; remove it yourself";

impl RemoveCheckpoint {
    reshard_open::open_options!(open);

    /// Removes it only if it has this [note](reshard::Save::note), in a `reshard.json` that belongs to it.
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
        let registry = self.open.strategies()?.into_owned();
        let formats = Formats::of(&registry)?;
        self.open.registry = Some(registry.clone());
        let asked = self.open.store_at(&self.url)?;
        // If somebody changes a link meanwhile, it must not lead to another place.
        let place = asked.resolved().await?.unwrap_or(asked);
        let mut report = RemovedCheckpoint {
            finished: self.finish(&place, &formats).await?,
            ..RemovedCheckpoint::default()
        };
        if self.only_unfinished {
            return Ok(report);
        }
        match place.removal() {
            Removal::Rename => {}
            Removal::Record => {
                return self
                    .remove_by_record(&place, report, &registry, &formats)
                    .await;
            }
            _ => {
                let why = "this store can't take all its files away in one step, so a crash could leave a part of it; remove it yourself";
                return Err(unsupported(&self.url, why));
            }
        }

        // It is found in the folder that is removed, even if another one takes its place.
        let Some(held) = place.pinned().await? else {
            let path = place.url();
            return Err(StorageError::NotFound { path }.into());
        };
        self.check_notes(&held, &formats).await?;
        let files = self.files(&held, &registry, &mut report).await?;
        let files = sidecar_last(files);
        place.remove_version(&attempt(), None, &files).await?;
        Ok(report)
    }

    /// The files of the checkpoint that is removed. They are counted.
    async fn files(
        &self,
        place: &Arc<dyn Store>,
        registry: &Registry,
        report: &mut RemovedCheckpoint,
    ) -> Result<Vec<Name>, StrategyError> {
        let replaced = replace(place, registry, PlaceKind::Folder).await;
        let replaced = replaced.map_err(|e| self.not_removed(e))?;
        let IfExists::Replace(files) = replaced.if_exists else {
            let (url, why) = (place.url(), "it has no files".into());
            return Err(StrategyError::NotACheckpoint { url, why });
        };
        report.count(place, &files).await?;
        report.stays = replaced.stays;
        Ok(files.to_vec())
    }

    /// Removes a checkpoint where nothing can be renamed.
    async fn remove_by_record(
        &self,
        place: &Arc<dyn Store>,
        mut report: RemovedCheckpoint,
        registry: &Registry,
        formats: &Formats,
    ) -> Result<RemovedCheckpoint, StrategyError> {
        let opened = self.open.open_store(Arc::clone(place)).await?;
        let (sidecar, why) = opened.sidecar().await;
        let has_notes = sidecar.as_ref().is_some_and(|s| s.has(&self.notes));
        if !has_notes && !self.notes.is_empty() {
            let lacks = || format!("its {SIDECAR} does not have the note that it should have");
            let why = why.unwrap_or_else(lacks);
            return Err(unsupported(&self.url, &format!("{why}{UNCLEAR}")));
        }

        // Common state in a file belongs to a checkpoint that `metadata.json` completes. A format that is told by files in folders, as arrays
        // are, is told by them when a record is gone, too.
        let by_folders = formats.all.iter().any(|format| {
            format.key() == opened.name && !format.info().probes_in_folders.is_empty()
        });
        let common = place.exists(&Name::new(COMMON)?).await?;
        let of_format = sidecar.and_then(|sidecar| sidecar.commit);
        let of_format = of_format.filter(|_| !by_folders);
        let record = match of_format {
            Some(_) if common => Some(Name::new(METADATA_JSON)?),
            of_format => of_format.map(|record| Name::new(record.file)).transpose()?,
        };
        let mut others = self.files(place, registry, &mut report).await?;
        others.retain(|name| Some(name) != record.as_ref());
        let others = sidecar_last(others);
        place
            .remove_version(&attempt(), record.as_ref(), &others)
            .await?;
        Ok(report)
    }

    /// Finishes earlier removals at the place that were killed.
    async fn finish(
        &self,
        place: &Arc<dyn Store>,
        formats: &Formats,
    ) -> Result<u64, StrategyError> {
        if place.removal() == Removal::Record {
            return self.finish_by_record(place).await;
        }
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

    /// The same where nothing can be renamed: what lies in the folders of attempts that have the notes, if there is no checkpoint.
    async fn finish_by_record(&self, place: &Arc<dyn Store>) -> Result<u64, StrategyError> {
        if self.notes.is_empty() {
            return Ok(0);
        }
        match self.open.format_of(place).await {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {}
            found => return found.map(|_| 0),
        }
        let sidecar_name = Name::new(SIDECAR)?;
        let mut finished = 0;
        for left in place.leftovers().await? {
            let folder = Name::new(&*left.attempt)?;
            let bytes = read_small(place, &folder.join(&sidecar_name)).await?;
            let sidecar = bytes.and_then(|b| serde_json::from_slice::<Sidecar>(&b).ok());
            let Some(sidecar) = sidecar.filter(|sidecar| sidecar.has(&self.notes)) else {
                continue;
            };
            // What lies outside of the folder has one of these names, and goes before that which says whose it is.
            let record = sidecar.commit.map(|record| record.file);
            let outside = [COMMON, METADATA_JSON].into_iter().chain(record.as_deref());
            let outside: BTreeSet<&str> = outside.collect();
            let inside = format!("{folder}/");
            let is_left = |name: &Name| {
                let name = name.as_str();
                name.starts_with(&inside) || outside.contains(name)
            };
            let all = place.files().await?.into_iter().map(|file| file.name);
            let files = sidecar_last(all.filter(is_left).collect());
            if let Some((last, others)) = files.split_last() {
                place.remove(others).await?;
                place.remove(std::slice::from_ref(last)).await?;
            }
            finished += 1;
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
        let store = self.open.store_at(&left.path)?;
        let store = store.resolved().await?.unwrap_or(store);
        let noted = Sidecar::any(&store).await;
        let all = store.files().await?;
        let files = files_of(&store, &self.open, all, formats).await?.files;
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
        let refused = |why: &str| Err(unsupported(&self.url, &format!("{why}{UNCLEAR}")));
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
    let is_last = |name: &Name| {
        let name = name.as_str();
        is_sidecar(in_folder(name).unwrap_or(name))
    };
    let (last, mut first): (Vec<_>, Vec<_>) = files.into_iter().partition(is_last);
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
