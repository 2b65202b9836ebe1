//! How many requests a place gets where each of them is dear. The numbers are pinned: a change that needs more has to say so here.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::{
    executor::block_on,
    future::{BoxFuture, join_all},
};
use reshard::{
    Checkpoint, CommonForm, DType, Dialect, LocalGroup, OpenOptions, Region, ShardedTensor,
    StateDict, Tensor,
    storage::{
        CountingStore, Counts, Hints, Store,
        testkit::{MemoryStore, VersionedStore},
    },
    torch_dist::TorchDistConfig,
};
use std::sync::Arc;

const URL: &str = "memory://requests";

/// Those of an object store.
fn dear() -> Hints {
    Hints::default()
        .with_coalesce_gap(1 << 20)
        .with_part_size(8 << 20)
        .with_concurrency(32)
}

/// Two ranks save so many tensors, each of which has so many rows of `columns` elements on each rank.
fn save(store: &Arc<dyn Store>, (tensors, rows, columns): (u64, u64, u64), how: How) {
    let groups = LocalGroup::new(2);
    let states = [0, 1].map(|rank| {
        let mut state = StateDict::new();
        // They share their elements, because only requests are counted.
        let elements = usize::try_from(rows * columns).unwrap();
        let shared = Tensor::from_vec(&[rows, columns], vec![1f32; elements]).unwrap();
        for t in 0..tensors {
            let (key, data) = (format!("w{t:05}"), shared.clone());
            let region = Region::new([rank * rows, 0], [rows, columns]);
            let leaf = ShardedTensor::region_of(&key, DType::Float32, &[2 * rows, columns], region);
            state.insert(key, leaf.with_data(data));
        }
        state.insert("step", 7);
        state
    });
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let config = TorchDistConfig::new().with_file_per_item(how.many_files);
        let save = reshard::save(state, URL)
            .group(group)
            .store(Arc::clone(store))
            .dialect(how.dialect)
            .common_form(how.common)
            .strategy(config);
        let save: BoxFuture<'_, _> = Box::pin(async { save.await.map(drop) });
        save
    });
    for saved in block_on(join_all(saves)) {
        saved.unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
struct How {
    dialect: Dialect,
    common: CommonForm,
    many_files: bool,
}

const DCP: How = How {
    dialect: Dialect::Dcp,
    common: CommonForm::File,
    many_files: false,
};

fn open(store: &Arc<dyn Store>) -> (Checkpoint, CountingStore) {
    let counting = CountingStore::new(Arc::clone(store));
    let options = OpenOptions::new().store(Arc::new(counting.clone()));
    let checkpoint = block_on(options.open(URL)).unwrap();
    (checkpoint, counting)
}

#[test]
fn a_checkpoint_of_many_files_is_open_after_few_requests() {
    let dcp = How {
        many_files: true,
        ..DCP
    };
    let megatron = How {
        dialect: Dialect::Megatron,
        ..dcp
    };
    let object = How {
        common: CommonForm::Object,
        ..megatron
    };
    // Opening, and then common state. In Megatron's dialect it is in a file, or in an object, which needs no request but its own.
    for (how, opening, common) in [(dcp, 4, 0), (megatron, 4, 1), (object, 4, 2)] {
        for side_by_side in [false, true] {
            let store: Arc<dyn Store> = match side_by_side {
                false => Arc::new(MemoryStore::new().with_hints(dear())),
                true => Arc::new(VersionedStore::new().with_hints(dear())),
            };
            save(&store, (500, 1, 4), how);
            let (checkpoint, counting) = open(&store);
            let Counts {
                requests, lists, ..
            } = counting.take();
            assert_eq!((requests, lists), (opening, 0), "{how:?} {side_by_side}");
            block_on(checkpoint.common()).unwrap();
            let counts = counting.take();
            assert_eq!((counts.requests, counts.lists), (common, 0), "{how:?}");
            assert_eq!(checkpoint.metadata().tensor_count(), 500);
        }
    }
}

#[test]
fn many_small_tensors_are_read_together() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().with_hints(dear()));
    // 8,192 chunks of 64 KiB in two files.
    save(&store, (4096, 128, 128), DCP);
    let counting = CountingStore::new(Arc::clone(&store));
    let mut template = StateDict::new();
    for t in 0..4096 {
        let key = format!("w{t:05}");
        let leaf = ShardedTensor::region_of(
            &key,
            DType::Float32,
            &[256, 128],
            Region::whole(&[256, 128]),
        );
        template.insert(key, leaf);
    }
    let load = reshard::load(template, URL).store(Arc::new(counting.clone()));
    let loaded = block_on(async { load.await }).unwrap();
    drop(loaded);
    let counts = counting.take();
    assert!(counts.requests <= 200, "{} requests", counts.requests);
    let elements = 8192 * (64 << 10);
    assert!(
        counts.read() <= elements + elements / 20,
        "{}",
        counts.read()
    );
}

#[test]
fn rows_of_large_chunks_take_two_requests_a_chunk_and_few_bytes_beside() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().with_hints(dear()));
    // 24 chunks of 4 MiB on each rank. Every other one is wanted, so that no two of them are neighbours.
    save(&store, (24, 1024, 1024), DCP);
    for step in [1, 2] {
        let counting = CountingStore::new(Arc::clone(&store));
        let mut template = StateDict::new();
        for t in (0..24).step_by(step) {
            let key = format!("w{t:05}");
            let rows = Region::new([256, 0], [256, 1024]);
            let leaf = ShardedTensor::region_of(&key, DType::Float32, &[2048, 1024], rows);
            template.insert(key, leaf);
        }
        let chunks = 24 / step as u64;
        let load = reshard::load(template, URL).store(Arc::new(counting.clone()));
        block_on(async { load.await }).unwrap();
        let counts = counting.take();
        let opening = 4;
        // The first archive of a form is read at both ends.
        assert!(
            counts.requests <= opening + 2 * chunks + 1,
            "{} requests for {chunks} chunks",
            counts.requests
        );
        let wanted = chunks << 20;
        let data = counts.records.bytes + counts.records.beside;
        let heads = counts.range_bytes;
        assert!(
            data <= wanted + wanted / 50 && heads <= 64 << 10,
            "{data} {heads}"
        );
    }
}

/// A store with these files but one, which has other bytes.
#[cfg(feature = "zarr")]
fn with_other(store: &MemoryStore, name: &str, bytes: Vec<u8>) -> MemoryStore {
    use reshard::storage::StoreExt as _;
    let other = MemoryStore::new().with_hints(dear());
    for file in block_on(store.files()).unwrap() {
        let old = block_on(store.read(&file.name, 0..file.bytes)).unwrap();
        let is_it = file.name.as_str() == name;
        other.put(file.name, if is_it { bytes.clone().into() } else { old });
    }
    other
}

#[cfg(feature = "zarr")]
#[test]
fn a_note_tells_the_format_only_beside_the_record_that_it_belongs_to() {
    let mut state = StateDict::new();
    for n in 0..100u32 {
        let tensor = Tensor::from_vec(&[1], vec![n]).unwrap();
        state.insert(format!("t{n}"), tensor);
    }
    let place = MemoryStore::new().with_hints(dear());
    let save = reshard::save(&state, URL)
        .store(Arc::new(place.clone()))
        .dialect(Dialect::Dcp)
        .strategy(reshard::zarr::Zarr3Config::default());
    block_on(async { save.await.map(drop) }).unwrap();
    let opened = |place: &MemoryStore| {
        let (checkpoint, counting) = open(&(Arc::new(place.clone()) as _));
        assert_eq!(checkpoint.backend().to_string(), "zarr3/1");
        assert_eq!(checkpoint.metadata().tensor_count(), 100);
        counting.take()
    };
    // The four of every opening, the record, and one listing of all files.
    let counts = opened(&place);
    assert_eq!((counts.requests, counts.lists), (6, 1));
    // A note of another record tells nothing, so the names of all formats are looked for, in one listing more.
    let note = reshard::storage::Name::new("reshard.json").unwrap();
    let text = block_on(place.read_all(&note, 1 << 20)).unwrap().unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    json["commit"]["sha256"] = "0".repeat(64).into();
    let counts = opened(&with_other(&place, "reshard.json", json.to_string().into()));
    assert!(counts.requests > 6, "{counts:?}");
    assert_eq!(counts.lists, 2);
    // What is found is no more than what was noted.
    let text = vec![b' '; 7];
    let counts = opened(&with_other(&place, "reshard.json", text));
    assert_eq!(counts.lists, 2);
}

#[cfg(feature = "tensor-bundle")]
mod beside {
    use super::{CountingStore, MemoryStore, StateDict, Store, Tensor, block_on, dear};
    use async_trait::async_trait;
    use bytes::Bytes;
    use reshard::{
        Checkpoint, Dialect, OpenOptions,
        storage::{
            Depth, Head, Hints, IfExists, Listing, Name, PartStore, PlaceKind, StorageError,
            Transaction,
        },
        tensor_bundle::TensorBundleConfig,
    };
    use std::{fs, ops::Range, sync::Arc};

    type Result<T> = std::result::Result<T, StorageError>;

    /// A place below a folder of a bucket. As a folder it is empty.
    #[derive(Clone, Debug)]
    struct Below {
        folder: MemoryStore,
        above: CountingStore,
        last: &'static str,
    }

    #[async_trait]
    impl Store for Below {
        fn url(&self) -> String {
            format!("memory://runs/{}", self.last)
        }
        fn hints(&self) -> Hints {
            self.folder.hints()
        }
        async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
            self.folder.read(name, range).await
        }
        async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
            self.folder.list(below, depth).await
        }
        async fn head(&self, name: &Name) -> Result<Option<Head>> {
            self.folder.head(name).await
        }
        async fn remove(&self, names: &[Name]) -> Result<()> {
            self.folder.remove(names).await
        }
        fn of_kind(&self, kind: PlaceKind) -> Option<Arc<dyn Store>> {
            let above = Arc::new(self.above.clone());
            Some(Arc::new(match kind {
                PlaceKind::File => PartStore::file(self.url(), above, Name::new(self.last).ok()?),
                _ => PartStore::prefix(self.url(), above, self.last),
            }))
        }
        async fn begin(&self, attempt: &str, how: IfExists) -> Result<Arc<dyn Transaction>> {
            self.folder.begin(attempt, how).await
        }
        async fn join(&self, attempt: &str, at: Option<&str>) -> Result<Arc<dyn Transaction>> {
            self.folder.join(attempt, at).await
        }
    }

    /// What comes of opening a place below this folder, and the requests to the folder and the listings among them.
    fn opened(
        above: &MemoryStore,
        last: &'static str,
    ) -> (reshard::Result<Checkpoint>, (u64, u64)) {
        let above = CountingStore::new(Arc::new(above.clone()));
        let place = Below {
            folder: MemoryStore::new().with_hints(dear()),
            above: above.clone(),
            last,
        };
        let options = OpenOptions::new().store(Arc::new(place.clone()));
        let opened = block_on(options.open(&place.url()));
        let counts = above.take();
        (opened, (counts.requests, counts.lists))
    }

    /// A folder of files that have nothing to do with a checkpoint.
    fn runs() -> MemoryStore {
        let runs = MemoryStore::new().with_hints(dear());
        for file in ["other", "step-1/x", "step"] {
            runs.put(Name::new(file).unwrap(), file.into());
        }
        runs
    }

    #[test]
    fn what_lies_beside_a_place_that_is_not_there_is_not_listed() {
        for last in ["typo", "step-5", "o"] {
            let (opened, counts) = opened(&runs(), last);
            let e = opened.unwrap_err();
            assert!(e.is_no_checkpoint(), "{e}");
            // It is looked for as one file, as the index of files with a prefix, and then as a file of another program.
            assert_eq!(counts, (3, 0), "{last}");
        }
    }

    #[test]
    fn files_with_a_prefix_are_found_by_the_name_of_their_index() {
        let runs = runs();
        let dir = tempfile::tempdir().unwrap();
        let mut state = StateDict::new();
        state.insert("a", Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap());
        let local = dir.path().join("ckpt-1");
        let save = reshard::save(&state, local.to_str().unwrap())
            .dialect(Dialect::Dcp)
            .strategy(TensorBundleConfig::default());
        block_on(async { save.await.map(drop) }).unwrap();
        for file in fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            let name = Name::new(file.file_name().to_str().unwrap()).unwrap();
            runs.put(name, fs::read(file.path()).unwrap().into());
        }
        let (checkpoint, (_, lists)) = opened(&runs, "ckpt-1");
        assert_eq!(checkpoint.unwrap().metadata().tensor_count(), 1);
        // The format looks at its files.
        assert_eq!(lists, 1);
    }
}
