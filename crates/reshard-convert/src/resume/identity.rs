//! Identity of a conversion's source, used to decide whether a conversion can be resumed.

use crate::versions::{Inode, versions};
use reshard::{
    Checkpoint,
    storage::{Depth, Name, Result, StorageError},
    strategy::{StorageInfo, hex},
};
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeSet, io};

/// A digest of a text.
pub(super) fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// The digests of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceIdentity {
    /// A digest of its items, and of the lengths, times or tags of its files.
    pub(super) digest: String,
    /// A digest of the inodes of its files and the times at which their status changed; empty if they are not files of this machine.
    pub(super) inodes: String,
    /// The file whose status changed last.
    pub(super) newest: Option<Name>,
}

/// Identifies the items and the versions of the files of a source. No tensor is read. `None` if the place gives neither tags nor
/// times of its files: files of equal lengths could not be told apart.
pub(super) async fn source_identity(source: &Checkpoint) -> Result<Option<SourceIdentity>> {
    let mut hasher = Sha256::new();
    let mut add = |text: &dyn std::fmt::Debug| hasher.update(format!("{text:?}\n"));
    add(&(source.url(), source.backend(), env!("CARGO_PKG_VERSION")));
    for t in source.tensors() {
        let parts = |parts: &[StorageInfo]| -> Vec<_> {
            parts
                .iter()
                .map(|p| (p.file.clone(), p.range.clone()))
                .collect()
        };
        add(&(t.key(), t.dtype(), t.shape()));
        for chunk in t.chunks() {
            add(&(chunk.region.to_string(), parts(&chunk.parts)));
        }
    }
    for key in source.objects() {
        for part in source.object_parts(key) {
            add(&(key, part.file, part.range));
        }
    }
    let store = &**source.store();
    let Some(seen) = versions(store, &names(source).await?).await? else {
        return Ok(None);
    };
    for (name, version) in &seen {
        add(&(name, version.bytes, &version.tag));
    }
    let inodes: Vec<(&Name, Inode)> = seen
        .iter()
        .filter_map(|(name, version)| Some((name, version.inode?)))
        .collect();
    let newest = inodes
        .iter()
        .max_by_key(|(_, (_, seconds, nanos))| (*seconds, *nanos));
    Ok(Some(SourceIdentity {
        digest: hex(&hasher.finalize()),
        newest: newest.map(|(name, _)| (*name).clone()),
        inodes: match inodes.is_empty() {
            true => String::new(),
            false => digest(&format!("{inodes:?}")),
        },
    }))
}

/// The files of a source: those directly in its place, and those that hold items.
async fn names(source: &Checkpoint) -> Result<BTreeSet<Name>> {
    let items = source.item_files().into_iter();
    let mut names: BTreeSet<Name> = items.filter_map(|n| Name::new(n).ok()).collect();
    match source.store().list(None, Depth::One).await {
        Ok(top) => names.extend(top.files.into_iter().map(|e| e.name)),
        // What nobody can list has the files that its metadata and its format name.
        Err(StorageError::Unsupported { .. }) => {
            let error = |e: reshard::Error| {
                StorageError::io("look at the files of", source.url(), io::Error::other(e))
            };
            let files = source.files().await.map_err(error)?;
            names.extend(files.into_iter().map(|e| e.name));
        }
        Err(e) => return Err(e),
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use futures::executor::block_on;
    use reshard::{
        OpenOptions, StateDict,
        storage::{
            Among, Head, IfExists, Listing, Store, StoreExt as _, Tagged, Tags, Transaction,
        },
    };
    use reshard_storage::testkit::VersionedStore;
    use std::{
        ops::Range,
        sync::Arc,
        time::{Duration, SystemTime, UNIX_EPOCH},
    };

    /// A place that tells of its files what a test says.
    #[derive(Clone, Debug)]
    struct Told {
        inner: VersionedStore,
        /// The files of one request, if there are tags.
        among: Option<Among>,
        /// Whether it tells of files in folders one by one all the same.
        long_folders: bool,
        /// What all files have, but one.
        tag: &'static str,
        time: SystemTime,
        other: Option<(Name, &'static str, SystemTime)>,
    }

    impl Told {
        fn of(&self, name: &Name) -> (&'static str, SystemTime) {
            match &self.other {
                Some((other, tag, time)) if other == name => (*tag, *time),
                _ => (self.tag, self.time),
            }
        }
    }

    #[async_trait]
    impl Store for Told {
        fn url(&self) -> String {
            self.inner.url()
        }
        fn hints(&self) -> reshard::storage::Hints {
            self.inner.hints()
        }
        async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
            self.inner.read(name, range).await
        }
        async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
            self.inner.list(below, depth).await
        }
        async fn head(&self, name: &Name) -> Result<Option<Head>> {
            let head = self.inner.head(name).await?;
            Ok(head.map(|head| Head::new(head.bytes, Some(self.of(name).1))))
        }
        async fn remove(&self, names: &[Name]) -> Result<()> {
            self.inner.remove(names).await
        }
        async fn tags(&self, asked: &Name) -> Result<Option<Tags>> {
            let Some(mut among) = self.among else {
                return Ok(None);
            };
            if self.long_folders && !asked.folder().is_empty() {
                among = Among::File;
            }
            let mut files = self.inner.files().await?;
            files.retain(|e| match among {
                Among::Place => true,
                Among::Folder => e.name.folder() == asked.folder(),
                Among::File => e.name == *asked,
            });
            let tagged = files.into_iter().map(|e| {
                let (tag, time) = self.of(&e.name);
                Tagged::new(e.name, Head::new(e.bytes, Some(time)), tag)
            });
            Ok(Some(Tags::new(tagged.collect(), among)))
        }
        async fn begin(&self, attempt: &str, how: IfExists) -> Result<Arc<dyn Transaction>> {
            self.inner.begin(attempt, how).await
        }
        async fn join(&self, attempt: &str, at: Option<&str>) -> Result<Arc<dyn Transaction>> {
            self.inner.join(attempt, at).await
        }
    }

    /// A checkpoint with files directly in its place and in a folder.
    fn saved(among: Option<Among>, time: SystemTime) -> Told {
        let inner = VersionedStore::new();
        let mut state = StateDict::new();
        for key in ["a", "b", "c"] {
            let tensor = reshard::Tensor::from_vec(&[1], vec![1u8]).unwrap();
            state.insert(key, tensor);
        }
        let save = reshard::save(&state, "versioned://source")
            .dialect(reshard::Dialect::Dcp)
            .strategy(reshard::torch_dist::TorchDistConfig::new().with_file_per_item(true))
            .store(Arc::new(inner.clone()));
        block_on(async { save.await }).unwrap();
        Told {
            inner,
            among,
            long_folders: false,
            tag: "1",
            time,
            other: None,
        }
    }

    fn digest_of(told: &Told) -> Option<SourceIdentity> {
        let open = OpenOptions::new().store(Arc::new(told.clone()));
        let source = block_on(open.open("told://source")).unwrap();
        block_on(source_identity(&source)).unwrap()
    }

    /// It is another one for each of its files that has changed, and only then.
    fn notices_each_file(told: &Told, tag: &'static str, time: SystemTime) {
        let before = digest_of(told).unwrap();
        assert_eq!(digest_of(told).as_ref(), Some(&before));
        let mut files = block_on(told.inner.files()).unwrap();
        // In a folder with the name of an attempt it never changes.
        files.retain(|e| !e.name.as_str().ends_with(reshard::SIDECAR));
        assert!(files.iter().any(|e| e.name.folder().is_empty()));
        assert!(files.iter().any(|e| !e.name.folder().is_empty()));
        for file in files {
            let changed = Told {
                other: Some((file.name.clone(), tag, time)),
                ..told.clone()
            };
            assert_ne!(digest_of(&changed), Some(before.clone()), "{}", file.name);
        }
    }

    #[test]
    fn a_source_whose_tags_have_changed_is_another_one_however_many_files_a_request_tells() {
        for among in [Among::Place, Among::Folder, Among::File] {
            notices_each_file(&saved(Some(among), UNIX_EPOCH), "2", UNIX_EPOCH);
        }
    }

    #[test]
    fn files_of_a_folder_are_asked_for_one_by_one_where_a_place_tells_only_of_others_together() {
        let told = Told {
            long_folders: true,
            ..saved(Some(Among::Folder), UNIX_EPOCH)
        };
        notices_each_file(&told, "2", UNIX_EPOCH);
    }

    #[test]
    fn without_tags_times_tell_and_without_times_nobody_knows() {
        let time = UNIX_EPOCH + Duration::from_secs(1);
        notices_each_file(&saved(None, time), "2", time + Duration::from_nanos(1));
        assert_eq!(digest_of(&saved(None, UNIX_EPOCH)), None);
    }
}
