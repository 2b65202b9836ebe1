use crate::{
    Depth, Entry, Leftover, Listing, Name, Recovery, Removal, Result, StorageError, Store,
    UnfinishedUpload,
};
use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, future::ready, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

/// So many files of a folder are asked for one by one. For more of them the folder is listed.
const ONE_BY_ONE: usize = 2;

/// Functions that work with every [`Store`].
pub trait StoreExt: Store {
    /// All files, including those in subfolders, sorted by name.
    fn files(&self) -> impl Future<Output = Result<Vec<Entry>>> + Send {
        async { Ok(self.list(None, Depth::All).await?.files) }
    }

    /// All files. If nobody can list the place, those of these names that are there.
    fn files_or(
        &self,
        names: impl FnOnce() -> BTreeSet<Name> + Send,
    ) -> impl Future<Output = Result<Vec<Entry>>> + Send {
        async move {
            match self.files().await {
                Err(StorageError::Unsupported { .. }) => self.present(names()).await,
                listed => listed,
            }
        }
    }

    /// Those of these files that are there, in the order of their names. They are asked for one by one, several at a time.
    fn present(&self, names: BTreeSet<Name>) -> impl Future<Output = Result<Vec<Entry>>> + Send {
        async move {
            let heads = stream::iter(names).map(|name| async move {
                let bytes = self.len(&name).await.or_else(|e| match e {
                    // As in a listing: it is no file.
                    StorageError::NoFile { .. } | StorageError::LinkedDirectory { .. } => Ok(None),
                    e => Err(e),
                })?;
                Ok(bytes.map(|bytes| Entry { name, bytes }))
            });
            let found = heads.buffered(self.hints().concurrency.max(1));
            found
                .try_filter_map(|file| ready(Ok(file)))
                .try_collect()
                .await
        }
    }

    /// The same, with few requests where these are dear: a folder in which more than a few of them may lie is listed there, if that is possible.
    fn lengths(&self, names: BTreeSet<Name>) -> impl Future<Output = Result<Vec<Entry>>> + Send {
        async move {
            let mut of_folder: BTreeMap<Option<Name>, BTreeSet<Name>> = BTreeMap::new();
            for name in names {
                let folder = Name::new(name.folder()).ok();
                of_folder.entry(folder).or_default().insert(name);
            }
            let (mut found, mut others) = (Vec::new(), BTreeSet::new());
            for (folder, names) in of_folder {
                if names.len() <= ONE_BY_ONE || !self.hints().requests_are_dear() {
                    others.extend(names);
                    continue;
                }
                match self.list(folder.as_ref(), Depth::One).await {
                    Ok(listed) => {
                        let files = listed.files.into_iter();
                        found.extend(files.filter(|file| names.contains(&file.name)));
                    }
                    Err(StorageError::Unsupported { .. }) => others.extend(names),
                    Err(e) => return Err(e),
                }
            }
            found.extend(self.present(others).await?);
            found.sort();
            Ok(found)
        }
    }

    /// The files and folders directly in the place. Use it if the place may contain anything.
    fn top(&self) -> impl Future<Output = Result<Listing>> + Send {
        self.list(None, Depth::One)
    }

    /// The files and folders directly in the place. If nobody can list it, those of these files that are there.
    fn top_or(
        &self,
        names: impl FnOnce() -> BTreeSet<Name> + Send,
    ) -> impl Future<Output = Result<Listing>> + Send {
        async move {
            match self.top().await {
                Err(StorageError::Unsupported { .. }) => {
                    Ok(Listing::of(self.present(names()).await?))
                }
                listed => listed,
            }
        }
    }

    /// The length of a file; `None` if there is no such file.
    fn len(&self, name: &Name) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(self.head(name).await?.map(|head| head.bytes)) }
    }

    /// Whether there is such a file.
    fn exists(&self, name: &Name) -> impl Future<Output = Result<bool>> + Send {
        async { Ok(self.head(name).await?.is_some()) }
    }

    /// The time of a file's last change; `None` if there is no such file, or the store does not know.
    fn modified(&self, name: &Name) -> impl Future<Output = Result<Option<SystemTime>>> + Send {
        async { Ok(self.head(name).await?.and_then(|head| head.modified)) }
    }

    /// [`Recovery::leftovers`](crate::Recovery::leftovers). Empty if the store has no `Recovery`.
    fn leftovers(&self) -> impl Future<Output = Result<Vec<Leftover>>> + Send {
        recovery_of(self).leftovers()
    }

    /// [`Recovery::remove_leftover`](crate::Recovery::remove_leftover), if the store has a `Recovery`.
    fn remove_leftover(&self, left: &Leftover) -> impl Future<Output = Result<()>> + Send {
        async move { recovery_of(self).remove_leftover(left).await }
    }

    /// [`Recovery::removal`](crate::Recovery::removal). [`Removal::No`] if the store has no `Recovery`.
    fn removal(&self) -> Removal {
        recovery_of(self).removal()
    }

    /// [`Recovery::remove_version`](crate::Recovery::remove_version).
    ///
    /// # Errors
    /// As there, and [`Unsupported`](StorageError::Unsupported) if the store has no `Recovery`.
    fn remove_version(
        &self,
        attempt: &str,
        record: Option<&Name>,
        files: &[Name],
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            match self.recovery() {
                Some(recovery) => recovery.remove_version(attempt, record, files).await,
                None => Err(StorageError::unsupported(
                    format!("removing {}", self.url()),
                    "this store has no way to do it in one step",
                )),
            }
        }
    }

    /// [`Recovery::unfinished_uploads`](crate::Recovery::unfinished_uploads). Empty if the store has no `Recovery`.
    fn unfinished_uploads(&self) -> impl Future<Output = Result<Vec<UnfinishedUpload>>> + Send {
        recovery_of(self).unfinished_uploads()
    }

    /// [`Recovery::abort_upload`](crate::Recovery::abort_upload), if the store has a `Recovery`.
    fn abort_upload(&self, upload: &UnfinishedUpload) -> impl Future<Output = Result<()>> + Send {
        async move { recovery_of(self).abort_upload(upload).await }
    }

    /// [`Recovery::finish_replacing`](crate::Recovery::finish_replacing), if the store has a `Recovery`.
    fn finish_replacing(
        &self,
        left: &Leftover,
        files: &[Name],
    ) -> impl Future<Output = Result<()>> + Send {
        async move { recovery_of(self).finish_replacing(left, files).await }
    }
}

/// The recovery of a store where a crash leaves nothing.
struct NoRecovery;

#[async_trait]
impl Recovery for NoRecovery {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        Ok(Vec::new())
    }

    async fn remove_leftover(&self, _: &Leftover) -> Result<()> {
        Ok(())
    }
}

fn recovery_of(store: &(impl Store + ?Sized)) -> &dyn Recovery {
    store.recovery().unwrap_or(&NoRecovery)
}

impl<S: Store + ?Sized> StoreExt for S {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CountingStore, Hints, testkit::MemoryStore};
    use futures::executor::block_on;
    use std::sync::Arc;

    #[test]
    fn many_files_of_a_folder_are_found_by_a_listing_where_requests_are_dear() {
        let names = ["a", "f/1", "f/2", "f/3", "g/1", "g/2"];
        for (gap, requests, lists) in [(64 << 10, 1 + 1 + 3, 1), (4 << 10, 7, 0)] {
            let hints = Hints::default().with_coalesce_gap(gap);
            let store = MemoryStore::new().with_hints(hints);
            for (n, name) in names.iter().enumerate() {
                store.put(Name::new(*name).unwrap(), vec![0; n].into());
            }
            let store = CountingStore::new(Arc::new(store));
            let wanted = ["a", "f/1", "f/3", "f/none", "g/2", "g/none", "none"];
            let wanted = wanted.map(|name| Name::new(name).unwrap()).into();
            let found = block_on(store.lengths(wanted)).unwrap();
            let found: Vec<(&str, u64)> =
                found.iter().map(|e| (e.name.as_str(), e.bytes)).collect();
            assert_eq!(found, [("a", 0), ("f/1", 1), ("f/3", 3), ("g/2", 5)]);
            let counts = store.take();
            assert_eq!((counts.requests, counts.lists), (requests, lists));
        }
    }
}
