//! `reshard.json`: what reshard adds to a checkpoint, in a file that other programs ignore.

use crate::{
    control::{OTHER_RECORD, sha256},
    formats::Formats,
};
use bytes::Bytes;
use reshard_model::Path;
use reshard_storage::{Name, PlaceKind, Store, StoreExt};
use reshard_strategy::{BackendVersion, Result, hex, read_small};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, sync::Arc};

/// Name of the file.
pub const SIDECAR: &str = "reshard.json";

/// Its name in a place of files with one prefix: `ckpt-1.reshard.json` beside `ckpt-1.index`.
const OF_PREFIX: &str = ".reshard.json";

/// Its name in a place of this kind. One file has no room for it.
pub(crate) fn name(kind: PlaceKind) -> Option<&'static str> {
    match kind {
        PlaceKind::Folder => Some(SIDECAR),
        PlaceKind::Prefix => Some(OF_PREFIX),
        _ => None,
    }
}

/// Whether a file has one of its names.
pub(crate) fn is_sidecar(name: &str) -> bool {
    name == SIDECAR || name == OF_PREFIX
}

/// Additional facts about a checkpoint that reshard wrote. They belong to one format record, or to all metadata of a format
/// that has none, and are ignored if that has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sidecar {
    /// Version of this file's form.
    pub schema: u32,
    /// Program and version.
    pub writer: String,
    /// The format record that it belongs to, if the format has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<FileDigest>,
    /// Otherwise: the files of metadata that it belongs to, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metadata: Vec<FileDigest>,
    /// Strategy of the sharded part, if nothing else in the checkpoint names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<BackendVersion>,
    /// Paths of empty dicts, which PyTorch's format can't hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub empty_dicts: Vec<Path>,
    /// The description of the sharding policy that decided on files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// What the program that saved it noted with [`Save::note`](crate::Save::note).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
    /// Whether the files after this one were shown as they were written. Then there is no checkpoint before its format record is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shown: bool,
}

/// A file and its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its name.
    pub file: String,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

impl FileDigest {
    fn of((file, bytes): &(Name, Bytes)) -> Self {
        Self {
            file: file.to_string(),
            sha256: hex(&Sha256::digest(bytes)),
        }
    }
}

/// Files of metadata that one sidecar can belong to.
const MOST_FILES: usize = 65_536;

impl Sidecar {
    /// A sidecar that says nothing yet except to which files it belongs. `None` if there are no such files.
    pub(crate) fn of(commit: Option<&(Name, Bytes)>, metadata: &[(Name, Bytes)]) -> Option<Self> {
        let commit = commit.map(FileDigest::of);
        let mut metadata: Vec<_> = match commit {
            Some(_) => Vec::new(),
            None => metadata.iter().map(FileDigest::of).collect(),
        };
        metadata.sort_by(|a, b| a.file.cmp(&b.file));
        let mine = Self {
            schema: 1,
            writer: concat!("reshard ", env!("CARGO_PKG_VERSION")).into(),
            commit,
            metadata,
            strategy: None,
            empty_dicts: Vec::new(),
            policy: None,
            notes: BTreeMap::new(),
            shown: false,
        };
        mine.is_bound().then_some(mine)
    }

    /// Whether it has all these notes.
    pub(crate) fn has(&self, notes: &BTreeMap<String, String>) -> bool {
        notes
            .iter()
            .all(|(key, value)| self.notes.get(key) == Some(value))
    }

    /// Whether it says plainly whose it is: one format record, or some files, each once.
    fn is_bound(&self) -> bool {
        let sorted = self
            .metadata
            .windows(2)
            .all(|w| matches!(w, [a, b] if a.file < b.file));
        let files = self.files().count();
        sorted && (1..=MOST_FILES).contains(&files) && (self.commit.is_none() || files == 1)
    }

    /// The files that it belongs to.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileDigest> {
        self.commit.iter().chain(&self.metadata)
    }

    /// The one format record that it belongs to, and the digest of that.
    pub(crate) fn record(&self) -> Option<(Name, &str)> {
        let record = self.commit.as_ref().filter(|_| self.is_bound())?;
        Some((Name::new(&*record.file).ok()?, &record.sha256))
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.files().map(|f| f.file.clone()).collect()
    }

    /// The format that it names, or else the format that gives its format record such a name.
    pub(crate) fn format(&self, formats: &Formats) -> Option<BackendVersion> {
        self.strategy
            .clone()
            .or_else(|| formats.of_record(&self.commit.as_ref()?.file))
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// The sidecar of a place, whatever format record it belongs to.
    pub(crate) async fn any(store: &Arc<dyn Store>) -> Option<Self> {
        serde_json::from_slice(&bytes(store).await?).ok()
    }

    /// The sidecar of a checkpoint whose data files lie in this folder, and the reason if it was ignored. It lies with them, or directly in
    /// the place.
    pub(crate) async fn read(
        store: &Arc<dyn Store>,
        formats: &Formats,
        folder: Option<&Name>,
    ) -> (Option<Self>, Option<String>) {
        if let Some(bytes) = in_folder(store, folder).await
            && let (Some(me), _) = Self::parsed(bytes, store, formats).await
        {
            return (Some(me), None);
        }
        match bytes(store).await {
            Some(bytes) => Self::parsed(bytes, store, formats).await,
            None => (None, None),
        }
    }

    async fn parsed(
        bytes: Bytes,
        store: &Arc<dyn Store>,
        formats: &Formats,
    ) -> (Option<Self>, Option<String>) {
        let Ok(me) = serde_json::from_slice::<Self>(&bytes) else {
            return (
                None,
                Some(format!(
                    "{SIDECAR} is ignored: it is not in a form that this version knows"
                )),
            );
        };
        match me.belongs(store, formats).await {
            true => (Some(me), None),
            false => {
                let files = me.names().join(", ");
                (
                    None,
                    Some(format!(
                        "{SIDECAR} is ignored: it belongs to another version of {files}"
                    )),
                )
            }
        }
    }

    /// Why there is no checkpoint, if its save showed its files as it wrote them, and was not finished.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn unfinished(&self, store: &Arc<dyn Store>) -> Result<Option<String>> {
        let Some(record) = self.commit.as_ref().filter(|_| self.shown) else {
            return Ok(None);
        };
        let is_there = store.exists(&Name::new(&*record.file)?).await?;
        Ok((!is_there).then(|| {
            format!(
                "{SIDECAR} says that {} is written last, and it is not there, so its save was never finished",
                record.file
            )
        }))
    }

    /// Whether all files that it belongs to are there, unchanged. This hashes all of them.
    pub(crate) async fn belongs(&self, store: &Arc<dyn Store>, formats: &Formats) -> bool {
        if !self.is_bound() {
            return false;
        }
        // All together are no longer than one may be.
        let mut room = OTHER_RECORD;
        for of in self.files() {
            let Ok(name) = Name::new(&*of.file) else {
                return false;
            };
            if self.commit.is_none() {
                let left = match store.len(&name).await {
                    Ok(len) => len.and_then(|len| room.checked_sub(len)),
                    Err(_) => None,
                };
                let Some(left) = left else { return false };
                room = left;
            }
            if sha256(store, &name, formats).await.ok().flatten().as_ref() != Some(&of.sha256) {
                return false;
            }
        }
        true
    }
}

async fn in_folder(store: &Arc<dyn Store>, folder: Option<&Name>) -> Option<Bytes> {
    let name = folder?.join(&Name::new(SIDECAR).ok()?);
    read_small(store, &name).await.ok()?
}

async fn bytes(store: &Arc<dyn Store>) -> Option<Bytes> {
    let mut found = None;
    for name in [SIDECAR, OF_PREFIX] {
        if found.is_none() {
            found = read_small(store, &Name::new(name).ok()?).await.ok()?;
        }
    }
    found
}
