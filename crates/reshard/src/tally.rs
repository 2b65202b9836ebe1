//! Records what ranks write in a save, so that the commit can check that all of it is there.

use async_trait::async_trait;
use bytes::Bytes;
use reshard_comm::Comm;
use reshard_open::{attempt::in_folder, outside};
use reshard_storage::{
    Durability, Entry, FileBody, Length, Name, Progress, Result, StorageError, Store, Traffic,
    Transaction, Written, WrittenExtent,
};
use reshard_strategy::{StrategyError, cause, crc32_combined};
use serde::{Deserialize, Serialize};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// A transaction that remembers all files that were written through it: those of the strategy, the common state and the
/// records. Where versions lie side by side, it also [notes](outside) what is written outside of the folder of the attempt.
#[derive(Debug)]
pub(crate) struct Tally {
    inner: Arc<dyn Transaction>,
    place: Arc<dyn Store>,
    rank: u32,
    /// How many notes there are.
    notes: AtomicU64,
    /// The coordinator removes what a failed save has written.
    is_coordinator: bool,
    files: Mutex<Vec<WrittenFile>>,
}

/// A file that was written, with its checksum if that is known.
type WrittenFile = (Entry, Option<u32>);

impl Tally {
    pub(crate) fn new(inner: Arc<dyn Transaction>, place: Arc<dyn Store>, comm: &Comm<'_>) -> Self {
        Self {
            inner,
            place,
            rank: comm.rank().0,
            notes: AtomicU64::new(0),
            is_coordinator: comm.is_coordinator(),
            files: Mutex::default(),
        }
    }

    /// Removes what a failed save has written. Nothing was committed, so nobody needs it. If its removal fails, the error
    /// of the save must still be the cause.
    ///
    /// Of what other ranks have put outside of the folder, nobody knows here if it was there before or is somebody else's by now.
    /// Then all stays, with the notes that let `prune` remove it.
    pub(crate) async fn clear(&self, url: &str) {
        if !self.is_coordinator {
            return;
        }
        let cleared = match self.others_have_notes().await {
            Ok(true) => {
                tracing::warn!(
                    url,
                    "what a failed save wrote stays, because other ranks have put files outside of its folder; `reshard prune` removes it"
                );
                Ok(())
            }
            Ok(false) => self.rollback().await,
            Err(e) => Err(e),
        };
        if let Err(e) = cleared {
            tracing::warn!(error = %e, url, "what a failed save wrote could not be removed");
        }
    }

    /// Whether other ranks may have put something outside of the folder of the attempt.
    async fn others_have_notes(&self) -> Result<bool> {
        if self.inner.folder().is_none() {
            return Ok(false);
        }
        let written = self.inner.written().await?;
        let is_theirs =
            |inside: &str| outside::is_note(inside) && !outside::is_note_of(self.rank, inside);
        let mut inside = written
            .iter()
            .filter_map(|file| in_folder(file.name.as_str()));
        Ok(inside.any(is_theirs))
    }

    /// What this rank has written so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.iter().map(|(file, _)| file);
        let bytes = files.filter(|file| !is_note(file)).map(|f| f.bytes);
        let files = bytes.clone().count() as u64;
        Traffic::read(bytes.fold(0, u64::saturating_add), files)
    }

    /// What this rank has written so far, without notes.
    pub(crate) fn so_far(&self) -> Vec<Entry> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.iter().map(|(file, _)| file);
        files.filter(|file| !is_note(file)).cloned().collect()
    }

    /// Takes the list of files that this rank has written, and their checksums.
    pub(crate) fn take(&self) -> Vec<WrittenFile> {
        std::mem::take(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes what of these files lies outside of the folder of the attempt, before any of them is there.
    async fn note(&self, names: Vec<Name>, durability: Durability) -> Result<()> {
        let Some(folder) = self.inner.folder() else {
            return Ok(());
        };
        let number = self.notes.fetch_add(1, Ordering::Relaxed);
        let Some((name, note)) = outside::note(&folder, (self.rank, number), &names)? else {
            return Ok(());
        };
        let bytes = note.len() as u64;
        let body = FileBody::from_bytes(name.clone(), note);
        self.inner
            .write(vec![body], durability, Progress::none())
            .await?;
        let mut own = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        own.push((Entry { name, bytes }, None));
        Ok(())
    }

    /// Removes the notes: what they name is part of a checkpoint now.
    async fn forget_notes(&self, files: &[Entry]) {
        let notes = files.iter().filter(|file| is_note(file));
        let notes: Vec<Name> = notes.map(|file| file.name.clone()).collect();
        if !notes.is_empty()
            && let Err(e) = self.place.remove(&notes).await
        {
            tracing::warn!(error = %e, url = self.place.url(), "notes of a save were not removed; `reshard prune` does it");
        }
    }
}

/// The checksum of a file that was written. `None` for a copy, whose bytes may never pass through this process.
fn crc32_of(file: &Written) -> Option<u32> {
    let length = |extent: &WrittenExtent| extent.range.end - extent.range.start;
    let parts = file.extents.iter();
    let parts: Option<Vec<_>> = parts
        .map(|extent| Some((length(extent), extent.crc32?)))
        .collect();
    let parts = parts?;
    let is_whole = parts.iter().map(|(bytes, _)| bytes).sum::<u64>() == file.bytes;
    is_whole.then(|| crc32_combined(parts.into_iter()))
}

pub(crate) fn is_note(file: &Entry) -> bool {
    in_folder(file.name.as_str()).is_some_and(outside::is_note)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner transaction
impl Transaction for Tally {
    reshard_storage::forward! { inner: read place folder written rollback }

    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        // Uses the requested lengths. Only lengths that were unknown before come from the store.
        let mut asked = Vec::with_capacity(files.len());
        for file in &files {
            let too_long =
                || StorageError::invalid(format!("{}: its length does not fit 64 bits", file.name));
            asked.push((file.name.clone(), file.length().ok_or_else(too_long)?));
        }
        let names = asked.iter().map(|(name, _)| name.clone()).collect();
        self.note(names, durability).await?;
        let files = files.into_iter().map(FileBody::with_checksums).collect();
        let written = self.inner.write(files, durability, progress).await?;
        let mut own = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, (name, length)) in asked.into_iter().enumerate() {
            let bytes = match (length, written.get(i)) {
                (Length::Exact(bytes), _) => bytes,
                (Length::Unknown { .. }, Some(w)) => w.bytes,
                (Length::Unknown { .. }, None) => {
                    return Err(StorageError::invalid(format!(
                        "the store does not say how long {name} is"
                    )));
                }
            };
            own.push((Entry { name, bytes }, written.get(i).and_then(crc32_of)));
        }
        drop(own);
        Ok(written)
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        self.inner.commit(record, files, durability).await?;
        self.forget_notes(files).await;
        Ok(())
    }
}

/// What a rank has written: its files, and their digests if these are asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Files {
    pub(crate) entries: Vec<Entry>,
    /// The CRC-32 of each entry, if it is known.
    pub(crate) sums: Vec<Option<u32>>,
    pub(crate) digests: Vec<String>,
    /// Those of the entries that hold the common state.
    pub(crate) common: Vec<Entry>,
}

/// Sends the coordinator the list of what all ranks have written; other ranks get only the files of the common state. If one rank failed, all fail.
pub(crate) async fn gather(
    comm: &Comm<'_>,
    mine: Result<Files, StrategyError>,
) -> Result<Files, StrategyError> {
    let mut all = Files::default();
    let part = mine.as_ref().map(Clone::clone).map_err(cause);
    let told = comm.all_reduce("write", part, |ranks: Vec<Files>| {
        let mut common = Vec::new();
        for rank in ranks {
            all.entries.extend(rank.entries);
            all.sums.extend(rank.sums);
            all.digests.extend(rank.digests);
            common.extend(rank.common);
        }
        Ok(common)
    });
    match (told.await, mine) {
        (Ok(common), _) => {
            all.common = common;
            Ok(all)
        }
        (Err(_), Err(own)) if comm.size() == 1 => Err(own),
        (Err(e), _) => Err(e.into()),
    }
}
