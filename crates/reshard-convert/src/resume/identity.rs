//! What tells a source from what it was before.

use super::journal::hex;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reshard::{
    Checkpoint,
    storage::{Among, Depth, Head, Name, Result, StorageError, Store, Tagged, Tags},
    strategy::StorageInfo,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::UNIX_EPOCH,
};

/// A digest of a text.
pub(super) fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// A digest of what a source holds, and of which versions of its files. No tensor is read. `None` if the place gives neither tags nor
/// times of them: files of equal lengths could not be told apart.
pub(super) async fn source_digest(source: &Checkpoint) -> Result<Option<String>> {
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
    for version in seen {
        add(&version);
    }
    Ok(Some(hex(&hasher.finalize())))
}

/// A file with its length, and what no other version of it has.
type Version = (Name, u64, String);

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

/// The versions of files, by their tags, or by their times if the store has no tags.
async fn versions(store: &dyn Store, names: &BTreeSet<Name>) -> Result<Option<Vec<Version>>> {
    match tagged(store, names).await? {
        None => times(store, names).await,
        tagged => Ok(tagged),
    }
}

/// The folder of a file; empty for files directly in the place.
fn folder(name: &Name) -> &str {
    let path = name.as_str().rsplit_once('/');
    path.map_or("", |(folder, _)| folder)
}

async fn tagged(store: &dyn Store, names: &BTreeSet<Name>) -> Result<Option<Vec<Version>>> {
    let Some(first) = names.first() else {
        return Ok(Some(Vec::new()));
    };
    let Some(tags) = store.tags(first).await? else {
        return Ok(None);
    };
    // One name for each request that is still needed.
    let mut folders = BTreeSet::from([folder(first)]);
    let rest = names.iter().skip(1);
    let rest: Vec<&Name> = match tags.among {
        Among::Place => Vec::new(),
        Among::Folder => rest.filter(|name| folders.insert(folder(name))).collect(),
        Among::File => rest.collect(),
    };
    let rest: Vec<Name> = rest.into_iter().cloned().collect();
    let rest = stream::iter(rest).map(|name| async move { store.tags(&name).await });
    let rest = rest.buffered(store.hints().concurrency.max(1));
    let rest: Vec<Option<Tags>> = rest.try_collect().await?;
    let Some(rest) = rest.into_iter().collect::<Option<Vec<Tags>>>() else {
        return Ok(None);
    };
    let files = rest.into_iter().chain([tags]).flat_map(|t| t.files);
    let mut seen: BTreeMap<Name, (u64, String)> = files
        .map(|t: Tagged| (t.name, (t.head.bytes, t.tag)))
        .collect();
    let version = |name: &Name| {
        let (bytes, tag) = seen.remove(name).unwrap_or_default();
        (name.clone(), bytes, tag)
    };
    Ok(Some(names.iter().map(version).collect()))
}

async fn times(store: &dyn Store, names: &BTreeSet<Name>) -> Result<Option<Vec<Version>>> {
    let heads = stream::iter(names.clone());
    let heads = heads.map(|name| async move { store.head(&name).await.map(|head| (name, head)) });
    let heads = heads.buffered(store.hints().concurrency.max(1));
    let heads: Vec<(Name, Option<Head>)> = heads.try_collect().await?;
    let version = |(name, head): (Name, Option<Head>)| {
        let Some(head) = head else {
            return Some((name, 0, String::new()));
        };
        let time = head.modified?.duration_since(UNIX_EPOCH).ok();
        // Web servers without a time give the first one of all.
        let time = time.filter(|time| !time.is_zero())?;
        Some((name, head.bytes, format!("{time:?}")))
    };
    Ok(heads.into_iter().map(version).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use futures::executor::block_on;
    use reshard::{
        OpenOptions, StateDict,
        storage::{IfExists, Listing, StoreExt as _, Transaction},
    };
    use reshard_storage::testkit::VersionedStore;
    use std::{
        ops::Range,
        sync::Arc,
        time::{Duration, SystemTime},
    };

    /// A place that tells of its files what a test says.
    #[derive(Clone, Debug)]
    struct Told {
        inner: VersionedStore,
        /// The files of one request, if there are tags.
        among: Option<Among>,
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
            let Some(among) = self.among else {
                return Ok(None);
            };
            let mut files = self.inner.files().await?;
            files.retain(|e| match among {
                Among::Place => true,
                Among::Folder => folder(&e.name) == folder(asked),
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
        state.insert("step", 1);
        let save = reshard::save(&state, "versioned://source")
            .dialect(reshard::Dialect::Dcp)
            .store(Arc::new(inner.clone()));
        block_on(async { save.await }).unwrap();
        Told {
            inner,
            among,
            tag: "1",
            time,
            other: None,
        }
    }

    fn digest_of(told: &Told) -> Option<String> {
        let open = OpenOptions::new().store(Arc::new(told.clone()));
        let source = block_on(open.open("told://source")).unwrap();
        block_on(source_digest(&source)).unwrap()
    }

    /// It is another one for each of its files that has changed, and only then.
    fn notices_each_file(told: &Told, tag: &'static str, time: SystemTime) {
        let before = digest_of(told).unwrap();
        assert_eq!(digest_of(told).as_ref(), Some(&before));
        let mut files = block_on(told.inner.files()).unwrap();
        // In a folder with the name of an attempt it never changes.
        files.retain(|e| !e.name.as_str().ends_with(reshard::SIDECAR));
        assert!(files.iter().any(|e| folder(&e.name).is_empty()));
        assert!(files.iter().any(|e| !folder(&e.name).is_empty()));
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
    fn without_tags_times_tell_and_without_times_nobody_knows() {
        let time = UNIX_EPOCH + Duration::from_secs(1);
        notices_each_file(&saved(None, time), "2", time + Duration::from_nanos(1));
        assert_eq!(digest_of(&saved(None, UNIX_EPOCH)), None);
    }
}
