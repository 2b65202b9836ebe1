//! Writing one object: by one put if it is small, otherwise by a multipart upload whose parts run while the next are made.

use crate::{
    client::Client,
    fault,
    part_source::{Part, PartSource},
    runtime::Task,
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use object_store::{CopyMode, MultipartUpload, PutMode, PutPayload, path::Path};
use reshard_storage::{Length, Progress, Result, StorageError, WrittenExtent, works_here};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit};

/// How often an object is created, if the service does not say whether it was.
const TRIES: usize = 3;
/// Services take at most so many parts.
const MAX_PARTS: u64 = 10_000;
/// The largest part of a file whose length is not known beforehand. Memory is bounded, and the file too: 625 GiB.
const MAX_UNKNOWN_PART: u64 = 64 << 20;

/// What all files of one call share.
pub(crate) struct Job {
    pub(crate) client: Client,
    pub(crate) progress: Progress,
    /// Set when a file has failed, so that others need not go on.
    pub(crate) stop: AtomicBool,
    /// Whose turn it is to make a part, if parts are made on the thread that polls all files.
    turns: Option<Mutex<()>>,
}

/// A part, and what its file holds until it is sent.
struct Made<'j> {
    source: PartSource,
    part: Part,
    memory: OwnedSemaphorePermit,
    turn: Option<MutexGuard<'j, ()>>,
}

/// An object to write.
pub(crate) struct Target {
    pub(crate) path: Path,
    /// Where it lies until it is copied to its place, if nobody may write over what is there. Small ones are put there at once.
    pub(crate) staged: Option<Path>,
    /// Whether it was there when the version began, and so is of the version that is replaced. If it has the same bytes, it stays.
    pub(crate) was_there: bool,
    /// For messages.
    pub(crate) url: String,
}

/// What was written.
#[derive(Debug)]
pub(crate) struct Uploaded {
    pub(crate) bytes: u64,
    pub(crate) extents: Vec<WrittenExtent>,
    /// Whether this call has created the object. Otherwise it was there, with the same bytes, or nobody knows.
    pub(crate) created: bool,
}

/// The size of all parts but the last.
fn part_size(length: Length, preferred: u64) -> u64 {
    let preferred = preferred.max(1);
    let needed = length.at_most().div_ceil(MAX_PARTS);
    if needed <= preferred {
        return preferred;
    }
    // Whole MiB, because some services ask for round sizes.
    let needed = needed.div_ceil(1 << 20) << 20;
    match length {
        Length::Exact(_) => needed,
        Length::Unknown { .. } => needed.min(MAX_UNKNOWN_PART).max(preferred),
    }
}

impl Job {
    pub(crate) fn new(client: &Client, progress: Progress) -> Self {
        Self {
            client: client.clone(),
            progress,
            stop: AtomicBool::new(false),
            turns: works_here().then(Mutex::default),
        }
    }

    /// The next part of a file, and memory for it. `None` if this file need not go on.
    async fn make(&self, source: PartSource, size: u64, at_most: u64) -> Result<Option<Made<'_>>> {
        // Memory is taken before the part is made, so it is bounded whatever the source gives. But if parts are made on the
        // thread that polls all files, the source may wait for another rank, which may wait for memory. While it waits, it holds
        // up all files of this call. So none of them may have memory then, nor be next in the queue for it; only requests have
        // that run by themselves. One part is made without memory.
        let (turn, memory) = match &self.turns {
            Some(turns) => (Some(turns.lock().await), None),
            None => (None, Some(self.client.memory(at_most).await?)),
        };
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (source, part) = source.next(size).await?;
        let memory = match memory {
            Some(memory) => memory,
            None => self.client.memory(at_most).await?,
        };
        Ok(Some(Made {
            source,
            part,
            memory,
            turn,
        }))
    }

    /// Writes one object. `None` if it was stopped, because another one has failed.
    pub(crate) async fn write(
        &self,
        target: Target,
        source: PartSource,
        length: Length,
    ) -> Result<Option<Uploaded>> {
        if let Length::Exact(bytes) = length {
            self.fits(&target, bytes)?;
        }
        let size = part_size(length, self.client.hints.part_size);
        let Some(first) = self.make(source, size, length.at_most().min(size)).await? else {
            return Ok(None);
        };
        if !first.part.is_last {
            return self.multipart(&target, first, size).await;
        }
        let Made {
            source,
            part,
            memory,
            turn,
        } = first;
        let (client, bytes) = (self.client.clone(), part.bytes);
        let payload: PutPayload = part.blocks.into_iter().collect();
        let put = self.client.net.start(async move {
            let created = put_whole(&client, &target, payload).await;
            drop(memory);
            created
        });
        drop(turn);
        let created = put.await??;
        self.progress.add(bytes);
        Ok(Some(Uploaded {
            bytes,
            extents: source.written(),
            created,
        }))
    }

    async fn multipart(
        &self,
        target: &Target,
        mut made: Made<'_>,
        size: u64,
    ) -> Result<Option<Uploaded>> {
        let path = target.staged.as_ref().unwrap_or(&target.path);
        let mut upload = Upload::start(&self.client, path.clone(), target.url.clone()).await?;
        let (mut bytes, mut number) = (0u64, 1);
        let source = loop {
            let Made {
                source,
                part,
                memory,
                turn,
            } = made;
            bytes = bytes.saturating_add(part.bytes);
            let is_last = part.is_last;
            let added = match self.fits(target, bytes) {
                Ok(()) => upload.add(part, memory, &self.progress).await,
                Err(e) => Err(e),
            };
            if let Err(e) = added {
                return Err(upload.abort(e).await);
            }
            if is_last {
                break source;
            }
            drop(turn);
            number += 1;
            if number > MAX_PARTS {
                return Err(upload.abort(too_many_parts(target, bytes)).await);
            }
            made = match self.make(source, size, size).await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    upload.call_off().await;
                    return Ok(None);
                }
                Err(e) => return Err(upload.abort(e).await),
            };
        };
        if let Err(e) = upload.finish(&self.progress, bytes).await {
            return Err(upload.abort(e).await);
        }
        let created = match &target.staged {
            Some(staged) => copy_to(&self.client, staged, target, bytes).await?,
            None => true,
        };
        Ok(Some(Uploaded {
            bytes,
            extents: source.written(),
            created,
        }))
    }

    /// Whether a file may be so long.
    fn fits(&self, target: &Target, bytes: u64) -> Result<()> {
        if target.staged.is_none() || self.client.can_copy(bytes) {
            return Ok(());
        }
        Err(StorageError::unsupported(
            format!("writing more than 5 GiB to {}", target.url),
            "S3 copies at most 5 GiB at once, and a file whose name does not change from version to version is written by a \
             copy; save with smaller files, or in a format whose record names its data files",
        ))
    }
}

fn too_many_parts(target: &Target, bytes: u64) -> StorageError {
    StorageError::unsupported(
        format!("writing more than {bytes} bytes to {}", target.url),
        format!(
            "its length was not known beforehand, and an upload has at most {MAX_PARTS} parts; save with more files"
        ),
    )
}

/// Puts a small object at once. Whether it was created.
async fn put_whole(client: &Client, target: &Target, payload: PutPayload) -> Result<bool> {
    if target.staged.is_some() {
        return create(client, target, payload).await;
    }
    // The name is of this attempt, so no other object can be there, and a put may be tried again.
    let put = client.put(target.path.clone(), payload, PutMode::Overwrite);
    let put = put.await?;
    put.map_err(|e| client.error("write", &target.url, e))?;
    Ok(true)
}

/// Puts an object where nothing is. `false` if the same bytes are there already, and nobody else will remove them.
///
/// Another attempt may have put the same bytes, as when a job was started twice. It removes them again if it fails. So they count only
/// if they were there when the version began, or if an earlier try of this call may have put them.
async fn create(client: &Client, target: &Target, payload: PutPayload) -> Result<bool> {
    let Target { path, url, .. } = target;
    let mut tries = TRIES;
    let mut stays = target.was_there;
    loop {
        tries -= 1;
        let put = client.put(path.clone(), payload.clone(), PutMode::Create);
        let e = match put.await? {
            Ok(_) => return Ok(true),
            Err(e) if fault::is_unsupported(&e) => return Err(no_condition(url, &e)),
            Err(e) => e,
        };
        stays |= fault::may_be_done(&e);
        match client.get(path.clone()).await? {
            Ok(Some(there)) if there == Bytes::from(payload.clone()) => match stays {
                true => return Ok(false),
                false => return Err(others(url)),
            },
            Ok(Some(_)) => return Err(taken(url)),
            // Refused and not there: two asked for it in the same moment.
            Ok(None) if fault::is_refused(&e) && tries > 0 => {}
            _ => return Err(client.error("write", url, e)),
        }
    }
}

/// Another save has written the same file since this one began.
fn others(url: &str) -> StorageError {
    StorageError::Exists { path: url.into() }
}

/// Something else lies where a file should be created.
fn taken(url: &str) -> StorageError {
    StorageError::unsupported(
        format!("writing over {url}"),
        "nothing can be renamed in an object store, so only the commit record of a checkpoint is replaced there; save to \
         another place, or in a format whose record names its data files",
    )
}

/// What is told of a save to a new place where the service does not put on a condition.
pub(crate) const IS_UNCONDITIONAL: &str = "the service has no conditional put: if another save was committed here in the same moment, it is lost";

/// The service does not put on a condition, and without one versions could mix, or the old one be lost.
pub(crate) fn no_condition(url: &str, e: &object_store::Error) -> StorageError {
    StorageError::unsupported(
        format!("writing {url} only if nothing else has changed it"),
        format!(
            "the service has no conditional put, without which two saves could mix their versions ({e}). Only new checkpoints whose files all lie in a folder of \
             their version can be saved there, such as torch_dist in PyTorch's dialect, and single files; save so, to a new place, or to a service that has it"
        ),
    )
}

/// Copies a staged object to its place, if nothing is there.
async fn copy_to(client: &Client, staged: &Path, target: &Target, bytes: u64) -> Result<bool> {
    let (from, to) = (staged.clone(), target.path.clone());
    let copied = client.copy(from, to, CopyMode::Create).await?;
    let created = match copied {
        Ok(()) => true,
        Err(e) if fault::is_unsupported(&e) => return Err(no_condition(&target.url, &e)),
        Err(e) => match is_same(client, staged, &target.path, bytes).await {
            Ok(Some(true)) if target.was_there || fault::may_be_done(&e) => false,
            Ok(Some(true)) => return Err(others(&target.url)),
            Ok(_) if fault::is_refused(&e) => return Err(taken(&target.url)),
            _ => return Err(client.error("write", &target.url, e)),
        },
    };
    let removed = client.delete(vec![staged.clone()]).await?;
    removed.map_err(|e| client.error("remove a copy of", &target.url, e))?;
    Ok(created)
}

/// Whether two objects have the same bytes. They are read part by part. `None` if that can't be learned now.
pub(crate) async fn is_same(
    client: &Client,
    a: &Path,
    b: &Path,
    bytes: u64,
) -> Result<Option<bool>> {
    use object_store::ObjectStoreExt as _;
    match client.head(b.clone(), None).await? {
        Err(_) => return Ok(None),
        Ok(Some(meta)) if meta.size == bytes => {}
        Ok(_) => return Ok(Some(false)),
    }
    let part = client.hints.part_size.max(1);
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at.saturating_add(part));
        let (a, b) = (a.clone(), b.clone());
        let equal = client.ask(|store| async move {
            let a = store.get_range(&a, at..end).await?;
            Ok(a == store.get_range(&b, at..end).await?)
        });
        match equal.await? {
            Ok(true) => {}
            Ok(false) => return Ok(Some(false)),
            Err(_) => return Ok(None),
        }
        at = end;
    }
    Ok(Some(true))
}

type Shared = Arc<Mutex<Box<dyn MultipartUpload>>>;

/// A multipart upload. If it is dropped before it is complete, it is aborted.
struct Upload {
    client: Client,
    upload: Option<Shared>,
    parts: FuturesUnordered<Task<(u64, object_store::Result<()>)>>,
    path: Path,
    url: String,
}

impl Upload {
    async fn start(client: &Client, path: Path, url: String) -> Result<Self> {
        let to = path.clone();
        let started = client.ask(|store| async move {
            use object_store::ObjectStoreExt as _;
            store.put_multipart(&to).await
        });
        let upload = started.await?.map_err(|e| client.error("write", &url, e))?;
        Ok(Self {
            client: client.clone(),
            upload: Some(Arc::new(Mutex::new(upload))),
            parts: FuturesUnordered::new(),
            path,
            url,
        })
    }

    fn open(&self) -> Result<&Shared> {
        self.upload.as_ref().ok_or_else(|| StorageError::Internal {
            what: format!("{}: its upload has ended", self.url),
        })
    }

    /// Starts the upload of a part, and looks at those that have ended.
    async fn add(
        &mut self,
        part: Part,
        memory: OwnedSemaphorePermit,
        progress: &Progress,
    ) -> Result<()> {
        let bytes = part.bytes;
        let payload: PutPayload = part.blocks.into_iter().collect();
        let put = self.open()?.lock().await.put_part(payload);
        self.parts.push(self.client.net.start(async move {
            let outcome = put.await;
            drop(memory);
            (bytes, outcome)
        }));
        while let Some(Some(ended)) = self.parts.next().now_or_never() {
            self.ended(ended, progress)?;
        }
        Ok(())
    }

    fn ended(
        &self,
        ended: Result<(u64, object_store::Result<()>)>,
        progress: &Progress,
    ) -> Result<()> {
        let (bytes, outcome) = ended?;
        outcome.map_err(|e| self.client.error("write a part of", &self.url, e))?;
        progress.add(bytes);
        Ok(())
    }

    /// Waits for all parts, and makes the object of them.
    async fn finish(&mut self, progress: &Progress, bytes: u64) -> Result<()> {
        while let Some(ended) = self.parts.next().await {
            self.ended(ended, progress)?;
        }
        let upload = Arc::clone(self.open()?);
        let completed = self
            .client
            .ask(|_| async move { upload.lock().await.complete().await });
        if let Err(e) = completed.await? {
            // The answer may be lost, and then a second try finds no upload any more. Only this attempt writes an object of
            // this name, so it is this one.
            let there = self.client.head(self.path.clone(), None).await?;
            if !matches!(there, Ok(Some(meta)) if meta.size == bytes) {
                return Err(self.client.error("write", &self.url, e));
            }
        }
        self.upload = None;
        Ok(())
    }

    /// Gives up after an error, which is the cause of that.
    async fn abort(mut self, cause: StorageError) -> StorageError {
        self.call_off().await;
        cause
    }

    async fn call_off(&mut self) {
        self.parts.clear();
        if let Some(upload) = self.upload.take() {
            let url = self.url.clone();
            let aborted = self.client.net.start(abort(upload, url));
            if let Err(e) = aborted.await {
                tracing::debug!("an upload could not be aborted: {e}");
            }
        }
    }
}

async fn abort(upload: Shared, url: String) {
    if let Err(e) = upload.lock().await.abort().await {
        tracing::warn!(error = %e, url, "an unfinished upload could not be aborted; `reshard prune` or a lifecycle rule of the bucket should remove it");
    }
}

/// Best effort: nobody waits for the answer any more.
impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            let url = std::mem::take(&mut self.url);
            self.client.net.leave(abort(upload, url));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Net;
    use crate::{client::MAX_COPY, fault::Budget, scheme::Service};
    use object_store::{ObjectStore, memory::InMemory};
    use reshard_model::ErrorKind;
    use reshard_storage::{Extent, FileBody, Hints, Name, wait};
    use std::io;

    #[test]
    fn a_file_has_at_most_as_many_parts_as_services_take() {
        let mib = 1 << 20;
        let unknown = |at_most| Length::Unknown { at_most };
        for (length, preferred, want) in [
            (Length::Exact(0), 8 * mib, 8 * mib),
            (Length::Exact(80_000 * mib), 8 * mib, 8 * mib),
            (Length::Exact(80_000 * mib + 1), 8 * mib, 9 * mib),
            (Length::Exact(5_000), 1_000, 1_000),
            (unknown(u64::MAX), 8 * mib, 64 * mib),
            (unknown(u64::MAX), 100 * mib, 100 * mib),
        ] {
            assert_eq!(part_size(length, preferred), want, "{length}");
        }
    }

    /// A file that must not be read.
    struct Unread;

    impl Extent for Unread {
        fn length(&self) -> Length {
            Length::Exact(MAX_COPY + 1)
        }

        fn next_block(&mut self) -> Option<io::Result<Bytes>> {
            panic!("it is refused before")
        }
    }

    #[test]
    fn a_file_that_s3_could_not_copy_to_its_place_is_refused_before_it_is_read() {
        let job = |service| {
            let store = Arc::new(InMemory::new()) as Arc<dyn ObjectStore>;
            let net = Net::own().unwrap();
            let client = Client::new(store, net, service, Budget::default(), Hints::default());
            Job::new(&client, Progress::none())
        };
        let target = |staged| Target {
            path: "place/large".into(),
            staged,
            was_there: false,
            url: "s3://bucket/place/large".into(),
        };
        let staged = || target(Some("place/attempt/large".into()));
        let e = wait(async {
            let body = FileBody::new(Name::new("large")?, vec![Box::new(Unread)]);
            let (source, length) = PartSource::new(body).await?;
            job(Service::S3).write(staged(), source, length).await
        });
        let e = e.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(
            e.to_string().contains("5 GiB to s3://bucket/place/large"),
            "{e}"
        );

        // As long as that may be, and in the folder of the version, and elsewhere.
        assert!(job(Service::S3).fits(&staged(), MAX_COPY).is_ok());
        assert!(job(Service::S3).fits(&target(None), MAX_COPY + 1).is_ok());
        assert!(job(Service::Google).fits(&staged(), MAX_COPY + 1).is_ok());
    }
}
