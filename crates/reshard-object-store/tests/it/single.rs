//! A checkpoint that is one object: it appears whole, replaces in one step, and nothing else stays.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use futures::{TryStreamExt, executor::block_on};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};
use reshard_object_store::{ObjectStores, object_store};
use reshard_storage::{
    Durability, FileBody, Hints, IfExists, Name, PlaceKind, Progress, Result, StorageError, Store,
    StoreExt, Transaction, Written,
};
use std::sync::Arc;

const URL: &str = "s3://bucket/models/one.bin";
/// It is uploaded at once, or in parts.
const LENGTHS: [usize; 2] = [10, 4_500];

fn name() -> Name {
    Name::new("one.bin").unwrap()
}

fn attempt(n: u64) -> String {
    format!("1-1a2b3c4d5e6f7081-{n:x}")
}

fn bytes(n: u8, len: usize) -> Bytes {
    (0..len).map(|i| (i / 3) as u8 ^ n).collect()
}

fn bucket() -> (Arc<InMemory>, Arc<dyn Store>) {
    let bucket = Arc::new(InMemory::new());
    let client = Arc::clone(&bucket) as Arc<dyn ObjectStore>;
    let stores = ObjectStores::new()
        .with_client("s3://bucket", client)
        .with_hints(Hints::default().with_part_size(1_000).with_concurrency(2));
    let folder = stores.open_place(URL).unwrap();
    (bucket, folder.of_kind(PlaceKind::File).unwrap())
}

/// All objects of the bucket.
fn objects(bucket: &InMemory) -> Vec<String> {
    let all: Vec<_> = block_on(bucket.list(None).try_collect()).unwrap();
    all.into_iter().map(|m| m.location.to_string()).collect()
}

fn put(bucket: &InMemory, bytes: &Bytes) {
    let path = Path::parse("models/one.bin").unwrap();
    block_on(bucket.put(&path, bytes.clone().into())).unwrap();
}

fn found(store: &dyn Store) -> Option<Bytes> {
    block_on(store.read_all(&name(), 1 << 20)).unwrap()
}

fn write(version: &dyn Transaction, bytes: &Bytes) -> Result<Vec<Written>> {
    let body = FileBody::from_bytes(name(), bytes.clone());
    block_on(version.write(vec![body], Durability::Machine, Progress::none()))
}

fn commit(version: &dyn Transaction, written: &[Written]) -> Result<()> {
    let entries: Vec<_> = written.iter().map(Written::entry).collect();
    block_on(version.commit(None, &entries, Durability::Machine))
}

#[test]
fn a_new_object_appears_whole_at_the_commit_and_nothing_else_stays() {
    for len in LENGTHS {
        let (bucket, store) = bucket();
        let version = block_on(store.begin(&attempt(1), IfExists::Refuse)).unwrap();
        let bytes = bytes(1, len);
        let written = write(&*version, &bytes).unwrap();
        assert_eq!((&written[0].name, written[0].bytes), (&name(), len as u64));
        assert_eq!(found(&*store), None);
        commit(&*version, &written).unwrap();
        assert_eq!(found(&*store), Some(bytes));
        assert_eq!(objects(&bucket), ["models/one.bin"]);
        block_on(version.rollback()).unwrap();
        assert_eq!(objects(&bucket), ["models/one.bin"]);
    }
}

#[test]
fn an_object_is_replaced_in_one_step_only_if_that_is_asked_for() {
    for len in LENGTHS {
        let (bucket, store) = bucket();
        put(&bucket, &bytes(1, len));
        let refused = block_on(store.begin(&attempt(1), IfExists::Refuse));
        assert!(matches!(refused, Err(StorageError::Exists { .. })));
        let replace = IfExists::Replace([name()].into());
        let version = block_on(store.begin(&attempt(2), replace)).unwrap();
        let written = write(&*version, &bytes(2, len)).unwrap();
        // Another client, since a reader stays with the version that it saw first.
        let get = || {
            let path = Path::parse("models/one.bin").unwrap();
            block_on(async { bucket.get(&path).await.unwrap().bytes().await.unwrap() })
        };
        assert_eq!(get(), bytes(1, len));
        commit(&*version, &written).unwrap();
        assert_eq!(get(), bytes(2, len));
        assert_eq!(objects(&bucket), ["models/one.bin"]);
    }
}

#[test]
fn what_somebody_puts_there_meanwhile_stays() {
    for (old, len) in [(false, 10), (true, 10), (false, 4_500), (true, 4_500)] {
        let (bucket, store) = bucket();
        let how = match old {
            true => IfExists::Replace([name()].into()),
            false => IfExists::Refuse,
        };
        if old {
            put(&bucket, &bytes(1, len));
        }
        let version = block_on(store.begin(&attempt(1), how)).unwrap();
        let written = write(&*version, &bytes(2, len)).unwrap();
        put(&bucket, &bytes(3, len));
        let e = commit(&*version, &written).unwrap_err();
        match old {
            true => assert!(matches!(e, StorageError::Changed { .. }), "{e}"),
            false => assert!(matches!(e, StorageError::Exists { .. }), "{e}"),
        }
        assert_eq!(found(&*bucket_again(&bucket)), Some(bytes(3, len)));
        block_on(version.rollback()).unwrap();
        assert_eq!(objects(&bucket), ["models/one.bin"]);
    }
}

fn bucket_again(bucket: &Arc<InMemory>) -> Arc<dyn Store> {
    let client = Arc::clone(bucket) as Arc<dyn ObjectStore>;
    let stores = ObjectStores::new().with_client("s3://bucket", client);
    let folder = stores.open_place(URL).unwrap();
    folder.of_kind(PlaceKind::File).unwrap()
}

#[test]
fn any_rank_writes_it_and_the_one_that_began_commits_it() {
    let (bucket, store) = bucket();
    let first = block_on(store.begin(&attempt(1), IfExists::Refuse)).unwrap();
    let place = first.place();
    let second = block_on(store.join(&attempt(1), place.as_deref())).unwrap();
    let elsewhere = block_on(store.join(&attempt(1), Some("s3://bucket/other.bin")));
    assert!(matches!(elsewhere, Err(StorageError::NotJoined { .. })));
    let none = block_on(first.write(Vec::new(), Durability::Machine, Progress::none()));
    assert!(none.unwrap().is_empty());
    let written = write(&*second, &bytes(1, 4_500)).unwrap();
    assert!(commit(&*second, &written).is_err());
    commit(&*first, &written).unwrap();
    assert_eq!(found(&*store), Some(bytes(1, 4_500)));
    assert_eq!(objects(&bucket), ["models/one.bin"]);
}

#[test]
fn what_is_more_than_one_object_or_not_all_of_it_is_refused_and_taken_back() {
    let (bucket, store) = bucket();
    let version = block_on(store.begin(&attempt(1), IfExists::Refuse)).unwrap();
    let body = |n: usize| FileBody::from_bytes(Name::new(n.to_string()).unwrap(), bytes(1, 5));
    let two = vec![body(1), body(2)];
    let e = block_on(version.write(two, Durability::Machine, Progress::none())).unwrap_err();
    assert!(e.to_string().contains("2 files"), "{e}");
    assert!(commit(&*version, &[]).is_err());
    let written = write(&*version, &bytes(1, 5)).unwrap();
    let mut longer: Vec<_> = written.iter().map(Written::entry).collect();
    longer[0].bytes += 1;
    let e = block_on(version.commit(None, &longer, Durability::Machine)).unwrap_err();
    assert!(matches!(e, StorageError::Incomplete { .. }), "{e}");
    let record = Some((Name::new("record").unwrap(), Bytes::new()));
    let entries = [written[0].entry()];
    let e = block_on(version.commit(record, &entries, Durability::Machine)).unwrap_err();
    assert!(e.to_string().contains("also writes record"), "{e}");
    // What a killed save leaves is found by the URL of the object.
    let left = block_on(store.leftovers()).unwrap();
    assert_eq!((left.len(), &*left[0].attempt), (1, &*attempt(1)));
    block_on(version.rollback()).unwrap();
    assert!(objects(&bucket).is_empty());
    assert!(block_on(store.leftovers()).unwrap().is_empty());
}
