//! A store with a fault.

use async_trait::async_trait;
use bytes::Bytes;
use reshard::storage::{
    Depth, Durability, Entry, FileBody, Head, Hints, IfExists, Listing, LocalStore, Name, Progress,
    Result, Store, Transaction, Written,
};
use std::{ops::Range, sync::Arc};

/// A local store in which every commit panics.
pub(crate) fn panics_in_commit(url: &str) -> Arc<dyn Store> {
    Arc::new(Faulty(LocalStore::open(url).unwrap()))
}

#[derive(Debug)]
struct Faulty(LocalStore);

#[derive(Debug)]
struct FaultyTransaction(Arc<dyn Transaction>);

#[async_trait]
impl Store for Faulty {
    fn url(&self) -> String {
        self.0.url()
    }
    fn hints(&self) -> Hints {
        self.0.hints()
    }
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.0.read(name, range).await
    }
    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        self.0.list(below, depth).await
    }
    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        self.0.head(name).await
    }
    async fn remove(&self, names: &[Name]) -> Result<()> {
        self.0.remove(names).await
    }
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let begun = self.0.begin(attempt, if_exists).await?;
        Ok(Arc::new(FaultyTransaction(begun)))
    }
    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.0.join(attempt, place).await
    }
}

#[async_trait]
impl Transaction for FaultyTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        d: Durability,
        p: Progress,
    ) -> Result<Vec<Written>> {
        self.0.write(files, d, p).await
    }
    fn place(&self) -> Option<String> {
        self.0.place()
    }
    #[expect(clippy::panic, reason = "this is the fault")]
    async fn commit(&self, _: Option<(Name, Bytes)>, _: &[Entry], _: Durability) -> Result<()> {
        panic!("a fault in commit")
    }
    async fn written(&self) -> Result<Vec<Entry>> {
        self.0.written().await
    }
    async fn rollback(&self) -> Result<()> {
        self.0.rollback().await
    }
}
