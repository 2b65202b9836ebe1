//! A store that knows some files: those that nearly every checkpoint is looked for by, read in one round of requests.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{join, join_all};
use reshard_storage::{Depth, Head, Listing, Name, Result, StorageError, Store};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What is known of a file.
#[derive(Clone, Debug)]
enum Found {
    Absent,
    Read(Bytes),
}

/// Reads pass through, except those of files that are known. It forgets them when the checkpoint is open.
#[derive(Clone, Debug)]
pub(crate) struct KnownStore {
    inner: Arc<dyn Store>,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    files: BTreeMap<Name, Found>,
    /// What lies directly in the place.
    top: Option<Listing>,
}

impl KnownStore {
    /// Reads the files `read`, each of which may have so many bytes, and looks whether those of `look` are there. All requests are made at
    /// once. A file whose request fails is not known, so whoever needs it gets the error.
    pub(crate) async fn of(inner: Arc<dyn Store>, read: &[(Name, u64)], look: &[Name]) -> Self {
        let reads = read.iter().map(|(name, max)| inner.read_all(name, *max));
        let heads = look.iter().map(|name| inner.head(name));
        let (reads, heads) = join(join_all(reads), join_all(heads)).await;
        let mut known = BTreeMap::new();
        for ((name, _), found) in read.iter().zip(reads) {
            match found {
                Ok(Some(bytes)) => known.insert(name.clone(), Found::Read(bytes)),
                Ok(None) => known.insert(name.clone(), Found::Absent),
                Err(_) => None,
            };
        }
        for (name, found) in look.iter().zip(heads) {
            if let Ok(None) = found {
                known.insert(name.clone(), Found::Absent);
            }
        }
        Self {
            inner,
            known: Arc::new(Mutex::new(Known {
                files: known,
                top: None,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, name: &Name) -> Option<Found> {
        let known = self.lock();
        let lacks = |top: &Listing| {
            let at = top.files.binary_search_by(|file| file.name.cmp(name));
            at.is_err() && !name.as_str().contains('/')
        };
        match known.files.get(name) {
            Some(found) => Some(found.clone()),
            None if known.top.as_ref().is_some_and(lacks) => Some(Found::Absent),
            None => None,
        }
    }

    /// Lists what lies directly in the place, if that is possible: one request then tells of all the names for which the formats look. Whoever lists the place
    /// gets the same answer.
    pub(crate) async fn list_top(&self) {
        if let Ok(listed) = self.inner.list(None, Depth::One).await {
            self.lock().top = Some(listed);
        }
    }

    /// The bytes of a file that was read.
    pub(crate) fn bytes(&self, name: &Name) -> Option<Bytes> {
        match self.known(name) {
            Some(Found::Read(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The bytes of a file, which is read if it is not known, and known from then on. `None` if there is none, or if its request fails: then whoever needs it
    /// gets the error.
    pub(crate) async fn learn(&self, name: &Name, max: u64) -> Option<Bytes> {
        if self.known(name).is_none()
            && let Ok(found) = self.inner.read_all(name, max).await
        {
            let found = found.map_or(Found::Absent, Found::Read);
            self.lock().files.insert(name.clone(), found);
        }
        self.bytes(name)
    }

    /// Whether a file is known to be missing.
    pub(crate) fn lacks(&self, name: &Name) -> bool {
        matches!(self.known(name), Some(Found::Absent))
    }

    /// Later reads see the files as they are then.
    pub(crate) fn forget(&self) {
        *self.lock() = Known::default();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner store
impl Store for KnownStore {
    reshard_storage::forward! {
        inner: url identity hints read read_ranges read_into remove pinned resolved of_kind tags local_file
            links begin begin_dry_run join recovery
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        match self.known(name) {
            None => self.inner.read_all(name, max).await,
            Some(Found::Absent) => Ok(None),
            Some(Found::Read(bytes)) if bytes.len() as u64 > max => Err(StorageError::Longer {
                path: format!("{}/{name}", self.url()),
                size: bytes.len() as u64,
                max,
            }),
            Some(Found::Read(bytes)) => Ok(Some(bytes)),
        }
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let known = match (below, depth) {
            (None, Depth::One) => self.lock().top.clone(),
            _ => None,
        };
        match known {
            Some(known) => Ok(known),
            None => self.inner.list(below, depth).await,
        }
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        match self.lacks(name) {
            true => Ok(None),
            false => self.inner.head(name).await,
        }
    }
}
