//! What a cache costs in requests, where files lie among many others.

use crate::given::{
    name,
    service::{Differs, Service},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use object_store::{
    GetOptions, GetResult, ObjectStore, ObjectStoreExt, memory::InMemory, path::Path,
};
use reshard_object_store::{ObjectStorePlace, object_store, read_through};
use reshard_storage::{CachedStore, PlaceKind, Store};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// How often a bucket was asked.
#[derive(Debug, Default)]
struct Asked {
    /// Answers to listings.
    pages: AtomicUsize,
    /// Requests for an object, or for what is known of it.
    objects: AtomicUsize,
}

impl Asked {
    fn take(&self) -> (usize, usize) {
        (self.pages.swap(0, Relaxed), self.objects.swap(0, Relaxed))
    }
}

#[derive(Debug)]
struct Counted {
    bucket: Arc<InMemory>,
    asked: Arc<Asked>,
}

#[async_trait]
impl Differs for Counted {
    fn inner(&self) -> &InMemory {
        &self.bucket
    }

    async fn get(&self, of: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.asked.objects.fetch_add(1, Relaxed);
        self.bucket.get_opts(of, options).await
    }

    fn page(&self) {
        self.asked.pages.fetch_add(1, Relaxed);
    }
}

/// A bucket with these files, each of which has its name as its bytes.
struct Bucket(Arc<InMemory>);

impl Bucket {
    fn new(files: impl IntoIterator<Item = String>) -> Self {
        let bucket = Arc::new(InMemory::new());
        for file in files {
            let bytes = Bytes::from(file.clone());
            block_on(bucket.put(&Path::from(file), bytes.into())).unwrap();
        }
        Self(bucket)
    }

    /// A reader of a place, and how often it asks. Each has a cache of its own.
    fn reader(&self, at: &str, kind: PlaceKind) -> Reader {
        let asked = Arc::new(Asked::default());
        let client = Service::client(Counted {
            bucket: Arc::clone(&self.0),
            asked: Arc::clone(&asked),
        });
        let place = ObjectStorePlace::new(client, format!("s3://bucket/{at}"), at).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cached = CachedStore::new(Arc::new(place), read_through(dir.path(), 1 << 30));
        let store = match kind {
            PlaceKind::Folder => block_on(cached.pinned()).unwrap().unwrap(),
            kind => cached.of_kind(kind).unwrap(),
        };
        let folder = match (kind, at.rsplit_once('/')) {
            (PlaceKind::Folder, _) => format!("{at}/"),
            (PlaceKind::Prefix, _) => at.to_owned(),
            (_, Some((folder, _))) => format!("{folder}/"),
            (_, None) => String::new(),
        };
        Reader {
            store,
            asked,
            folder,
            _dir: dir,
        }
    }
}

struct Reader {
    store: Arc<dyn Store>,
    asked: Arc<Asked>,
    /// What the names of its files begin with in the bucket.
    folder: String,
    _dir: tempfile::TempDir,
}

impl Reader {
    /// Reads a file; says how many answers to listings and how many requests for objects that takes.
    fn read(&self, file: &str) -> (usize, usize) {
        let got = block_on(self.store.read_all(&name(file), 1 << 20)).unwrap();
        assert_eq!(got.unwrap(), format!("{}{file}", self.folder));
        self.asked.take()
    }

    /// Looks at a file; says the same.
    fn look(&self, file: &str) -> (usize, usize) {
        let head = block_on(self.store.head(&name(file))).unwrap();
        assert_eq!(head.unwrap().bytes as usize, self.folder.len() + file.len());
        self.asked.take()
    }
}

fn numbered(folder: &str, files: usize) -> impl Iterator<Item = String> {
    (0..files).map(move |n| format!("{folder}/{n:06}"))
}

#[test]
fn a_single_file_is_found_by_one_request_whatever_lies_beside_it() {
    let files = numbered("data", 6_000).chain(["data/x.safetensors".into()]);
    let bucket = Bucket::new(files);
    let reader = bucket.reader("data/x.safetensors", PlaceKind::File);
    // Its tag, and its bytes.
    assert_eq!(reader.read("x.safetensors"), (0, 2));
    assert_eq!(reader.read("x.safetensors"), (0, 0));
}

#[test]
fn files_with_a_prefix_are_asked_for_alone_while_they_are_few() {
    let named = |n: usize| format!("data/ckpt.{n:02}");
    let bucket = Bucket::new(numbered("data", 6_000).chain((0..20).map(named)));
    let reader = bucket.reader("data/ckpt", PlaceKind::Prefix);
    let pages: Vec<usize> = (0..20)
        .map(|n| reader.read(&format!(".{n:02}")).0)
        .collect();
    // Of seven pages the first four tell nothing; after the next four files there are as many as needed.
    let mut wanted = [0; 20];
    (wanted[4], wanted[9]) = (4, 7);
    assert_eq!(pages, wanted);
}

#[test]
fn the_tags_of_a_checkpoint_take_a_request_for_each_thousand_files() {
    let files = numbered("step/1-a", 1_500).chain(["step/record".into()]);
    let reader = Bucket::new(files).reader("step", PlaceKind::Folder);
    assert_eq!(reader.read("record"), (2, 1));
    assert_eq!(reader.read("1-a/000007"), (0, 1));
}

#[test]
fn a_long_place_is_not_listed_again_for_each_of_its_folders() {
    let folders = (0..50).flat_map(|n| numbered_in(n, 100));
    let reader = Bucket::new(folders).reader("array", PlaceKind::Folder);
    assert_eq!(reader.read("000/000000"), (4 + 1, 1));
    for n in 1..50 {
        assert_eq!(reader.read(&format!("{n:03}/000000")), (1, 1));
        assert_eq!(reader.read(&format!("{n:03}/000099")), (0, 1));
    }
}

fn numbered_in(folder: usize, files: usize) -> Vec<String> {
    numbered(&format!("array/{folder:03}"), files).collect()
}

#[test]
fn a_long_folder_costs_whoever_reads_little_little_and_whoever_reads_all_one_listing() {
    let bucket = Bucket::new(numbered("array", 10_000));
    let reader = bucket.reader("array", PlaceKind::Folder);
    let (mut pages, mut alone) = (0, 0);
    for n in 0..10_000 {
        let (listed, asked) = reader.look(&format!("{n:06}"));
        (pages, alone) = (pages + listed, alone + asked);
        assert!(pages <= 4 + 2 * alone, "{pages} {alone}");
        if n == 3 {
            assert_eq!((pages, alone), (4, 4));
        }
    }
    // The third listing is long enough.
    assert_eq!((pages, alone), (4 + 8 + 10, 1 + 4 + 1 + 8));
}
