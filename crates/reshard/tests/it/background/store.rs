//! A store with a fault.

use async_trait::async_trait;
use bytes::Bytes;
use reshard::storage::{Durability, Entry, IfExists, LocalStore, Name, Result, Store, Transaction};
use std::sync::Arc;

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
    reshard::storage::forward! { 0: url hints read list head remove join }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let begun = self.0.begin(attempt, if_exists).await?;
        Ok(Arc::new(FaultyTransaction(begun)))
    }
}

#[async_trait]
impl Transaction for FaultyTransaction {
    reshard::storage::forward! { 0: write place written rollback }

    #[expect(clippy::panic, reason = "this is the fault")]
    async fn commit(&self, _: Option<(Name, Bytes)>, _: &[Entry], _: Durability) -> Result<()> {
        panic!("a fault in commit")
    }
}
