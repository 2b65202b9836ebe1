use crate::{
    Durability, Entry, FileBody, Name, Progress, Result, StorageError, Transaction, Written,
    WrittenExtent,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The most bytes of a name in a file system.
#[cfg(feature = "local")]
const NAME_MAX: usize = 255;

/// The transaction of a dry run: it records names and lengths of files, and writes none.
///
/// It pulls no bytes from extents, so receipts are empty and the length of an extent that is compressed on the way is its maximum.
#[derive(Debug, Default)]
pub struct DryTransaction {
    folder: Option<Name>,
    /// The most bytes of a part of a name.
    longest_part: Option<usize>,
    /// Lengths by name.
    files: Mutex<BTreeMap<Name, u64>>,
}

impl DryTransaction {
    /// A dry run of a version whose data files go into `folder` ([`Transaction::folder`]).
    pub fn new(folder: Option<Name>) -> Self {
        Self {
            folder,
            ..Self::default()
        }
    }

    /// A dry run in a directory.
    #[cfg(feature = "local")]
    pub(crate) fn in_directory() -> Self {
        Self {
            longest_part: Some(NAME_MAX),
            ..Self::default()
        }
    }

    /// Fails if a file can't have this name.
    fn fits(&self, name: &Name) -> Result<()> {
        let Some(most) = self.longest_part else {
            return Ok(());
        };
        match name.as_str().split('/').find(|part| part.len() > most) {
            None => Ok(()),
            Some(part) => Err(StorageError::invalid(format!(
                "the name of a file or folder would have {} bytes, and file systems allow {most}: {}",
                part.len(),
                reshard_model::shortened(part)
            ))),
        }
    }

    /// A dry run of a version that has begun, which is rolled back.
    pub(crate) async fn in_place_of(begun: Arc<dyn Transaction>) -> Result<Arc<dyn Transaction>> {
        begun.rollback().await?;
        Ok(Arc::new(Self::new(begun.folder())))
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Name, u64>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file as it would be written, without reading its data.
async fn measure(file: FileBody) -> Result<Written> {
    let name = file.name.clone();
    let extents = match file.source {
        crate::Source::Extents(extents) => extents,
        crate::Source::CopyOf { store, name: of } => {
            return Ok(Written {
                name,
                bytes: crate::body::whole(&*store, &of).await?,
                extents: Vec::new(),
            });
        }
    };
    let too_long = || StorageError::invalid(format!("{name} would have more than 2^64 bytes"));
    let (mut at, mut written) = (0u64, Vec::with_capacity(extents.len()));
    for extent in extents {
        let end = at
            .checked_add(extent.length().at_most())
            .ok_or_else(too_long)?;
        written.push(WrittenExtent {
            range: at..end,
            ..WrittenExtent::default()
        });
        at = end;
    }
    Ok(Written {
        name,
        bytes: at,
        extents: written,
    })
}

#[async_trait]
impl Transaction for DryTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        _: Durability,
        _: Progress,
    ) -> Result<Vec<Written>> {
        let mut all = Vec::with_capacity(files.len());
        for file in files {
            self.fits(&file.name)?;
            let written = measure(file).await?;
            let Entry { name, bytes } = written.entry();
            if self.files().insert(name, bytes).is_some() {
                let what = format!("{} would be written twice", written.name);
                return Err(StorageError::invalid(what));
            }
            all.push(written);
        }
        Ok(all)
    }

    /// The folder, with which another rank makes its own dry run.
    fn place(&self) -> Option<String> {
        self.folder.as_ref().map(Name::to_string)
    }

    fn folder(&self) -> Option<Name> {
        self.folder.clone()
    }

    async fn commit(&self, _: Option<(Name, Bytes)>, _: &[Entry], _: Durability) -> Result<()> {
        Err(StorageError::unsupported(
            "committing a dry run",
            "it has written nothing",
        ))
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let files = self.files();
        let entry = |(name, bytes): (&Name, &u64)| Entry {
            name: name.clone(),
            bytes: *bytes,
        };
        Ok(files.iter().map(entry).collect())
    }

    async fn rollback(&self) -> Result<()> {
        Ok(())
    }
}
