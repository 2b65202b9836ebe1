//! Places in object stores keep the contract of stores.

use futures::executor::block_on;
use reshard_object_store::{ObjectStorePlace, ObjectStores, object_store::memory::InMemory};
use reshard_storage::{Hints, Store, testkit::store_contract};
use std::sync::Arc;

#[test]
fn a_place_in_memory_keeps_the_contract() {
    block_on(store_contract(|| Arc::new(ObjectStorePlace::in_memory())));
}

#[test]
fn small_parts_and_few_requests_at_once_keep_the_contract() {
    let hints = Hints::default()
        .with_part_size(70_000)
        .with_coalesce_gap(0)
        .with_concurrency(2);
    block_on(store_contract(|| {
        let bucket = Arc::new(InMemory::new());
        let stores = ObjectStores::new()
            .with_client("s3://bucket", bucket)
            .with_hints(hints);
        let place = stores.open_place("s3://bucket/deep/er/place").unwrap();
        Arc::new(place) as Arc<dyn Store>
    }));
}
