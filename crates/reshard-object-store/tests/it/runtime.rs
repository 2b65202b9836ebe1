//! Any executor may poll the futures, and clients and runtimes may be handed over.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_object_store::{ObjectStorePlace, ObjectStores, object_store::memory::InMemory};
use reshard_storage::{Durability, FileBody, IfExists, Name, Progress, Store, Stores};
use std::sync::Arc;

async fn save_and_load(store: &dyn Store) {
    let attempt = "1-1a2b3c4d5e6f7081-0";
    let transaction = store.begin(attempt, IfExists::Refuse).await.unwrap();
    let name = Name::new(format!("{attempt}/a")).unwrap();
    let body = FileBody::from_bytes(name.clone(), vec![7; 20_000_000].into());
    let written = transaction
        .write(vec![body], Durability::Machine, Progress::none())
        .await
        .unwrap();
    let record = Name::new("record").unwrap();
    transaction
        .commit(
            Some((record, "done".into())),
            &[written[0].entry()],
            Durability::Machine,
        )
        .await
        .unwrap();
    let read = store.read(&name, 1..19_000_000).await.unwrap();
    assert_eq!(read.len(), 18_999_999);
}

#[test]
fn futures_run_on_any_executor() {
    block_on(save_and_load(&ObjectStorePlace::in_memory()));
    reshard_storage::wait(save_and_load(&ObjectStorePlace::in_memory()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(save_and_load(&ObjectStorePlace::in_memory()));
}

#[test]
fn requests_run_on_the_runtime_that_is_handed_over() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let stores = ObjectStores::new()
        .with_runtime(runtime.handle().clone())
        .with_client("gs://bucket/", Arc::new(InMemory::new()));
    let stores = Stores::default().with("gs", stores);
    let store = stores.open("gs://bucket/a/b/").unwrap();
    assert_eq!(store.url(), "gs://bucket/a/b");
    block_on(save_and_load(&*store));
    // Both names of one bucket have one client.
    let inside = stores.open("gs://bucket/a").unwrap();
    let record = Name::new("b/record").unwrap();
    assert_eq!(block_on(inside.read(&record, 0..4)).unwrap(), "done");

    // Without its runtime nothing works, and nothing hangs.
    drop(runtime);
    let record = Name::new("record").unwrap();
    assert!(block_on(store.read(&record, 0..4)).is_err());
}

#[test]
fn a_pinned_reader_never_sees_a_file_before_and_after_it_was_replaced() {
    use reshard_object_store::object_store::{ObjectStoreExt, path::Path};
    let bucket = Arc::new(InMemory::new());
    let put = async |bytes: &'static str| {
        let path = Path::from("a/b");
        bucket.put(&path, bytes.into()).await.unwrap();
    };
    let place = ObjectStorePlace::new(bucket.clone(), "s3://bucket/a", "a").unwrap();
    let name = Name::new("b").unwrap();
    block_on(async {
        put("old bytes").await;
        let pinned = place.pinned().await.unwrap().unwrap();
        assert_eq!(pinned.read(&name, 0..3).await.unwrap(), "old");
        put("new bytes").await;
        let e = pinned.read(&name, 4..9).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        let e = pinned.head(&name).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert_eq!(place.read(&name, 0..3).await.unwrap(), "new");
        let e = pinned.read_all(&name, 100).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    });
}
