//! `reshard.json`: what reshard adds to a format of others, in a file that they ignore.

use crate::{
    control::{hex, sha256},
    formats::Formats,
};
use bytes::Bytes;
use reshard_model::Path;
use reshard_storage::{Name, Store};
use reshard_strategy::{BackendVersion, read_small};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Name of the file.
pub const SIDECAR: &str = "reshard.json";

/// What a checkpoint that reshard wrote says besides. It belongs to one commit record, and is ignored when that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sidecar {
    /// Version of this file's form.
    pub schema: u32,
    /// Program and version.
    pub writer: String,
    /// The file that it belongs to.
    pub commit: Commit,
    /// Strategy of the sharded part, where nothing else in the checkpoint names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<BackendVersion>,
    /// Paths of dicts without entries, which PyTorch's format can't hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub empty_dicts: Vec<Path>,
    /// What the sharding policy that decided upon files said of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// A file and its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Its name.
    pub file: String,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

impl Sidecar {
    /// Says nothing yet but whose it is.
    pub(crate) fn new(file: &Name, bytes: &[u8]) -> Self {
        Self {
            schema: 1,
            writer: concat!("reshard ", env!("CARGO_PKG_VERSION")).into(),
            commit: Commit { file: file.to_string(), sha256: hex(&Sha256::digest(bytes)) },
            strategy: None,
            empty_dicts: Vec::new(),
            policy: None,
        }
    }

    /// The format that it names, or that the name of its commit record is of.
    pub(crate) fn format(&self, formats: &Formats) -> Option<BackendVersion> {
        self.strategy.clone().or_else(|| formats.of_record(&self.commit.file))
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// What lies there, whatever it belongs to.
    pub(crate) async fn any(store: &Arc<dyn Store>) -> Option<Self> {
        serde_json::from_slice(&bytes(store).await?).ok()
    }

    /// The sidecar of a checkpoint, and why it was ignored if it was.
    pub(crate) async fn read(store: &Arc<dyn Store>, formats: &Formats) -> (Option<Self>, Option<String>) {
        let Some(bytes) = bytes(store).await else { return (None, None) };
        let Ok(me) = serde_json::from_slice::<Self>(&bytes) else {
            return (
                None,
                Some(format!("{SIDECAR} is ignored: it is not in a form that this version knows")),
            );
        };
        match me.belongs(store, formats).await {
            true => (Some(me), None),
            false => (None, Some(format!("{SIDECAR} is ignored: it belongs to another {}", me.commit.file))),
        }
    }

    /// Whether the commit record that it belongs to lies there, unchanged: all of that is hashed.
    pub(crate) async fn belongs(&self, store: &Arc<dyn Store>, formats: &Formats) -> bool {
        let Ok(name) = Name::new(&*self.commit.file) else { return false };
        sha256(store, &name, formats).await.ok().flatten().is_some_and(|digest| digest == self.commit.sha256)
    }
}

async fn bytes(store: &Arc<dyn Store>) -> Option<Bytes> {
    read_small(store, &Name::new(SIDECAR).ok()?).await.ok()?
}
