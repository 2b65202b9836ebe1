//! One bucket, and how it is asked.

use crate::{
    fault::{self, Budget},
    runtime::{Net, Task},
    scheme::Service,
    unfinished::Uploads,
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetRange, ListResult, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult,
    list::{PaginatedListOptions, PaginatedListStore},
    path::{DELIMITER, Path},
};
use reshard_storage::{Hints, Result, StorageError};
use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Parts of uploads wait for a share of memory in units of so many bytes.
const UNIT: u64 = 64 << 10;

/// S3 copies at most so many bytes with one request.
pub(crate) const MAX_COPY: u64 = 5 << 30;

/// One bucket, as the client of a service reaches it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// What of the settings says which bucket it is, beside its URL; empty if nothing does, or nobody knows.
    pub(crate) site: String,
    /// Unfinished uploads, if the service can tell them.
    pub(crate) uploads: Option<Arc<dyn Uploads>>,
    /// Lists objects whose names begin with any text, if the client and the service can.
    pub(crate) pages: Option<Pages>,
}

/// A client that lists objects whose names begin with any text.
#[derive(Clone)]
pub(crate) struct Pages(pub(crate) Arc<dyn PaginatedListStore>);

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

impl From<Arc<dyn ObjectStore>> for Bucket {
    fn from(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            store,
            site: String::new(),
            uploads: None,
            pages: None,
        }
    }
}

/// A client of one bucket. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) bucket: Bucket,
    pub(crate) net: Net,
    pub(crate) service: Service,
    pub(crate) budget: Budget,
    pub(crate) hints: Hints,
    /// The memory of all uploads through this client.
    memory: Arc<Semaphore>,
    units: u32,
    /// Whether the bucket exists, so that an object that is not found is missing itself.
    bucket_is_known: Arc<AtomicBool>,
}

/// What came of a request: what the client of the service says, or that the work was stopped.
pub(crate) type Answer<T> = Result<object_store::Result<T>>;

impl Client {
    pub(crate) fn new(
        bucket: impl Into<Bucket>,
        net: Net,
        service: Service,
        budget: Budget,
        hints: Hints,
    ) -> Self {
        let bytes = hints.part_size.saturating_mul(hints.concurrency as u64);
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX >> 4);
        let units = units.clamp(1, u32::MAX >> 4);
        Self {
            bucket: bucket.into(),
            net,
            service,
            budget,
            hints,
            memory: Arc::new(Semaphore::new(units as usize)),
            units,
            bucket_is_known: Arc::default(),
        }
    }

    /// Waits until so many bytes may be held in memory. A single part that is larger than all of it waits for all of it.
    pub(crate) async fn memory(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let wanted = units.clamp(1, self.units);
        let permit = Arc::clone(&self.memory).acquire_many_owned(wanted).await;
        permit.map_err(|_| StorageError::Internal {
            what: "the memory of uploads is closed".into(),
        })
    }

    /// Starts a request.
    pub(crate) fn ask<T, F>(
        &self,
        request: impl FnOnce(Arc<dyn ObjectStore>) -> F,
    ) -> Task<object_store::Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        self.net.start(request(Arc::clone(&self.bucket.store)))
    }

    /// The error of a request, with what was being done to what.
    pub(crate) fn error(
        &self,
        action: &'static str,
        url: impl Into<String>,
        e: object_store::Error,
    ) -> StorageError {
        fault::explain(action, url.into(), e, self.service, &self.budget)
    }

    /// Puts an object at once.
    pub(crate) async fn put(
        &self,
        to: Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> Answer<PutResult> {
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        self.ask(|store| async move { store.put_opts(&to, payload, options).await })
            .await
    }

    /// Whether the service copies so many bytes with one request.
    pub(crate) fn can_copy(&self, bytes: u64) -> bool {
        self.service != Service::S3 || bytes <= MAX_COPY
    }

    /// Copies an object on the server.
    pub(crate) async fn copy(&self, from: Path, to: Path, mode: CopyMode) -> Answer<()> {
        let options = CopyOptions {
            mode,
            ..CopyOptions::default()
        };
        self.ask(|store| async move { store.copy_opts(&from, &to, options).await })
            .await
    }

    /// A whole object; `None` if there is none.
    pub(crate) async fn get(&self, path: Path) -> Answer<Option<Bytes>> {
        let read = self.ask(|store| async move { store.get(&path).await?.bytes().await });
        Ok(match read.await? {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if fault::is_missing_object(&e) => Ok(None),
            Err(e) => Err(e),
        })
    }

    /// What is known of an object; `None` if there is none.
    ///
    /// The answer to a request for the head alone has no body, so it does not say whether a token has expired, or the bucket is missing. If that may be,
    /// a byte is read: that answer says it.
    pub(crate) async fn head(&self, of: Path, tag: Option<String>) -> Answer<Option<ObjectMeta>> {
        let head = GetOptions {
            head: true,
            if_match: tag.clone(),
            ..GetOptions::default()
        };
        let byte = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            if_match: tag,
            ..GetOptions::default()
        };
        let get = |options| {
            let of = of.clone();
            self.ask(|store| async move { store.get_opts(&of, options).await })
        };
        // Nothing is behind the answers of a web server but a status.
        let gives_reasons = self.service != Service::Http;
        let found = if gives_reasons && !self.bucket_is_known.load(Ordering::Relaxed) {
            match get(byte).await? {
                // An empty object has no byte.
                Err(e) if fault::is_no_range(&e) => get(head).await?,
                found => found,
            }
        } else {
            match get(head).await? {
                Err(e)
                    if gives_reasons
                        && fault::has_no_reason(&e)
                        && !fault::is_missing_object(&e) =>
                {
                    match get(byte).await? {
                        Err(no_byte) if fault::is_no_range(&no_byte) => Err(e),
                        found => found,
                    }
                }
                found => found,
            }
        };
        let missing = matches!(&found, Err(e) if fault::is_missing_object(e));
        if missing || found.is_ok() {
            self.bucket_is_known.store(true, Ordering::Relaxed);
        }
        Ok(match found {
            Ok(found) => Ok(Some(found.meta)),
            Err(_) if missing => Ok(None),
            Err(e) => Err(e),
        })
    }

    /// The objects and folders directly in a folder.
    pub(crate) async fn list_one(&self, folder: Option<Path>) -> Answer<ListResult> {
        self.ask(|store| async move { store.list_with_delimiter(folder.as_ref()).await })
            .await
    }

    /// The objects whose names begin so, and have no slash after that. `None` if nobody can be asked for these alone.
    pub(crate) async fn list_beginning(&self, prefix: String) -> Answer<Option<Vec<ObjectMeta>>> {
        let Some(Pages(pages)) = self.bucket.pages.clone() else {
            return Ok(Ok(None));
        };
        self.ask(|_| async move {
            let (mut all, mut token) = (Vec::new(), None);
            loop {
                let options = PaginatedListOptions {
                    delimiter: Some(DELIMITER.into()),
                    page_token: token,
                    ..PaginatedListOptions::default()
                };
                let page = pages.list_paginated(Some(&prefix), options).await?;
                all.extend(page.result.objects);
                token = page.page_token;
                if token.is_none() {
                    return Ok(Some(all));
                }
            }
        })
        .await
    }

    /// All objects in a folder and below it.
    pub(crate) async fn list_all(&self, folder: Option<Path>) -> Answer<Vec<ObjectMeta>> {
        self.ask(|store| async move { store.list(folder.as_ref()).try_collect().await })
            .await
    }

    /// All objects below a folder, if there are at most so many. It reads no more answers than those with one object more.
    pub(crate) async fn list_few(
        &self,
        folder: Option<Path>,
        most: usize,
    ) -> Answer<Option<Vec<ObjectMeta>>> {
        self.ask(move |store| async move {
            let all = store.list(folder.as_ref()).take(most + 1);
            let all: Vec<ObjectMeta> = all.try_collect().await?;
            Ok((all.len() <= most).then_some(all))
        })
        .await
    }

    /// Removes objects. It is no error if one does not exist.
    ///
    /// Some services fail a request for several objects because of one that is not there. So what was not confirmed is removed one by one. The first
    /// object that is there and can't be removed ends that.
    pub(crate) async fn delete(&self, paths: Vec<Path>) -> Answer<()> {
        if paths.is_empty() {
            return Ok(Ok(()));
        }
        self.ask(|store| async move {
            let mut left: BTreeSet<Path> = paths.iter().cloned().collect();
            let all = stream::iter(paths.into_iter().map(Ok)).boxed();
            let mut removed = store.delete_stream(all);
            while let Some(outcome) = removed.next().await {
                match outcome {
                    Ok(path) => drop(left.remove(&path)),
                    Err(e) if fault::is_missing_object(&e) => {}
                    Err(e) => tracing::debug!("objects could not be removed together: {e}"),
                }
            }
            for path in left {
                match store.delete(&path).await {
                    Ok(()) => {}
                    Err(e) if fault::is_missing_object(&e) => {}
                    Err(e) => match store.head(&path).await {
                        Err(gone) if fault::is_missing_object(&gone) => {}
                        _ => return Err(e),
                    },
                }
            }
            Ok(())
        })
        .await
    }
}
