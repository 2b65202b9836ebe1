//! A planned save: it is still to be written and committed.

use super::{builder::LastCheck, options::SaveOptions};
use crate::{
    CommonDifference, CommonForm, Result, SaveReport, StoredCommon,
    in_flight::InFlight,
    report::{Clock, Phase},
    side_by_side::{SideBySide, metadata_json},
    tally::{self, Files, Tally, gather},
};
use bytes::Bytes;
use reshard_comm::Comm;
use reshard_megatron::{INTEGRITY, METADATA_JSON};
use reshard_model::{Dialect, Path, ValueTree};
use reshard_open::{
    Context, integrity,
    sidecar::{self, FileSum, Sidecar},
};
use reshard_plan::Metadata;
use reshard_storage::{Entry, FileBody, Name, PlaceKind, Progress, Transaction, wait};
use reshard_strategy::{
    AsyncStager, BackendVersion, Formats, PreparedSave, Records, Registry, SaveCommonStrategy,
    Saved, StrategyError, agree, stage_save,
};
use std::sync::Arc;

/// What a save was doing when it failed.
pub(crate) const ACT: &str = "saving to";

/// A planned save. It owns everything that it needs, so any thread can write it.
pub(crate) struct PendingSave {
    pub(super) version: Version,
    pub(super) common_file: CommonFile,
    pub(super) prepared: PreparedSave,
    pub(super) last_check: Option<LastCheck>,
    /// How staging or writing ended; `None` before that.
    pub(super) written: Option<Result<(), StrategyError>>,
    pub(super) clock: Clock,
}

/// The new version of the place, and what its records say.
pub(super) struct Version {
    pub(super) options: SaveOptions,
    pub(super) transaction: Arc<Tally>,
    /// Of an asynchronous save.
    pub(super) _in_flight: Option<InFlight>,
    /// The name of the sharded strategy.
    pub(super) backend: BackendVersion,
    pub(super) common: Arc<dyn SaveCommonStrategy>,
    /// If the place keeps versions side by side.
    pub(super) side_by_side: Option<SideBySide>,
    /// What kind of place it is.
    pub(super) kind: PlaceKind,
    /// It tells which files are records.
    pub(super) registry: Registry,
    pub(super) empty_dicts: Vec<Path>,
    pub(super) stays: Vec<Name>,
    pub(super) common_differs: Option<CommonDifference>,
    /// The files of the common state, when they are written. Only the coordinator has any.
    pub(super) common_files: Vec<Entry>,
}

/// Common state that becomes a file. Only the coordinator has any.
#[derive(Default)]
pub(super) enum CommonFile {
    #[default]
    None,
    State(ValueTree),
    Stored(StoredCommon),
}

impl PendingSave {
    /// Stages with `stager`, and waits until that is complete if `wait_for_copies`. If the future is dropped, or the stager panics, what
    /// the save has begun is removed.
    pub(crate) async fn staged(self, stager: &dyn AsyncStager, wait_for_copies: bool) -> Self {
        let mut remove = Removed(Some(self.remover()));
        let mut pending = self;
        pending.stage(stager).await;
        if wait_for_copies {
            pending.synchronize_staging(stager).await;
        }
        remove.0 = None;
        pending
    }

    /// Copies what the caller may change. If that fails, [`finish`](Self::finish) tells all ranks, and nothing is written.
    async fn stage(&mut self, stager: &dyn AsyncStager) {
        let common = match &mut self.common_file {
            CommonFile::State(common) => Some(common),
            CommonFile::None | CommonFile::Stored(_) => None,
        };
        match stage_save(&mut self.prepared, common, stager).await {
            Ok(()) => self.clock.done(Phase::Staging),
            Err(e) => {
                self.clock.failed(Phase::Staging, &e);
                self.fail(e);
            }
        }
    }

    /// Waits until the copies are complete.
    pub(crate) async fn synchronize_staging(&mut self, stager: &dyn AsyncStager) {
        if self.written.is_none() {
            match stager.synchronize_staging().await {
                Ok(()) => self.clock.done(Phase::Staging),
                Err(e) => {
                    self.clock.failed(Phase::Staging, &e);
                    self.fail(e);
                }
            }
        }
    }

    /// This rank does not write, or did not write all. [`finish`](Self::finish) tells all ranks why. Ranks that wait for this one
    /// in an exchange learn it now, and nothing of the caller's is held any longer.
    pub(crate) fn fail(&mut self, why: StrategyError) {
        self.prepared.give_up(&why);
        self.common_file = CommonFile::None;
        self.written = Some(Err(why));
    }

    /// Where it goes.
    pub(crate) fn url(&self) -> &str {
        &self.version.options.url
    }

    /// Gives up without telling other ranks. What was written goes away.
    pub(crate) async fn abandon(self) {
        let Self {
            version, prepared, ..
        } = self;
        // Ranks that wait for this one in an exchange learn it.
        drop(prepared);
        version.transaction.clear(&version.options.url).await;
    }

    /// Removes what was written, if the thread that commits it panics.
    pub(crate) fn remover(&self) -> impl Future<Output = ()> + use<> {
        let (transaction, url) = (
            Arc::clone(&self.version.transaction),
            self.version.options.url.clone(),
        );
        async move { transaction.clear(&url).await }
    }

    /// Writes this rank's files: common state first, as Megatron Core does. If that fails, [`finish`](Self::finish) tells
    /// all ranks.
    pub(crate) async fn write(&mut self) {
        if self.written.is_none() {
            match self.write_files().await {
                Ok(()) => {
                    self.written = Some(Ok(()));
                    self.clock.done(Phase::Write);
                }
                // Ranks may wait in an exchange for what this one will not write.
                Err(e) => {
                    self.clock.failed(Phase::Write, &e);
                    self.fail(e);
                }
            }
            self.clock.moved(self.version.transaction.traffic());
        }
    }

    async fn write_files(&mut self) -> Result<(), StrategyError> {
        let version = &self.version;
        let files = match std::mem::take(&mut self.common_file) {
            CommonFile::None => Vec::new(),
            CommonFile::Stored(stored) => stored.layout()?,
            CommonFile::State(common) => version.common.layout_common(&common)?,
        };
        let is_common = !files.is_empty();
        version
            .write(files, version.options.pipeline.progress.clone())
            .await?;
        if is_common {
            // Nothing else has been written yet.
            self.version.common_files = self.version.transaction.so_far();
        }
        self.prepared.write().await
    }

    /// Commits what all ranks have written.
    ///
    /// # Collective
    /// Every rank calls it, also a rank whose writing failed. If a rank fails, all ranks get an error, and nothing is
    /// committed.
    pub(crate) async fn finish(self, comm: &Comm<'_>) -> Result<SaveReport> {
        let Self {
            version,
            prepared,
            last_check,
            written,
            mut clock,
            ..
        } = self;
        let unwritten = || Err(StrategyError::Internal("a save was not written".into()));
        let saved = match prepared
            .finish(written.unwrap_or_else(unwritten), comm)
            .await
        {
            Ok(mut saved) => {
                let checked = match last_check {
                    Some(check) => check().await,
                    None => Ok(()),
                };
                match version.share_metadata(&mut saved, comm).await {
                    Ok(()) => version
                        .commit(&saved, checked, comm)
                        .await
                        .map(|common| (saved, common)),
                    Err(e) => Err(e),
                }
            }
            Err(e) => Err(e),
        };
        match &saved {
            Ok((saved, _)) => {
                clock.wrote(saved.items);
                clock.done(Phase::Commit);
                clock.uneven(saved.totals.imbalance());
            }
            Err(e) => {
                clock.failed(Phase::Commit, e);
                version.transaction.clear(&version.options.url).await;
            }
        }
        let (saved, common) = saved.during(ACT, &version.options.url)?;
        Ok(SaveReport {
            metadata: saved.metadata,
            ranks: saved.ranks,
            totals: saved.totals,
            common,
            policy: saved.policy,
            empty_dicts: version.empty_dicts.len(),
            stays: version.stays,
            common_differs: version.common_differs,
            phases: clock.phases(),
        })
    }
}

/// Removes what a save has begun, when it is dropped with something to do.
struct Removed<F: Future<Output = ()>>(Option<F>);

impl<F: Future<Output = ()>> Drop for Removed<F> {
    fn drop(&mut self) {
        if let Some(remove) = self.0.take() {
            wait(remove);
        }
    }
}

impl Version {
    /// Sends the metadata to all ranks, if the save was asked to. It comes before the commit, so that a failure leaves the old checkpoint.
    async fn share_metadata(
        &self,
        saved: &mut Saved,
        comm: &Comm<'_>,
    ) -> Result<(), StrategyError> {
        if !self.options.metadata_on_all_ranks || self.options.pipeline.rank_local {
            return Ok(());
        }
        let own = saved.metadata.clone();
        let shared = comm.all_reduce("metadata", Ok(()), |_: Vec<()>| Ok(own));
        let shared: Option<Arc<Metadata>> = shared.await?;
        saved.metadata = saved.metadata.take().or(shared);
        Ok(())
    }

    async fn write(&self, files: Vec<FileBody>, progress: Progress) -> Result<(), StrategyError> {
        if !files.is_empty() {
            self.transaction
                .write(files, self.options.pipeline.durability, progress)
                .await?;
        }
        Ok(())
    }

    /// `checked` says what this rank's last check has found. Returns the files of the common state.
    async fn commit(
        &self,
        saved: &Saved,
        checked: Result<(), StrategyError>,
        comm: &Comm<'_>,
    ) -> Result<Vec<Entry>, StrategyError> {
        if self.options.pipeline.dry_run {
            let planned = checked.map(|()| Files {
                entries: self
                    .transaction
                    .take()
                    .into_iter()
                    .map(|(entry, _)| entry)
                    .collect(),
                common: self.common_files.clone(),
                ..Files::default()
            });
            return Ok(gather(comm, planned).await?.common);
        }
        // The coordinator writes its records when it knows every file of every rank: `reshard.json` has their checksums.
        let records = match checked {
            Ok(()) if !comm.is_coordinator() => self.write_records(saved).await,
            checked => checked,
        };
        let written = match records {
            Ok(()) => self.written().await,
            Err(e) => Err(e),
        };
        let mut files = gather(comm, written).await?;
        let common = std::mem::take(&mut files.common);
        let committed = if comm.is_coordinator() {
            self.commit_all(saved, files).await
        } else {
            Ok(())
        };
        agree(comm, "commit", committed).await?;
        Ok(common)
    }

    /// What this rank has written.
    async fn written(&self) -> Result<Files, StrategyError> {
        let (entries, sums): (Vec<_>, Vec<_>) = self.transaction.take().into_iter().unzip();
        let digests = match self.options.integrity {
            true => integrity::of_written(&*self.transaction, &entries).await?,
            false => Vec::new(),
        };
        let common = self.common_files.clone();
        Ok(Files {
            entries,
            sums,
            digests,
            common,
        })
    }

    /// The coordinator writes its records and `integrity.json`, if it is wanted, and commits.
    async fn commit_all(&self, saved: &Saved, mut files: Files) -> Result<(), StrategyError> {
        let last = self.write_all_records(saved, &files).await?;
        let own = self.written().await?;
        files.entries.extend(own.entries);
        files.digests.extend(own.digests);
        let Files {
            mut entries,
            digests,
            ..
        } = files;
        if self.options.integrity {
            let names = entries.iter().map(|entry| &entry.name).zip(digests);
            let bytes = integrity::manifest(names, last.as_ref()).to_bytes();
            let file = FileBody::from_bytes(Name::new(INTEGRITY)?, bytes);
            self.write(vec![file], Progress::default()).await?;
            let written = self.transaction.take().into_iter();
            entries.extend(written.map(|(entry, _)| entry));
        }
        let committed = self
            .transaction
            .commit(last, &entries, self.options.pipeline.durability);
        committed.await.map_err(StrategyError::from)
    }

    /// Another rank than the coordinator writes its records, if it has any. Only the coordinator commits, so here they are plain files.
    async fn write_records(&self, saved: &Saved) -> Result<(), StrategyError> {
        let files = saved.records.clone().into_files();
        let files = files.map(|(name, bytes)| FileBody::from_bytes(name, bytes));
        self.write(files.collect(), Progress::default()).await
    }

    /// The coordinator writes the records that describe what was written, except the commit record, which it returns.
    async fn write_all_records(
        &self,
        saved: &Saved,
        written: &Files,
    ) -> Result<Option<(Name, Bytes)>, StrategyError> {
        let Records {
            mut files,
            mut commit,
            ..
        } = saved.records.clone();
        let mut first = Vec::new();
        let json = metadata_json(&self.backend, &self.common.key(), &self.options);
        let json = match json {
            Some(bytes) => Some((Name::new(METADATA_JSON)?, bytes)),
            None => None,
        };

        // The sidecar says what the format's own records can't. It comes before the commit record, so no whole
        // checkpoint lacks it.
        if let Some((name, sidecar)) = self.sidecar(saved, json.as_ref(), written)? {
            let file = FileBody::from_bytes(name, sidecar.to_bytes());
            match sidecar.shown {
                // Nobody takes the files after it for a checkpoint.
                true => self.write(vec![file], Progress::default()).await?,
                false => first.push(file),
            }
        }

        // In Megatron's dialect `metadata.json` completes the checkpoint, so the format's own record becomes a file before it. If versions
        // lie side by side and only the format's record may change, that one completes it.
        if let Some(json) = json {
            match self.side_by_side.is_some() && self.options.common_form == CommonForm::Object {
                true => files.push(json),
                false => files.extend(commit.replace(json)),
            }
        }
        if let Some(side_by_side) = &self.side_by_side {
            side_by_side.permits(commit.as_ref(), &self.backend)?;
        }
        let files = files
            .into_iter()
            .map(|(name, bytes)| FileBody::from_bytes(name, bytes));
        first.extend(files);
        self.write(first, Progress::default()).await?;
        Ok(commit)
    }

    /// What reshard adds, and its name. It lies with the data of its version, where no other version can replace it. `None` in a place
    /// without room for it.
    fn sidecar(
        &self,
        saved: &Saved,
        json: Option<&(Name, Bytes)>,
        written: &Files,
    ) -> Result<Option<(Name, Sidecar)>, StrategyError> {
        let Records { files, commit, .. } = &saved.records;
        let (Some(name), Some(mut sidecar)) = (
            sidecar::name(self.kind),
            Sidecar::of(commit.as_ref(), files),
        ) else {
            if self.options.notes.is_empty() {
                return Ok(None);
            }
            let what = "notes of a checkpoint without metadata; leave the notes out,".into();
            return Err(StrategyError::Unsupported {
                strategy: self.backend.to_string(),
                what,
            });
        };
        sidecar.notes.clone_from(&self.options.notes);
        sidecar.records.extend(json.map(FileSum::of));
        let sums = written.entries.iter().zip(&written.sums);
        // Notes go after the commit.
        let sums = sums.filter(|(entry, _)| !tally::is_note(entry));
        let sums = sums.map(|(entry, crc32)| FileSum {
            file: entry.name.to_string(),
            bytes: entry.bytes,
            crc32: *crc32,
        });
        sidecar.note(sums, &Formats::of(&self.registry)?);
        let megatrons = self.options.pipeline.dialect == Dialect::Megatron;
        // A file without a name has always been of this format, whatever the default of this program.
        let named = megatrons || self.backend == BackendVersion::new("torch_dist", 1);
        sidecar.empty_dicts.clone_from(&self.empty_dicts);
        sidecar.strategy = (!named).then(|| self.backend.clone());
        sidecar.policy = saved.policy.as_ref().map(|p| p.description.clone());
        let mut name = Name::new(name)?;
        if let Some(side_by_side) = &self.side_by_side {
            match &side_by_side.folder {
                Some(folder) => name = folder.join(&name),
                None => sidecar.shown = self.kind == PlaceKind::Folder && commit.is_some(),
            }
        }
        Ok(Some((name, sidecar)))
    }
}
