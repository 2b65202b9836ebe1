//! `reshard.json`: what reshard adds to a checkpoint, in a file that other programs ignore.

use crate::control::{OTHER_RECORD, sha256};
use bytes::Bytes;
use reshard_model::Path;
use reshard_storage::{Name, PlaceKind, Store, StoreExt};
use reshard_strategy::{BackendVersion, Formats, Result, StrategyError, hex, read_small};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Name of the file.
pub const SIDECAR: &str = "reshard.json";

/// Its name in a place of files with one prefix: `ckpt-1.reshard.json` beside `ckpt-1.index`.
const OF_PREFIX: &str = ".reshard.json";

/// Its name in a place of this kind. One file has no room for it.
pub fn name(kind: PlaceKind) -> Option<&'static str> {
    match kind {
        PlaceKind::Folder => Some(SIDECAR),
        PlaceKind::Prefix => Some(OF_PREFIX),
        _ => None,
    }
}

/// Whether a file has one of its names.
pub fn is_sidecar(name: &str) -> bool {
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
    /// What the program that saved it noted with `Save::note`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
    /// Files of metadata other than those above, such as those that the format writes beside its record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<FileSum>,
    /// Data files: all, or some of very many. If metadata have changed, they tell whether another program has saved here, or whether the metadata are
    /// damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<FileSum>,
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

/// A file, its length and its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its name.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of its bytes. `None` if they did not pass through the process that saved, as those of a hard link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
}

impl FileSum {
    /// The digest of a record.
    pub fn of((file, bytes): &(Name, Bytes)) -> Self {
        Self {
            file: file.to_string(),
            bytes: bytes.len() as u64,
            crc32: Some(crc32fast::hash(bytes)),
        }
    }
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

/// Of more data files some are noted, evenly chosen.
const MOST_DATA: usize = 256;

/// The version of the form. The first one had neither sums of files nor a digest of itself.
const SCHEMA: u32 = 2;

/// What comes before the digest of the file itself, at its end. The digest is of all bytes before this text.
const OWN: &str = ",\"sha256\":\"";

/// The length of that digest and of what comes after it.
const OWN_DIGEST: usize = 64 + "\"}".len();

/// The text without its own digest, and whether the digest is right. `None` if it has none.
fn signed(text: &[u8]) -> Option<bool> {
    let (text, digest) = text.split_at_checked(text.len().checked_sub(OWN_DIGEST)?)?;
    let text = text.strip_suffix(OWN.as_bytes())?;
    let digest = digest.strip_suffix(b"\"}")?;
    Some(hex(&Sha256::digest(text)).as_bytes() == digest)
}

impl Sidecar {
    /// A sidecar that says nothing yet except to which files it belongs. `None` if there are no such files.
    pub fn of(commit: Option<&(Name, Bytes)>, files: &[(Name, Bytes)]) -> Option<Self> {
        let commit = commit.map(FileDigest::of);
        let mut metadata: Vec<_> = match commit {
            Some(_) => Vec::new(),
            None => files.iter().map(FileDigest::of).collect(),
        };
        metadata.sort_by(|a, b| a.file.cmp(&b.file));
        let records = match commit {
            Some(_) => files.iter().map(FileSum::of).collect(),
            None => Vec::new(),
        };
        let mine = Self {
            schema: SCHEMA,
            writer: concat!("reshard ", env!("CARGO_PKG_VERSION")).into(),
            commit,
            metadata,
            strategy: None,
            empty_dicts: Vec::new(),
            policy: None,
            notes: BTreeMap::new(),
            records,
            data: Vec::new(),
            shown: false,
        };
        mine.is_bound().then_some(mine)
    }

    /// Whether it has all these notes.
    pub fn has(&self, notes: &BTreeMap<String, String>) -> bool {
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
    pub fn files(&self) -> impl Iterator<Item = &FileDigest> {
        self.commit.iter().chain(&self.metadata)
    }

    /// The one format record that it belongs to, and the digest of that.
    pub fn record(&self) -> Option<(Name, &str)> {
        let record = self.commit.as_ref().filter(|_| self.is_bound())?;
        Some((Name::new(&*record.file).ok()?, &record.sha256))
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.files().map(|f| f.file.clone()).collect()
    }

    /// The format that it names, or else the format that gives its format record such a name.
    pub fn format(&self, formats: &Formats) -> Option<BackendVersion> {
        self.strategy
            .clone()
            .or_else(|| formats.of_record(&self.commit.as_ref()?.file))
    }

    /// The same after keys were removed: `new` has the files that it belongs to now, `json` is `metadata.json`, and `copies` are the files that stay.
    pub fn without(self, new: Self, json: Option<&(Name, Bytes)>, copies: &[Name]) -> Self {
        let copies: BTreeSet<&str> = copies.iter().map(Name::as_str).collect();
        let stays = |sums: Vec<FileSum>| {
            let sums = sums.into_iter();
            sums.filter(|sum| copies.contains(&*sum.file))
                .collect::<Vec<_>>()
        };
        let mut records = new.records;
        records.extend(json.map(FileSum::of));
        records.extend(stays(self.records));
        Self {
            commit: new.commit,
            metadata: new.metadata,
            records,
            data: stays(self.data),
            schema: SCHEMA,
            ..self
        }
    }

    /// Notes the sums of the files that were written.
    pub fn note(&mut self, written: impl IntoIterator<Item = FileSum>, formats: &Formats) {
        let noted: BTreeSet<String> = self.names().into_iter().collect();
        let mut written: Vec<FileSum> = written.into_iter().collect();
        // Threads write them in any order.
        written.sort_by(|a, b| a.file.cmp(&b.file));
        let (records, data): (Vec<_>, Vec<_>) = written
            .into_iter()
            .filter(|sum| !noted.contains(&sum.file))
            // Ranks that plan alone write their own records.
            .partition(|sum| formats.of_record(&sum.file).is_some());
        self.records.extend(records);
        self.records.sort_by(|a, b| a.file.cmp(&b.file));
        self.records.truncate(MOST_FILES);
        let every = data.len().div_ceil(MOST_DATA).max(1);
        self.data = data.into_iter().step_by(every).collect();
    }

    /// The text, with its own digest at the end.
    pub fn to_bytes(&self) -> Bytes {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.truncate(text.len().saturating_sub(1));
        let digest = hex(&Sha256::digest(&text));
        text.extend_from_slice(format!("{OWN}{digest}\"}}").as_bytes());
        text.into()
    }

    /// Parses the text.
    ///
    /// # Errors
    /// It is not as it was written, or of a later version.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let damaged = |what: &str| StrategyError::corrupt(SIDECAR, None, what);
        let me: Self = serde_json::from_slice(text).map_err(|e| damaged(&e.to_string()))?;
        match (me.schema, signed(text)) {
            (_, Some(false)) => Err(damaged("its bytes do not have the SHA-256 that it says")),
            (SCHEMA, None) => Err(damaged("it does not end with its own SHA-256")),
            (1 | SCHEMA, _) => Ok(me),
            (other, _) => Err(StrategyError::Unsupported {
                strategy: SIDECAR.into(),
                what: format!("schema {other} (this version knows {SCHEMA})"),
            }),
        }
    }

    /// The sidecar of a place, whatever format record it belongs to, and also if it is damaged. Whoever removes something because of it
    /// reads it again, and says why nothing is removed.
    pub async fn any(store: &Arc<dyn Store>) -> Option<Self> {
        serde_json::from_slice(&bytes(store).await.ok()??).ok()
    }

    /// The sidecar in this folder, or else directly in the place, whether it belongs to the checkpoint or not.
    ///
    /// # Errors
    /// Its bytes are damaged, or something else has its name; what the store says.
    pub async fn own(
        store: &Arc<dyn Store>,
        folder: Option<&Name>,
        seen: &Seen,
    ) -> Result<Option<Self>> {
        let found = match in_folder(store, folder).await? {
            Some(found) => Some(found),
            None => seen.or_read(store).await?,
        };
        found.map(|bytes| Self::parse(&bytes)).transpose()
    }

    /// The sidecar of a checkpoint whose data files lie in this folder, and the reason if it was ignored. It lies with them, or directly in
    /// the place.
    pub async fn read(
        store: &Arc<dyn Store>,
        formats: &Formats,
        folder: Option<&Name>,
        seen: &Seen,
    ) -> (Option<Self>, Option<String>) {
        if let Ok(Some(bytes)) = in_folder(store, folder).await
            && let (Some(me), _) = Self::parsed(bytes, store, formats, seen).await
        {
            return (Some(me), None);
        }
        match seen.or_read(store).await {
            Ok(Some(bytes)) => Self::parsed(bytes, store, formats, seen).await,
            Ok(None) => (None, None),
            Err(e) => (None, Some(format!("{SIDECAR} is ignored: {e}"))),
        }
    }

    async fn parsed(
        bytes: Bytes,
        store: &Arc<dyn Store>,
        formats: &Formats,
        seen: &Seen,
    ) -> (Option<Self>, Option<String>) {
        let me = match Self::parse(&bytes) {
            Ok(me) => me,
            Err(e) => return (None, Some(format!("{SIDECAR} is ignored: {e}"))),
        };
        let differing = me.differing(store, formats, seen).await;
        match me.is_bound() && matches!(differing, Ok(None)) {
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
    pub async fn unfinished(&self, store: &Arc<dyn Store>) -> Result<Option<String>> {
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
    pub async fn belongs(&self, store: &Arc<dyn Store>, formats: &Formats) -> bool {
        let nothing = Seen::default();
        let differing = self.differing(store, formats, &nothing);
        self.is_bound() && matches!(differing.await, Ok(None))
    }

    /// The first of the files that it belongs to that is not there, or has changed. This hashes all of them.
    ///
    /// # Errors
    /// What the store says.
    pub async fn differing(
        &self,
        store: &Arc<dyn Store>,
        formats: &Formats,
        seen: &Seen,
    ) -> Result<Option<String>> {
        // All together are no longer than one may be.
        let mut room = OTHER_RECORD;
        for of in self.files() {
            let Ok(name) = Name::new(&*of.file) else {
                return Ok(Some(of.file.clone()));
            };
            if self.commit.is_none() {
                let len = store.len(&name).await?;
                let Some(left) = len.and_then(|len| room.checked_sub(len)) else {
                    return Ok(Some(of.file.clone()));
                };
                room = left;
            }
            let digest = match &seen.record {
                Some((record, digest)) if *record == name => Some(digest.clone()),
                _ => sha256(store, &name, formats).await?,
            };
            if digest.as_ref() != Some(&of.sha256) {
                return Ok(Some(of.file.clone()));
            }
        }
        Ok(None)
    }
}

/// What opening has read, where requests are expensive.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The bytes of the sidecar directly in the place.
    sidecar: Option<Bytes>,
    /// The format record of the default format, and its digest.
    record: Option<(Name, String)>,
}

impl Seen {
    /// `known` returns what was read of a file, and `record` is the name of the format record among them.
    pub fn of(known: impl Fn(&Name) -> Option<Bytes>, record: Option<Name>) -> Self {
        let sidecar = Name::new(SIDECAR).ok().and_then(|name| known(&name));
        let record = record.and_then(|name| {
            let digest = hex(&Sha256::digest(known(&name)?));
            Some((name, digest))
        });
        Self { sidecar, record }
    }

    async fn or_read(&self, store: &Arc<dyn Store>) -> Result<Option<Bytes>> {
        match &self.sidecar {
            Some(bytes) => Ok(Some(bytes.clone())),
            None => bytes(store).await,
        }
    }
}

async fn in_folder(store: &Arc<dyn Store>, folder: Option<&Name>) -> Result<Option<Bytes>> {
    match folder {
        Some(folder) => read_small(store, &folder.join(&Name::new(SIDECAR)?)).await,
        None => Ok(None),
    }
}

async fn bytes(store: &Arc<dyn Store>) -> Result<Option<Bytes>> {
    let mut found = None;
    for name in [SIDECAR, OF_PREFIX] {
        if found.is_none() {
            found = read_small(store, &Name::new(name)?).await?;
        }
    }
    Ok(found)
}
