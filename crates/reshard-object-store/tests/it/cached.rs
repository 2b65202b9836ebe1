//! Objects that are read through a cache on disk.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use futures::executor::block_on;
use reshard_object_store::{
    ObjectStorePlace,
    object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path},
    read_through,
};
use reshard_storage::{
    CachedStore, CountingStore, Counts, DiskCache, Name, PlaceKind, StorageError, Store,
    testkit::store_contract,
};
use std::{fs, path::PathBuf, sync::Arc, thread};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Bytes that tell where they are from.
fn bytes(salt: u64, len: usize) -> Bytes {
    let byte = |n: u64| (n.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 7) as u8;
    (0..len as u64).map(byte).collect()
}

fn put(bucket: &Arc<InMemory>, path: &str, content: Bytes) {
    block_on(bucket.put(&Path::from(path), content.into())).unwrap();
}

fn place(bucket: &Arc<InMemory>) -> Arc<dyn Store> {
    let store = Arc::clone(bucket) as Arc<dyn ObjectStore>;
    Arc::new(ObjectStorePlace::new(store, "s3://bucket/a", "a").unwrap())
}

/// A reader, as if it were another process, and what it asks the bucket for.
struct Reader {
    store: Arc<dyn Store>,
    counting: CountingStore,
}

impl Reader {
    fn new(bucket: &Arc<InMemory>, cache: DiskCache) -> Self {
        let counting = CountingStore::new(place(bucket));
        let store = CachedStore::new(Arc::new(counting.clone()), cache);
        let store = block_on(store.pinned()).unwrap().unwrap();
        Self { store, counting }
    }

    fn read(&self, file: &str, range: std::ops::Range<u64>) -> Bytes {
        block_on(self.store.read(&name(file), range)).unwrap()
    }

    fn counts(&self) -> Counts {
        self.counting.take()
    }
}

const LEN: usize = 3_000_000;

fn filled() -> Arc<InMemory> {
    let bucket = Arc::new(InMemory::new());
    for (n, file) in ["x", "y", "deep/er/z"].into_iter().enumerate() {
        put(&bucket, &format!("a/{file}"), bytes(n as u64, LEN));
    }
    put(&bucket, "a/empty", Bytes::new());
    bucket
}

#[test]
fn a_second_reader_makes_one_request_and_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = filled();
    let look = |reader: &Reader| {
        assert_eq!(reader.read("x", 10..20), bytes(0, LEN).slice(10..20));
        assert_eq!(reader.read("x", 0..LEN as u64), bytes(0, LEN));
        assert_eq!(
            reader.read("deep/er/z", 600_000..LEN as u64),
            bytes(2, LEN).slice(600_000..)
        );
        let all = |file: &str| block_on(reader.store.read_all(&name(file), 1 << 30)).unwrap();
        assert_eq!(all("y"), Some(bytes(1, LEN)));
        assert_eq!((all("none"), all("empty")), (None, Some(Bytes::new())));
        let head = block_on(reader.store.head(&name("y"))).unwrap();
        assert_eq!(head.unwrap().bytes, LEN as u64);
        let reads = vec![(name("y"), 5..6), (name("x"), 7..1_000_000)];
        let (got, _) = block_on(reader.store.read_ranges(reads)).unwrap();
        assert_eq!(got[1], bytes(0, LEN).slice(7..1_000_000));
    };
    let first = Reader::new(&bucket, read_through(dir.path(), 1 << 30));
    look(&first);
    let counts = first.counts();
    assert!(
        counts.requests > 3 && counts.range_bytes >= 8_000_000,
        "{counts:?}"
    );
    look(&first);
    assert_eq!(first.counts(), Counts::default());

    let second = Reader::new(&bucket, read_through(dir.path(), 1 << 30));
    look(&second);
    let counts = second.counts();
    assert_eq!((counts.requests, counts.range_bytes), (1, 0), "{counts:?}");
    // What does not exist, or reaches beyond its end, is told as without a cache.
    let e = block_on(second.store.read(&name("none"), 0..1)).unwrap_err();
    assert!(matches!(e, StorageError::NotFound { .. }), "{e}");
    let e = block_on(second.store.read(&name("x"), 5..LEN as u64 + 1)).unwrap_err();
    assert!(matches!(e, StorageError::Short { .. }), "{e}");
}

#[test]
fn an_object_that_was_replaced_is_never_served_from_its_old_version() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = filled();
    let cache = || read_through(dir.path(), 1 << 30);
    let old = Reader::new(&bucket, cache());
    assert_eq!(old.read("x", 0..300_000), bytes(0, LEN).slice(..300_000));
    // Of the same length.
    put(&bucket, "a/x", bytes(9, LEN));
    let new = Reader::new(&bucket, cache());
    assert_eq!(new.read("x", 0..LEN as u64), bytes(9, LEN));
    // Who has begun to read the old version gets it, or nothing.
    assert_eq!(old.read("x", 0..100), bytes(0, LEN).slice(..100));
    let e = block_on(old.store.read(&name("x"), 0..LEN as u64)).unwrap_err();
    assert!(matches!(e, StorageError::Replaced { .. }), "{e}");
    // And it has not spoilt the blocks of the new one.
    let third = Reader::new(&bucket, cache());
    assert_eq!(third.read("x", 0..LEN as u64), bytes(9, LEN));
    assert_eq!(third.counts().range_bytes, 0);
}

#[test]
fn a_place_with_more_objects_than_one_answer_has_is_known_after_its_first_file() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = filled();
    for n in 0..1_100 {
        put(&bucket, &format!("a/many/{n}"), Bytes::from_static(b"x"));
    }
    for requests in [3, 1] {
        let reader = Reader::new(&bucket, read_through(dir.path(), 1 << 30));
        reader.read("x", 0..10);
        reader.read("y", 0..0);
        reader.read("many/7", 0..1);
        let none = block_on(reader.store.read_all(&name("w"), 10)).unwrap();
        assert_eq!(none, None);
        let counts = reader.counts();
        assert_eq!(counts.requests, requests + 1, "{counts:?}");
    }
}

#[test]
fn a_single_file_is_cached_and_a_store_that_is_not_pinned_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = filled();
    for round in 0..2 {
        let store = Arc::clone(&bucket) as Arc<dyn ObjectStore>;
        let at = ObjectStorePlace::new(store, "s3://bucket/a/x", "a/x").unwrap();
        let counting = CountingStore::new(Arc::new(at));
        let store = CachedStore::new(
            Arc::new(counting.clone()),
            read_through(dir.path(), 1 << 30),
        );
        let file = store.of_kind(PlaceKind::File).unwrap();
        let got = block_on(file.read(&name("x"), 100..1_000_000)).unwrap();
        assert_eq!(got, bytes(0, LEN).slice(100..1_000_000));
        assert_eq!(counting.take().range_bytes > 0, round == 0);
    }
    let counting = CountingStore::new(place(&bucket));
    let store = CachedStore::new(
        Arc::new(counting.clone()),
        read_through(dir.path(), 1 << 30),
    );
    for _ in 0..2 {
        block_on(store.read(&name("y"), 0..100)).unwrap();
        assert_eq!(counting.take().range_bytes, 100);
    }
}

/// All files of a directory.
fn files(dir: &std::path::Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.flat_map(|e| match e.path() {
        path if path.is_dir() => files(&path),
        path => vec![path],
    })
    .collect()
}

#[test]
fn whatever_becomes_of_the_cache_the_bytes_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = filled();
    let read = || {
        let reader = Reader::new(&bucket, read_through(dir.path(), 1 << 30));
        assert_eq!(reader.read("x", 0..LEN as u64), bytes(0, LEN));
        reader.counts().range_bytes
    };
    assert_eq!([read(), read()], [LEN as u64, 0]);
    type Spoil = fn(usize, &std::path::Path);
    let spoils: [Spoil; 5] = [
        |n, path| {
            let mut bytes = fs::read(path).unwrap();
            let at = (n * 7_919) % bytes.len();
            bytes[at] ^= 0x40;
            fs::write(path, bytes).unwrap();
        },
        |n, path| {
            let len = path.metadata().unwrap().len();
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(len * n as u64 / 20)
                .unwrap();
        },
        |_, path| fs::write(path, "").unwrap(),
        |_, path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        |_, path| fs::remove_dir_all(path.parent().unwrap()).unwrap_or(()),
    ];
    for spoil in spoils {
        files(dir.path()).iter().enumerate().for_each(|(n, path)| {
            if path.exists() {
                spoil(n, path);
            }
        });
        assert_eq!(read(), LEN as u64);
        read();
    }
    // A cache that can't be written, because something else lies there.
    let taken = dir.path().join("taken");
    fs::write(&taken, "").unwrap();
    let reader = Reader::new(&bucket, read_through(taken, 1 << 30));
    assert_eq!(
        reader.read("y", 5..900_000),
        bytes(1, LEN).slice(5..900_000)
    );
}

#[test]
fn readers_at_the_same_time_share_a_small_cache_and_all_read_what_is_right() {
    const MOST: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let bucket = filled();
    thread::scope(|scope| {
        for salt in 0..4u64 {
            let (bucket, dir) = (&bucket, dir.path());
            scope.spawn(move || {
                let mut at = salt;
                for _ in 0..40 {
                    // Each with a cache of its own, as processes have.
                    let reader = Reader::new(bucket, read_through(dir, MOST));
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let from = (at >> 33) % (LEN as u64 - 1);
                    let to = LEN as u64 - (at >> 40) % (LEN as u64 - from);
                    let (file, n) = [("x", 0), ("y", 1), ("deep/er/z", 2)][(at >> 60) as usize % 3];
                    let want = bytes(n, LEN).slice(from as usize..to as usize);
                    assert!(
                        reader.read(file, from..to) == want,
                        "{from}..{to} of {file}"
                    );
                }
            });
        }
    });
    let sum: u64 = files(dir.path())
        .iter()
        .map(|f| f.metadata().unwrap().len())
        .sum();
    assert!(
        sum > 0 && sum <= MOST + (MOST / 16 + (1 << 18)) * 4,
        "{sum}"
    );
}

#[test]
fn a_place_behind_a_cache_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let cache = read_through(dir.path(), 1 << 30);
    block_on(store_contract(|| {
        let place = Arc::new(ObjectStorePlace::in_memory());
        Arc::new(CachedStore::new(place, cache.clone()))
    }));
}
