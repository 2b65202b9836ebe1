//! What uploads hold in memory, and that ranks of one process that share it never wait for each other in a circle.

use crate::given::{
    name,
    service::{Differs, Service},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use object_store::{
    MultipartUpload, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    UploadPart, memory::InMemory, path::Path,
};
use reshard_object_store::{ObjectStorePlace, ObjectStores, object_store};
use reshard_storage::{
    Durability, Extent, FileBody, Hints, IfExists, Length, Progress, Result, Store, StoreExt, wait,
    work_here,
};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

const PART: u64 = 64 << 10;
const BLOCK: u64 = 16 << 10;

/// The bytes that files have given, and that the service does not have yet.
#[derive(Debug, Default)]
struct Held {
    now: AtomicU64,
    most: AtomicU64,
    /// The lengths of the parts of each upload.
    parts: Mutex<Vec<Vec<u64>>>,
}

impl Held {
    fn given(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn sent(&self, bytes: usize) {
        self.now.fetch_sub(bytes as u64, Ordering::SeqCst);
    }
}

/// A service that takes its time for each put.
#[derive(Debug)]
struct Slow {
    inner: InMemory,
    held: Arc<Held>,
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}

#[async_trait]
impl Differs for Slow {
    fn inner(&self) -> &InMemory {
        &self.inner
    }

    async fn put(
        &self,
        to: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let sent = bytes.content_length();
        pause().await;
        let put = self.inner.put_opts(to, bytes, options).await;
        // The record is not of a file.
        if !to.as_ref().ends_with("record") {
            self.held.sent(sent);
        }
        put
    }

    async fn upload(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(to, options).await?;
        let mut parts = self.held.parts.lock().unwrap();
        parts.push(Vec::new());
        Ok(Box::new(SlowUpload {
            inner,
            held: Arc::clone(&self.held),
            number: parts.len() - 1,
        }))
    }
}

#[derive(Debug)]
struct SlowUpload {
    inner: Box<dyn MultipartUpload>,
    held: Arc<Held>,
    number: usize,
}

#[async_trait]
impl MultipartUpload for SlowUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let bytes = data.content_length();
        self.held.parts.lock().unwrap()[self.number].push(bytes as u64);
        let (put, held) = (self.inner.put_part(data), Arc::clone(&self.held));
        Box::pin(async move {
            pause().await;
            let put = put.await;
            held.sent(bytes);
            put
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.inner.abort().await
    }
}

/// Ranks that give each other a block in each round, and take part in a round when their files need a block.
#[derive(Debug)]
struct Rounds {
    /// In how many rounds each rank takes part so far.
    asked: Mutex<Vec<u64>>,
    came: Condvar,
}

impl Rounds {
    fn new(ranks: usize) -> Arc<Self> {
        Arc::new(Self {
            asked: Mutex::new(vec![0; ranks]),
            came: Condvar::new(),
        })
    }

    /// Waits until all other ranks come to this round, or have ended.
    fn next(&self, rank: usize) {
        let mut asked = self.asked.lock().unwrap();
        asked[rank] += 1;
        let round = asked[rank];
        self.came.notify_all();
        while asked.iter().any(|others| *others < round) {
            asked = self.came.wait(asked).unwrap();
        }
    }

    fn ended(&self, rank: usize) {
        self.asked.lock().unwrap()[rank] = u64::MAX;
        self.came.notify_all();
    }
}

/// The contents of a file, which other ranks give if there are any.
struct Given {
    left: u64,
    length: Length,
    held: Arc<Held>,
    from: Option<(Arc<Rounds>, usize)>,
}

impl Extent for Given {
    fn length(&self) -> Length {
        self.length
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let bytes = self.left.min(BLOCK);
        self.left -= bytes;
        if bytes == 0 {
            return None;
        }
        if let Some((rounds, rank)) = &self.from {
            rounds.next(*rank);
        }
        self.held.given(bytes);
        Some(Ok(vec![7; bytes as usize].into()))
    }
}

/// A place that holds at most so many parts.
fn place(parts: usize) -> (ObjectStorePlace, Arc<Held>) {
    let held = Arc::default();
    let bucket = Slow {
        inner: InMemory::new(),
        held: Arc::clone(&held),
    };
    let hints = Hints::default()
        .with_part_size(PART)
        .with_concurrency(parts);
    let stores = ObjectStores::new()
        .with_client("s3://bucket", Service::client(bucket))
        .with_hints(hints);
    (stores.open_place("s3://bucket/place").unwrap(), held)
}

const ATTEMPT: &str = "1-1a2b3c4d5e6f7081-0";

/// Files of one part, of several, and of a length that nobody knows before.
fn files(held: &Arc<Held>, from: Option<(&Arc<Rounds>, usize)>) -> Vec<FileBody> {
    let rank = from.map_or(0, |(_, rank)| rank);
    let file = |n: u64| {
        let bytes = [1_000, PART, 3 * PART + 5_000, 2 * PART, 20_000][(n % 5) as usize];
        let length = match n % 2 {
            0 => Length::Exact(bytes),
            _ => Length::Unknown { at_most: bytes * 2 },
        };
        let extent = Given {
            left: bytes,
            length,
            held: Arc::clone(held),
            from: from.map(|(rounds, rank)| (Arc::clone(rounds), rank)),
        };
        let name = name(&format!("{ATTEMPT}/{rank}-{n}"));
        FileBody::new(name, vec![Box::new(extent)])
    };
    (0..20).map(file).collect()
}

#[test]
fn uploads_hold_as_many_parts_as_they_may_and_all_parts_but_the_last_have_one_size() {
    let parts = 4;
    let (place, held) = place(parts);
    block_on(async {
        let transaction = place.begin(ATTEMPT, IfExists::Refuse).await.unwrap();
        let bodies = files(&held, None);
        let written = transaction.write(bodies, Durability::Machine, Progress::none());
        assert_eq!(written.await.unwrap().len(), 20);
    });
    let most = held.most.load(Ordering::SeqCst);
    // Each file that is open may have pulled one block more than its part.
    let bound = parts as u64 * (PART + BLOCK);
    assert!(2 * PART < most && most <= bound, "{most} of {bound}");
    assert_eq!(held.now.load(Ordering::SeqCst), 0);
    let uploads = held.parts.lock().unwrap();
    assert_eq!(uploads.len(), 8, "files of several parts");
    for upload in &*uploads {
        let (last, others) = upload.split_last().unwrap();
        assert!(others.iter().all(|part| *part == PART), "{upload:?}");
        assert!(0 < *last && *last <= PART, "{upload:?}");
    }
}

fn write_rank(
    place: &ObjectStorePlace,
    held: &Arc<Held>,
    rounds: &Arc<Rounds>,
    rank: usize,
) -> Result<usize> {
    let join = place.join(ATTEMPT, Some("s3://bucket/place"));
    let transaction = wait(join)?;
    let bodies = files(held, Some((rounds, rank)));
    let write = || {
        let written = transaction.write(bodies, Durability::Machine, Progress::none());
        wait(written)
    };
    // As a rank writes the files that others fill.
    let written = work_here(write);
    rounds.ended(rank);
    Ok(written?.len())
}

#[test]
fn ranks_that_give_each_other_what_they_upload_do_not_wait_for_each_other_in_a_circle() {
    let ranks = 3;
    for parts in [1, 2, 4] {
        let (place, held) = place(parts);
        let rounds = Rounds::new(ranks);
        let (send, ended) = mpsc::channel();
        for rank in 0..ranks {
            let (place, held) = (place.clone(), Arc::clone(&held));
            let (rounds, send) = (Arc::clone(&rounds), send.clone());
            thread::spawn(move || {
                send.send(write_rank(&place, &held, &rounds, rank)).unwrap();
            });
        }
        for _ in 0..ranks {
            // The time only ends a test that would never end.
            let written = ended.recv_timeout(Duration::from_secs(120));
            let written = written.expect("ranks wait for each other");
            assert_eq!(written.unwrap(), 20);
        }
        assert_eq!(wait(place.files()).unwrap().len(), 20 * ranks);
        // Each rank makes one part before it has memory for it, and each file that is open may have pulled one block more.
        let bound = (parts + ranks) as u64 * PART + (parts * ranks) as u64 * BLOCK;
        let most = held.most.load(Ordering::SeqCst);
        assert!(most <= bound, "{most} of {bound}");
    }
}
