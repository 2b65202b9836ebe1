//! A store whose futures need a runtime: it brings one, so that any executor may poll what saves and loads return.

use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use reshard::{
    DType, ShardedTensor, StateDict, Tensor,
    storage::{
        Depth, Durability, Entry, FileBody, Head, Hints, IfExists, Leftover, Listing, Name,
        Progress, Recovery, Result, Store, Transaction, Written,
    },
};
use reshard_laws::{
    place::Place,
    ranks::{group, load, save},
};
use reshard_storage::testkit::{MemoryStore, store_contract};
use std::{future::Future, ops::Range, sync::Arc, time::Duration};
use tokio::runtime::{Builder, Runtime};

/// Does everything on threads of its runtime, and waits there as only its runtime can.
#[derive(Clone, Debug)]
struct Remote {
    inner: MemoryStore,
    runtime: Arc<Runtime>,
}

impl Remote {
    fn new() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap();
        Self {
            inner: MemoryStore::new(),
            runtime: Arc::new(runtime),
        }
    }

    async fn there<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = async {
            tokio::time::sleep(Duration::from_micros(10)).await;
            work.await
        };
        self.runtime.spawn(task).await.unwrap()
    }

    fn transaction(&self, inner: Arc<dyn Transaction>) -> Arc<dyn Transaction> {
        Arc::new(RemoteTransaction {
            inner,
            store: self.clone(),
        })
    }
}

#[async_trait]
impl Store for Remote {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn hints(&self) -> Hints {
        self.inner.hints()
    }
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let (inner, name) = (self.inner.clone(), name.clone());
        self.there(async move { inner.read(&name, range).await })
            .await
    }
    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let (inner, below) = (self.inner.clone(), below.cloned());
        self.there(async move { inner.list(below.as_ref(), depth).await })
            .await
    }
    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        let (inner, name) = (self.inner.clone(), name.clone());
        self.there(async move { inner.head(&name).await }).await
    }
    async fn remove(&self, names: &[Name]) -> Result<()> {
        let (inner, names) = (self.inner.clone(), names.to_vec());
        self.there(async move { inner.remove(&names).await }).await
    }
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let (inner, attempt) = (self.inner.clone(), attempt.to_owned());
        Ok(self.transaction(
            self.there(async move { inner.begin(&attempt, if_exists).await })
                .await?,
        ))
    }
    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        let (inner, attempt, place) = (
            self.inner.clone(),
            attempt.to_owned(),
            place.map(str::to_owned),
        );
        Ok(self.transaction(
            self.there(async move { inner.join(&attempt, place.as_deref()).await })
                .await?,
        ))
    }
    fn recovery(&self) -> Option<&dyn Recovery> {
        Some(self)
    }
}

#[async_trait]
impl Recovery for Remote {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let inner = self.inner.clone();
        self.there(async move { inner.leftovers().await }).await
    }
    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        let (inner, left) = (self.inner.clone(), left.clone());
        self.there(async move { inner.remove_leftover(&left).await })
            .await
    }
}

#[derive(Debug)]
struct RemoteTransaction {
    inner: Arc<dyn Transaction>,
    store: Remote,
}

#[async_trait]
impl Transaction for RemoteTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        let inner = Arc::clone(&self.inner);
        self.store
            .there(async move { inner.write(files, durability, progress).await })
            .await
    }
    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        let (inner, files) = (Arc::clone(&self.inner), files.to_vec());
        self.store
            .there(async move { inner.commit(record, &files, durability).await })
            .await
    }
    async fn written(&self) -> Result<Vec<Entry>> {
        let inner = Arc::clone(&self.inner);
        self.store.there(async move { inner.written().await }).await
    }
    async fn rollback(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        self.store
            .there(async move { inner.rollback().await })
            .await
    }
}

#[test]
fn it_keeps_the_contract() {
    block_on(store_contract(|| Arc::new(Remote::new())));
}

#[test]
fn ranks_save_and_load_through_it_whatever_polls_them() {
    const RANKS: u32 = 3;
    let place = Place::of(Remote::new());
    let states = |rank: u64| {
        let mut state = StateDict::new();
        let local = Tensor::from_vec(&[1, 2], vec![rank as i32, 7]).unwrap();
        let rows =
            ShardedTensor::from_rank_offsets("w", local, &[(0, rank, RANKS.into())]).unwrap();
        state.insert("w", rows);
        state
    };
    // Ranks are polled by the plain executor of `futures`, a thread each.
    let saved = save(
        group(RANKS),
        (0..u64::from(RANKS)).map(states).collect(),
        place.url(),
        |_, s| s,
    );
    saved.into_iter().for_each(|outcome| drop(outcome.unwrap()));
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template("w", DType::Int32, &[3, 2]));
    let loaded = load(group(1), vec![template], place.url(), |_, l| l)
        .remove(0)
        .unwrap()
        .0;
    let w = loaded
        .get("w")
        .unwrap()
        .leaf()
        .unwrap()
        .as_tensor()
        .unwrap()
        .to_vec::<i32>()
        .unwrap();
    assert_eq!(w, [0, 7, 1, 7, 2, 7]);
}
