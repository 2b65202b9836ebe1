//! Every store of this crate keeps the contract, wrapped or not.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_storage::{
    CountingStore, Hints, LocalStore, Store, Stores,
    testkit::{FaultStore, MemoryStore, VersionedStore, store_contract},
};
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

fn local(dir: &tempfile::TempDir) -> impl Fn() -> Arc<dyn Store> {
    let count = RefCell::new(0);
    let root = dir.path().to_path_buf();
    move || {
        *count.borrow_mut() += 1;
        Arc::new(LocalStore::at(root.join(format!("deep/er/place-{}", count.borrow()))).unwrap())
    }
}

#[test]
fn a_local_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    block_on(store_contract(local(&dir)));
}

#[test]
fn a_place_in_memory_keeps_the_contract() {
    block_on(store_contract(|| Arc::new(MemoryStore::new())));
    // Small parts and no joining, as if every request were dear.
    let hints = Hints::default()
        .with_part_size(100)
        .with_coalesce_gap(0)
        .with_concurrency(3);
    block_on(store_contract(|| {
        Arc::new(MemoryStore::new().with_hints(hints))
    }));
}

#[test]
fn a_place_with_versions_side_by_side_keeps_the_contract() {
    block_on(store_contract(|| Arc::new(VersionedStore::new())));
    block_on(store_contract(|| {
        let store = FaultStore::new(Arc::new(VersionedStore::new()));
        Arc::new(CountingStore::new(Arc::new(store)))
    }));
}

#[test]
fn wrappers_keep_the_contract_of_what_they_wrap() {
    let dir = tempfile::tempdir().unwrap();
    let make = local(&dir);
    block_on(store_contract(|| {
        Arc::new(CountingStore::new(Arc::new(FaultStore::new(make()))))
    }));
}

#[test]
fn urls_open_stores_of_their_scheme() {
    static N: AtomicUsize = AtomicUsize::new(0);
    let stores = Stores::linked().unwrap();
    block_on(store_contract(|| {
        stores
            .open(&format!(
                "memory://contract-{}",
                N.fetch_add(1, Ordering::Relaxed)
            ))
            .unwrap()
    }));
    let schemes: Vec<_> = stores.schemes().map(|s| s.scheme).collect();
    assert_eq!(schemes, ["file", "memory"]);
}
