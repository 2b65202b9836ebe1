//! Every store of this crate keeps the contract, wrapped or not.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use reshard_storage::{
    CountingStore, Extent, FileBody, Hints, Length, LocalStore, Name, Result, StorageError, Store,
    Stores,
    testkit::{FaultStore, MemoryStore, VersionedStore, store_contract},
};
use std::{
    cell::RefCell,
    ops::Range,
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

/// A store that takes a range that ends before it starts for a damaged file.
#[derive(Debug)]
struct Backwards(MemoryStore);

#[async_trait]
impl Store for Backwards {
    reshard_storage::forward! { 0: url hints list head remove begin join }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        if range.end < range.start {
            return Err(StorageError::Short {
                path: name.to_string(),
                range,
                size: 0,
            });
        }
        self.0.read(name, range).await
    }
}

#[test]
fn a_broken_rule_is_named_with_the_place_where_it_is_written() {
    let broken = std::panic::catch_unwind(|| {
        block_on(store_contract(|| Arc::new(Backwards(MemoryStore::new()))));
    });
    let text = *broken.unwrap_err().downcast::<String>().unwrap();
    let begins = "the store breaks the rule `reads.backwards_range_is_invalid`, which is written at `Store::read`: ";
    assert!(text.starts_with(begins), "{text}");
    assert!(
        text.contains("a range that ends before it starts is no damage"),
        "{text}"
    );
}

/// Gives more than it promised, for ever.
struct Endless;

impl Extent for Endless {
    fn length(&self) -> Length {
        Length::Exact(10)
    }
    fn next_block(&mut self) -> Option<std::io::Result<Bytes>> {
        Some(Ok(Bytes::from_static(&[7; 8])))
    }
}

#[test]
fn a_file_in_memory_has_its_receipts_and_the_length_that_was_promised() {
    let name = || Name::new("a").unwrap();
    let extents: Vec<Box<dyn Extent>> = vec![
        Box::new(Bytes::from_static(b"abc")),
        Box::new(Bytes::from_static(b"de")),
    ];
    let (written, bytes) = block_on(FileBody::new(name(), extents).into_bytes()).unwrap();
    assert_eq!(bytes, "abcde");
    let ranges: Vec<_> = written.extents.into_iter().map(|e| e.range).collect();
    assert_eq!((written.bytes, ranges), (5, vec![0..3, 3..5]));

    let body = FileBody::new(name(), vec![Box::new(Endless)]);
    let e = block_on(body.into_bytes()).unwrap_err();
    assert!(
        matches!(e, StorageError::ExtentLength { got: 16, .. }),
        "{e}"
    );
}
