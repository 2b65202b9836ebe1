//! The versions of files, by which is known whether somebody has replaced them.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use reshard::storage::{KnownTags, Name, Result, StorageError, Store};
use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    sync::{Mutex, PoisonError},
    time::UNIX_EPOCH,
};

/// The number of a file's inode, and its change time (ctime) in seconds and nanoseconds. A replaced file has another number, and each write changes the
/// time, even if the modification time is set back afterwards.
pub(crate) type Inode = (u64, i64, i64);

fn inode(file: &File) -> io::Result<Inode> {
    let metadata = file.metadata()?;
    Ok((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The version of a file.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) bytes: u64,
    /// A tag that no other version of the file has, or the time of its last modification.
    pub(crate) tag: String,
    /// `None` for a file that is not in a file system of this machine.
    pub(crate) inode: Option<Inode>,
}

impl Version {
    /// Whether the file was neither replaced nor written. A hard link or another mode changes the time of its status alone.
    pub(crate) fn has_bytes_of(&self, other: &Self) -> bool {
        let number = |inode: Option<Inode>| inode.map(|(number, ..)| number);
        (self.bytes, &self.tag, number(self.inode))
            == (other.bytes, &other.tag, number(other.inode))
    }
}

pub(crate) type Versions = Vec<(Name, Version)>;

/// The versions of files, by their tags, or by their times if the store has no tags.
pub(crate) async fn versions(
    store: &dyn Store,
    names: &BTreeSet<Name>,
) -> Result<Option<Versions>> {
    match tagged(store, names).await? {
        None => times(store, names).await,
        tagged => Ok(tagged),
    }
}

/// The versions of files by their tags. From then on the store reads these versions and no others. `None` if it has no tags.
pub(crate) async fn tagged(store: &dyn Store, names: &BTreeSet<Name>) -> Result<Option<Versions>> {
    let learned = Mutex::new(KnownTags::default());
    let locked = || learned.lock().unwrap_or_else(PoisonError::into_inner);
    let mut folders = BTreeSet::new();
    let of_folders = names.iter().filter(|name| folders.insert(name.folder()));
    // One file may tell of all, and one of a folder of the others in it. A store may tell so of some folders alone.
    let rounds: [Vec<Name>; 3] = [
        names.first().cloned().into_iter().collect(),
        of_folders.cloned().collect(),
        names.iter().cloned().collect(),
    ];
    for round in rounds {
        let asks = stream::iter(round).map(|name| async move {
            if !locked().has(&name) {
                let tags = store.tags(&name).await?;
                locked().learn(&name, tags);
            }
            Ok::<(), StorageError>(())
        });
        let asks = asks.buffered(store.hints().concurrency.max(1));
        asks.try_collect::<()>().await?;
    }
    let learned = learned.into_inner().unwrap_or_else(PoisonError::into_inner);
    if learned.is_untagged() {
        return Ok(None);
    }
    let version = |name: &Name| {
        let (bytes, tag) = learned
            .get(name)
            .map_or_else(Default::default, |t| (t.head.bytes, t.tag.clone()));
        let inode = None;
        (name.clone(), Version { bytes, tag, inode })
    };
    Ok(Some(names.iter().map(version).collect()))
}

async fn times(store: &dyn Store, names: &BTreeSet<Name>) -> Result<Option<Versions>> {
    let versions = stream::iter(names.clone()).map(|name| timed(store, name));
    let versions = versions.buffered(store.hints().concurrency.max(1));
    let versions: Vec<Option<(Name, Version)>> = versions.try_collect().await?;
    Ok(versions.into_iter().collect())
}

/// The version of a file by its time, and by its inode if it is a file of this machine. `None` if the store has no time.
pub(crate) async fn timed(store: &dyn Store, name: Name) -> Result<Option<(Name, Version)>> {
    let Some(head) = store.head(&name).await? else {
        let absent = Version {
            bytes: 0,
            tag: String::new(),
            inode: None,
        };
        return Ok(Some((name, absent)));
    };
    let time = head
        .modified
        .and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    // Web servers without a time give the first one of all.
    let Some(time) = time.filter(|time| !time.is_zero()) else {
        return Ok(None);
    };
    let at = || format!("{}/{name}", store.url());
    let inode = match store.local_file(&name).await? {
        Some(file) => Some(inode(&file).map_err(|e| StorageError::io("look at", at(), e))?),
        None => None,
    };
    let version = Version {
        bytes: head.bytes,
        tag: format!("{time:?}"),
        inode,
    };
    Ok(Some((name, version)))
}
