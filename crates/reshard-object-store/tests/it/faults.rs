//! Each request of a save and of an overwrite fails once, in every way. A reader then sees the old version or the new one, whole.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use async_trait::async_trait;
use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    channel::oneshot,
    executor::block_on,
    future::{self, Either},
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, UploadPart, memory::InMemory,
    path::Path,
};
use reshard_object_store::{ObjectStorePlace, ObjectStores, object_store};
use reshard_storage::{
    Durability, Entry, FileBody, Hints, IfExists, Name, PlaceKind, Progress, Result, StorageError,
    Store, StoreExt, Transaction, Written,
};
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How a request goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is not carried out.
    Before,
    /// It is carried out, and its answer is lost.
    After,
    /// It is carried out, its answer is lost, and what the client asks once more is refused because of that.
    Refused,
    /// It is not carried out, and neither is any request after it.
    Down,
    /// It is carried out, its answer is lost, and no request after it is carried out.
    DownAfter,
    /// The same for five requests after it; then the service is back.
    Outage,
    /// It is carried out, its answer is lost, and three requests after it are denied, as with a token that has expired; then there is another one.
    Denied,
    /// It is not carried out, because the token has expired.
    NoToken,
    /// It is not carried out, and there is no answer. The save is dropped.
    Hang,
    /// It is carried out, and there is no answer. The save is dropped.
    HangAfter,
}

const FAULTS: [Fault; 9] = [
    Fault::Before,
    Fault::After,
    Fault::Refused,
    Fault::Down,
    Fault::DownAfter,
    Fault::Outage,
    Fault::Denied,
    Fault::Hang,
    Fault::HangAfter,
];

#[derive(Clone, Debug)]
struct Faulty {
    inner: Arc<InMemory>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    requests: AtomicU64,
    /// The number of the request that fails.
    at: u64,
    fault: Fault,
    hangs: Mutex<Option<oneshot::Sender<()>>>,
    /// Uploads that were started, and those that were completed or aborted.
    uploads: AtomicU64,
    ended: AtomicU64,
}

fn failed() -> object_store::Error {
    object_store::Error::Generic {
        store: "Faulty",
        source: "Server returned non-2xx status code: 503 Service Unavailable".into(),
    }
}

fn denied() -> object_store::Error {
    object_store::Error::PermissionDenied {
        path: "it".into(),
        source: "ExpiredToken".into(),
    }
}

fn refused() -> object_store::Error {
    object_store::Error::AlreadyExists {
        path: "it".into(),
        source: "412 Precondition Failed, after 1 retries, max_retries: 2".into(),
    }
}

impl Plan {
    fn new(at: u64, fault: Fault, hangs: Option<oneshot::Sender<()>>) -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicU64::new(0),
            at,
            fault,
            hangs: Mutex::new(hangs),
            uploads: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        })
    }

    fn next(&self) -> Option<Fault> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            _ if number == self.at => Some(self.fault),
            Fault::Down | Fault::DownAfter if number > self.at => Some(Fault::Down),
            Fault::Outage if number > self.at && number - self.at <= 5 => Some(Fault::Down),
            Fault::Denied if number > self.at && number - self.at <= 3 => Some(Fault::NoToken),
            _ => None,
        }
    }

    async fn hang<T>(&self) -> T {
        if let Some(hangs) = self.hangs.lock().unwrap().take() {
            hangs.send(()).unwrap_or(());
        }
        future::pending().await
    }

    async fn run<T>(
        &self,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        match self.next() {
            None => work.await,
            Some(Fault::NoToken) => Err(denied()),
            Some(Fault::Before | Fault::Down) => Err(failed()),
            Some(Fault::Hang) => self.hang().await,
            Some(fault) => {
                work.await?;
                match fault {
                    Fault::HangAfter => self.hang().await,
                    Fault::Refused => Err(refused()),
                    _ => Err(failed()),
                }
            }
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        to: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let put = self.inner.put_opts(to, payload, options);
        self.plan.run(put).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self
            .plan
            .run(self.inner.put_multipart_opts(to, options))
            .await?;
        self.plan.uploads.fetch_add(1, Ordering::SeqCst);
        let plan = Arc::clone(&self.plan);
        let ended = AtomicBool::new(false);
        Ok(Box::new(FaultyUpload { inner, plan, ended }))
    }

    async fn get_opts(&self, of: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.plan.run(self.inner.get_opts(of, options)).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let (inner, plan) = (Arc::clone(&self.inner), Arc::clone(&self.plan));
        let work = async move {
            let removed = inner.delete_stream(paths).try_collect::<Vec<_>>();
            let removed = plan.run(removed).await?;
            Ok::<_, object_store::Error>(stream::iter(removed.into_iter().map(Ok)))
        };
        stream::once(work).try_flatten().boxed()
    }

    fn list(&self, below: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let plan = Arc::clone(&self.plan);
        let listed = self.inner.list(below);
        let work = async move {
            let listed: Vec<ObjectMeta> = plan.run(listed.try_collect()).await?;
            Ok::<_, object_store::Error>(stream::iter(listed.into_iter().map(Ok)))
        };
        stream::once(work).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, below: Option<&Path>) -> object_store::Result<ListResult> {
        self.plan.run(self.inner.list_with_delimiter(below)).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.plan.run(self.inner.copy_opts(from, to, options)).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    plan: Arc<Plan>,
    ended: AtomicBool,
}

impl FaultyUpload {
    fn end(&self) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            self.plan.ended.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (put, plan) = (self.inner.put_part(data), Arc::clone(&self.plan));
        Box::pin(async move { plan.run(put).await })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let plan = Arc::clone(&self.plan);
        let complete = async {
            let completed = self.inner.complete().await?;
            self.end();
            Ok(completed)
        };
        plan.run(complete).await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.end();
        self.plan.run(self.inner.abort()).await
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn attempt(n: u64) -> String {
    format!("1-1a2b3c4d5e6f7081-{n:x}")
}

/// The bytes of a file of a version.
fn bytes(n: u64, file: usize, len: usize) -> Bytes {
    (0..len)
        .map(|i| (i * 7 + i / 251 + file * 3) as u8 ^ n as u8)
        .collect()
}

/// A small file, one of several parts, and a small and a large one outside of the folder, if there may be such.
fn files(n: u64, outside: bool) -> Vec<(String, Bytes)> {
    let inside = [("a", 500), ("deep/b", 4_500)];
    let others = [("common", 300), ("large", 2_500)];
    let inside = inside.map(|(file, len)| (format!("{}/{file}", attempt(n)), len));
    let others = others.map(|(file, len)| (file.to_owned(), len));
    let all = inside
        .into_iter()
        .chain(others.into_iter().filter(|_| outside));
    all.enumerate()
        .map(|(i, (file, len))| (file, bytes(n, i, len)))
        .collect()
}

/// The commit record names the attempt, and its files.
fn record(n: u64, outside: bool) -> Bytes {
    format!("{n} {outside}").into()
}

fn place(bucket: Arc<dyn ObjectStore>) -> ObjectStorePlace {
    let hints = Hints::default().with_part_size(1_000).with_concurrency(2);
    let stores = ObjectStores::new()
        .with_client("s3://bucket", bucket)
        .with_hints(hints);
    stores.open_place("s3://bucket/place").unwrap()
}

async fn save_into(transaction: &dyn Transaction, n: u64, outside: bool) -> Result<()> {
    let bodies = files(n, outside)
        .into_iter()
        .map(|(file, bytes)| FileBody::from_bytes(name(&file), bytes));
    let written = transaction
        .write(bodies.collect(), Durability::Machine, Progress::none())
        .await?;
    let entries: Vec<_> = written.iter().map(Written::entry).collect();
    let record = (name("record"), record(n, outside));
    transaction
        .commit(Some(record), &entries, Durability::Machine)
        .await
}

/// A save as the facade does it: after an error the coordinator rolls back.
async fn save(store: &dyn Store, n: u64, if_exists: IfExists, outside: bool) -> Result<()> {
    let transaction = store.begin(&attempt(n), if_exists).await?;
    let saved = save_into(&*transaction, n, outside).await;
    if saved.is_err() {
        // What can't be removed is left for `prune`.
        drop(transaction.rollback().await);
    }
    saved
}

/// The version that a reader sees. It is whole.
async fn seen(bucket: &Arc<InMemory>) -> Option<u64> {
    let store = sound(bucket);
    let record = store.read_all(&name("record"), 100).await.unwrap()?;
    let text = String::from_utf8(record.to_vec()).unwrap();
    let (n, outside) = text.split_once(' ').unwrap();
    let n = n.parse().unwrap();
    for (file, bytes) in files(n, outside == "true") {
        let there = store.read_all(&name(&file), 10_000).await.unwrap();
        assert_eq!(there.unwrap(), bytes, "{file} of {n}");
    }
    Some(n)
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Saved,
    Failed,
    Dropped,
}

/// Saves version 2 while one request fails. Returns how many requests there were, and what came of it.
fn with_fault(bucket: &Arc<InMemory>, outside: bool, at: u64, fault: Fault) -> (u64, End) {
    let if_exists = match outside {
        true => IfExists::Refuse,
        false => IfExists::Replace(Arc::new([name("record")])),
    };
    with_fault_in(bucket, at, fault, async |store| {
        save(&store, 2, if_exists, outside).await
    })
}

/// The same for a save of any kind.
fn with_fault_in(
    bucket: &Arc<InMemory>,
    at: u64,
    fault: Fault,
    save: impl AsyncFnOnce(ObjectStorePlace) -> Result<()>,
) -> (u64, End) {
    let (hangs, hung) = oneshot::channel();
    let plan = Plan::new(at, fault, Some(hangs));
    let faulty = Faulty {
        inner: Arc::clone(bucket),
        plan: Arc::clone(&plan),
    };
    let store = place(Arc::new(faulty));
    let saving = Box::pin(save(store));
    let end = block_on(async {
        match future::select(saving, hung).await {
            Either::Left((Ok(()), _)) => End::Saved,
            Either::Left((Err(_), _)) => End::Failed,
            // The other end of the channel lives as long as the plan, so it has been used.
            Either::Right(_) => End::Dropped,
        }
    });
    all_uploads_end(&plan, &format!("{fault:?} at {at}"));
    (plan.requests.load(Ordering::SeqCst), end)
}

/// All uploads that were begun were completed or aborted. Those of a save that was dropped are aborted after it.
fn all_uploads_end(plan: &Plan, when: &str) {
    let began = Instant::now();
    let counts = || {
        let ended = plan.ended.load(Ordering::SeqCst);
        (plan.uploads.load(Ordering::SeqCst), ended)
    };
    while counts().0 != counts().1 {
        let waits = began.elapsed() < Duration::from_secs(600);
        assert!(waits, "{when}: begun and ended {:?}", counts());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Tries each fault at each request. `try_save` saves version 2 over `old` while one request fails, and `save_next` saves version 3 where a reader
/// sees this version now.
fn every_fault_of(
    old: Option<u64>,
    save_old: impl Fn(&Arc<InMemory>),
    try_save: impl Fn(&Arc<InMemory>, u64, Fault) -> (u64, End),
    seen: impl Fn(&Arc<InMemory>) -> Option<u64>,
    save_next: impl Fn(&Arc<InMemory>, Option<u64>),
) {
    let mut ends = Vec::new();
    for fault in FAULTS {
        for at in 0.. {
            let bucket = Arc::new(InMemory::new());
            if old.is_some() {
                save_old(&bucket);
            }
            let (requests, end) = try_save(&bucket, at, fault);
            let now = seen(&bucket);
            match end {
                End::Saved => assert_eq!(now, Some(2), "{fault:?} at {at}"),
                // One lost answer is always found out. If nothing is answered any more, the version may be either.
                End::Failed if !matches!(fault, Fault::DownAfter | Fault::Outage) => {
                    assert_eq!(now, old, "{fault:?} at {at}");
                }
                _ => assert!(now == Some(2) || now == old, "{fault:?} at {at}: {now:?}"),
            }
            // The next save finds its way.
            save_next(&bucket, now);
            ends.push((fault, end));
            if requests <= at {
                break;
            }
            assert!(requests < 200, "requests without bound: {fault:?} at {at}");
        }
    }
    for (fault, end) in [
        (Fault::Before, End::Failed),
        (Fault::After, End::Saved),
        (Fault::Refused, End::Saved),
        (Fault::DownAfter, End::Failed),
        (Fault::Denied, End::Saved),
        (Fault::Hang, End::Dropped),
    ] {
        assert!(ends.contains(&(fault, end)), "{fault:?} was tried");
    }
}

/// The place without faults.
fn sound(bucket: &Arc<InMemory>) -> ObjectStorePlace {
    place(Arc::clone(bucket) as Arc<dyn ObjectStore>)
}

fn every_fault(outside: bool, old: Option<u64>) {
    every_fault_of(
        old,
        |bucket| block_on(save(&sound(bucket), 1, IfExists::Refuse, false)).unwrap(),
        |bucket, at, fault| with_fault(bucket, outside, at, fault),
        |bucket| block_on(seen(bucket)),
        |bucket, now| {
            if now.is_some() {
                let next = IfExists::Replace(Arc::new([name("record")]));
                block_on(save(&sound(bucket), 3, next, false)).unwrap();
                assert_eq!(block_on(seen(bucket)), Some(3));
            }
        },
    );
}

/// Saves a version of a checkpoint that is one object.
async fn save_object(place: ObjectStorePlace, n: u64, if_exists: IfExists) -> Result<()> {
    let store = place.of_kind(PlaceKind::File).unwrap();
    let transaction = store.begin(&attempt(n), if_exists).await?;
    let saved = async {
        let body = FileBody::from_bytes(name("place"), bytes(n, 0, 2_500));
        let written = transaction.write(vec![body], Durability::Machine, Progress::none());
        let entries: Vec<_> = written.await?.iter().map(Written::entry).collect();
        transaction
            .commit(None, &entries, Durability::Machine)
            .await
    };
    let saved = saved.await;
    if saved.is_err() {
        drop(transaction.rollback().await);
    }
    saved
}

/// The version that a reader of the object sees. It is whole.
fn seen_object(bucket: &Arc<InMemory>) -> Option<u64> {
    let store = sound(bucket).of_kind(PlaceKind::File).unwrap();
    let there = block_on(store.read_all(&name("place"), 10_000)).unwrap()?;
    let version = (1..4).find(|n| bytes(*n, 0, 2_500) == there);
    Some(version.unwrap())
}

fn every_fault_of_one_object(old: Option<u64>) {
    let over = |version: Option<u64>| match version {
        Some(_) => IfExists::Replace([name("place")].into()),
        None => IfExists::Refuse,
    };
    every_fault_of(
        old,
        |bucket| block_on(save_object(sound(bucket), 1, IfExists::Refuse)).unwrap(),
        |bucket, at, fault| {
            with_fault_in(bucket, at, fault, async |store| {
                save_object(store, 2, over(old)).await
            })
        },
        seen_object,
        |bucket, now| {
            block_on(save_object(sound(bucket), 3, over(now))).unwrap();
            assert_eq!(seen_object(bucket), Some(3));
        },
    );
}

#[test]
fn one_object_in_whose_save_any_request_fails_is_the_old_version_or_the_new_one() {
    every_fault_of_one_object(Some(1));
    every_fault_of_one_object(None);
}

#[test]
fn a_save_of_one_object_that_may_be_there_does_not_say_that_it_has_failed() {
    let mut doubtful = 0;
    for fault in [Fault::DownAfter, Fault::Outage] {
        for at in 0.. {
            let bucket = Arc::new(InMemory::new());
            let said = Mutex::new(String::new());
            let (requests, _) = with_fault_in(&bucket, at, fault, async |store| {
                let saved = save_object(store, 2, IfExists::Refuse).await;
                if let Err(e) = &saved {
                    *said.lock().unwrap() = e.to_string();
                }
                saved
            });
            let said = said.into_inner().unwrap();
            if !said.is_empty() && seen_object(&bucket).is_some() {
                assert!(
                    said.contains("learn whether the version is committed"),
                    "{fault:?} at {at}: {said}"
                );
                doubtful += 1;
            }
            if requests <= at {
                break;
            }
        }
    }
    assert!(doubtful > 0, "an answer was lost for good");
}

#[test]
fn an_overwrite_in_which_any_request_fails_leaves_the_old_version_or_the_new_one() {
    every_fault(false, Some(1));
}

#[test]
fn a_save_in_which_any_request_fails_leaves_nothing_or_the_version() {
    every_fault(false, None);
}

#[test]
fn a_save_with_files_outside_of_its_folder_leaves_nothing_or_the_version() {
    every_fault(true, None);
}

#[test]
fn a_failed_save_removes_what_it_wrote_and_aborts_its_uploads() {
    let bucket = Arc::new(InMemory::new());
    let plan = Plan::new(u64::MAX, Fault::Before, None);
    let faulty = Faulty {
        inner: Arc::clone(&bucket),
        plan: Arc::clone(&plan),
    };
    let store = place(Arc::new(faulty));
    let failed = block_on(async {
        let transaction = store.begin(&attempt(1), IfExists::Refuse).await.unwrap();
        let mut bodies: Vec<_> = files(1, true)
            .into_iter()
            .map(|(file, bytes)| FileBody::from_bytes(name(&file), bytes))
            .collect();
        // The last file promises more than it gives, in its third part.
        struct Short(u64);
        impl reshard_storage::Extent for Short {
            fn length(&self) -> reshard_storage::Length {
                reshard_storage::Length::Exact(5_000)
            }
            fn next_block(&mut self) -> Option<std::io::Result<Bytes>> {
                self.0 += 1;
                (self.0 < 4).then(|| Ok(bytes(1, 9, 1_000)))
            }
        }
        let short = name(&format!("{}/short", attempt(1)));
        bodies.push(FileBody::new(short, vec![Box::new(Short(0))]));
        let failed = transaction
            .write(bodies, Durability::Machine, Progress::none())
            .await;
        transaction.rollback().await.unwrap();
        failed
    });
    let e = failed.unwrap_err();
    assert!(matches!(e, StorageError::ExtentLength { .. }), "{e}");
    let left = block_on(store.files()).unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert!(plan.uploads.load(Ordering::SeqCst) >= 2);
    all_uploads_end(&plan, "a file is too short");
}

#[test]
fn a_large_file_outside_of_the_folder_does_not_replace_another_one() {
    let bucket = Arc::new(InMemory::new());
    let store = place(Arc::clone(&bucket) as Arc<dyn ObjectStore>);
    block_on(async {
        save(&store, 1, IfExists::Refuse, true).await.unwrap();
        let again = IfExists::Replace(Arc::new([name("record")]));
        let transaction = store.begin(&attempt(2), again).await.unwrap();
        let write = |bytes: Bytes| {
            let body = FileBody::from_bytes(name("large"), bytes);
            transaction.write(vec![body], Durability::Process, Progress::none())
        };
        let e = write(bytes(2, 3, 2_500)).await.unwrap_err();
        assert_eq!(e.kind(), reshard_model::ErrorKind::Unsupported, "{e}");
        transaction.rollback().await.unwrap();

        // The same bytes may stay, and are still there after a rollback.
        let again = IfExists::Replace(Arc::new([name("record")]));
        let transaction = store.begin(&attempt(3), again).await.unwrap();
        let body = FileBody::from_bytes(name("large"), bytes(1, 3, 2_500));
        let written = transaction.write(vec![body], Durability::Process, Progress::none());
        assert_eq!(written.await.unwrap()[0].bytes, 2_500);
        transaction.rollback().await.unwrap();
    });
    assert_eq!(block_on(seen(&bucket)), Some(1));
    let Ok(left) = block_on(store.leftovers()) else {
        panic!("leftovers are listed")
    };
    assert_eq!(left.len(), 1, "only the folder of version 1: {left:?}");
}

#[test]
fn what_a_committed_version_uses_is_not_removed_by_another_attempt_with_the_same_files() {
    let shared = [
        (name("common"), bytes(1, 0, 300)),
        (name("large"), bytes(1, 1, 2_500)),
    ];
    let write = async |by: &dyn Transaction, files: &[(Name, Bytes)]| {
        let bodies = files
            .iter()
            .map(|(name, bytes)| FileBody::from_bytes(name.clone(), bytes.clone()));
        let written = by.write(bodies.collect(), Durability::Machine, Progress::none());
        let written = written.await?;
        Ok::<Vec<_>, StorageError>(written.iter().map(Written::entry).collect())
    };
    let commit = async |by: &dyn Transaction, entries: &[Entry]| {
        let record = (name("record"), Bytes::from_static(b"done"));
        let committed = by.commit(Some(record), entries, Durability::Machine);
        committed.await
    };
    for file in shared {
        let file = std::slice::from_ref(&file);
        let store = place(Arc::new(InMemory::new()));
        block_on(async {
            // A job was started twice.
            let one = store.begin(&attempt(1), IfExists::Refuse).await.unwrap();
            let two = store.begin(&attempt(2), IfExists::Refuse).await.unwrap();
            let made = write(&*one, file).await.unwrap();
            match write(&*two, file).await {
                Ok(found) => {
                    commit(&*two, &found).await.unwrap();
                    assert!(commit(&*one, &made).await.is_err());
                    one.rollback().await.unwrap();
                }
                Err(e) => {
                    assert_eq!(e.kind(), reshard_model::ErrorKind::Exists, "{e}");
                    two.rollback().await.unwrap();
                    commit(&*one, &made).await.unwrap();
                }
            }
            let there = store.read_all(&file[0].0, 10_000).await.unwrap();
            assert_eq!(there.as_ref(), Some(&file[0].1), "{}", file[0].0);
        });
    }
}
