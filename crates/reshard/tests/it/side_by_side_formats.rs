//! Which formats can be saved, and replaced, in places that keep versions side by side.
#![cfg(all(
    feature = "safetensors",
    feature = "torch-save",
    feature = "zarr",
    feature = "tensor-bundle"
))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use futures::{
    executor::block_on,
    future::{BoxFuture, join_all},
};
use reshard::{
    DType, Dialect, ErrorKind, LocalGroup, OpenOptions, Region, ShardedTensor, StateDict, Stores,
    Tensor,
    policy::MaxShardSize,
    safetensors::SafetensorsConfig,
    storage::{
        Store, StoreExt,
        testkit::{Fault, FaultStore, Op, VersionedStore},
    },
    strategy::SaveShardedStrategy,
    tensor_bundle::TensorBundleConfig,
    torch_save::TorchSaveConfig,
    zarr::{Zarr3Config, ZarrConfig},
};
use std::{sync::Arc, time::Duration};

const URL: &str = "versioned://place";

fn state(version: u8) -> StateDict {
    let mut state = StateDict::new();
    for (key, rows) in [("a", 4), ("b", 8)] {
        let data = Tensor::from_vec(&[rows, 4], vec![f32::from(version); 4 * rows as usize]);
        state.insert(key, ShardedTensor::full(key, data.unwrap()));
    }
    state
}

type Config = fn() -> SaveShardedStrategy;

fn save(
    store: Arc<dyn Store>,
    version: u8,
    config: Config,
    overwrite: bool,
) -> Result<(), reshard::Error> {
    let state = state(version);
    let mut save = reshard::save(&state, URL)
        .store(store)
        .strategy(config())
        .dialect(Dialect::TensorsOnly)
        .overwrite(overwrite);
    if &*config().key().backend == "torch_save" {
        // A file has room for one of the tensors.
        save = save.policy(MaxShardSize::new(1_500));
    }
    block_on(async { save.await.map(drop) })
}

fn found(store: &VersionedStore) -> Option<u8> {
    let open = OpenOptions::new().store(Arc::new(store.clone()) as Arc<dyn Store>);
    let checkpoint = match block_on(open.open(URL)) {
        Ok(checkpoint) => checkpoint,
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        Err(e) => panic!("{e}: {:?}", names(store)),
    };
    let mut all = Vec::new();
    for (key, elements) in [("a", 16), ("b", 32)] {
        let tensor = block_on(checkpoint.tensor(key).unwrap().read(..)).unwrap();
        let values = tensor.into_vec::<f32>().unwrap();
        assert_eq!(values.len(), elements);
        all.extend(values);
    }
    assert!(all.iter().all(|v| *v == all[0]), "of two versions: {all:?}");
    Some(all[0] as u8)
}

fn names(store: &VersionedStore) -> Vec<String> {
    let files = block_on(store.files()).unwrap();
    files.into_iter().map(|f| f.name.to_string()).collect()
}

fn plain(store: &VersionedStore) -> Arc<dyn Store> {
    Arc::new(store.clone())
}

const INDEXED: [Config; 2] = [
    || SafetensorsConfig::default().into(),
    || TorchSaveConfig::default().into(),
];

/// Files of one name in every version.
const IN_FOLDER: Config = || TensorBundleConfig::default().with_in_folder("ckpt").into();

#[test]
fn an_index_is_replaced_and_names_the_files_of_its_version() {
    for config in INDEXED {
        let store = VersionedStore::new();
        save(plain(&store), 1, config, false).unwrap();
        assert_eq!(found(&store), Some(1));
        save(plain(&store), 2, config, true).unwrap();
        assert_eq!(found(&store), Some(2));
        let top = block_on(store.top()).unwrap();
        assert_eq!((top.files.len(), top.folders.len()), (1, 2));
        assert!(top.files[0].name.as_str().ends_with(".index.json"));
        let stores = Stores::only(plain(&store));
        let prune = reshard_manager::prune(URL)
            .stores(stores)
            .older_than(Duration::ZERO);
        block_on(async { prune.await }).unwrap();
        assert_eq!(block_on(store.top()).unwrap().folders.len(), 1);
        assert_eq!(found(&store), Some(2));
    }
}

#[test]
fn what_reshard_notes_of_safetensors_lies_with_its_version() {
    let store = VersionedStore::new();
    save(plain(&store), 1, INDEXED[0], false).unwrap();
    let notes: Vec<_> = names(&store);
    let noted = |name: &&String| name.ends_with("/reshard-safetensors.json");
    assert_eq!(notes.iter().filter(noted).count(), 1, "{notes:?}");
    let open = OpenOptions::new().store(plain(&store));
    let checkpoint = block_on(open.open(URL)).unwrap();
    let producer = checkpoint.producer();
    assert_eq!(producer.written_by, ["reshard"], "the notes are read");
}

#[test]
fn a_save_of_any_format_that_is_killed_anywhere_leaves_the_old_or_the_new_version() {
    let zarr: Config = || ZarrConfig::default().into();
    let zarr3: Config = || Zarr3Config::default().into();
    let cases = [
        (INDEXED[0], false),
        (INDEXED[0], true),
        (INDEXED[1], false),
        (INDEXED[1], true),
        (zarr, false),
        (zarr3, false),
        (IN_FOLDER, false),
    ];
    for (config, overwrite) in cases {
        let mut ended = false;
        for n in 0..100 {
            let store = VersionedStore::new();
            if overwrite {
                save(plain(&store), 1, config, false).unwrap();
            }
            let killed = FaultStore::new(plain(&store));
            killed.die(n, Fault::Before);
            let saved = save(Arc::new(killed.clone()), 2, config, overwrite);
            let found = found(&store);
            let told = format!("{:?} at call {n}: {:?}", config(), names(&store));
            assert!(
                found == overwrite.then_some(1) || found == Some(2),
                "{found:?} {told}"
            );
            assert!(saved.is_err() || found == Some(2), "{told}");
            ended = killed.calls() <= n;
            if ended {
                break;
            }
            if found.is_none() {
                if !names(&store).is_empty() {
                    let stores = Stores::only(plain(&store));
                    let prune = reshard_manager::prune(URL).stores(stores);
                    let prune = prune.older_than(Duration::ZERO);
                    block_on(async { prune.await }).unwrap_or_else(|e| panic!("{e} {told}"));
                }
                assert!(names(&store).is_empty(), "{told}: {:?}", names(&store));
                save(plain(&store), 3, config, false).unwrap();
                assert_eq!(self::found(&store), Some(3), "{told}");
            }
        }
        assert!(ended, "{:?}", config());
    }
}

/// A save on two ranks. The second one sees the place through a store of its own.
fn save_on_two(places: [Arc<dyn Store>; 2], version: u8, config: Config) -> bool {
    let rows = |rank: u64| {
        let data = Tensor::from_vec(&[4, 4], vec![f32::from(version); 16]).unwrap();
        let region = Region::new([4 * rank, 0], [4, 4]);
        let leaf = ShardedTensor::region_of("b", DType::Float32, &[8, 4], region);
        let mut state = state(version);
        state.insert("b", leaf.with_data(data));
        state
    };
    let (groups, states) = (LocalGroup::new(2), [rows(0), rows(1)]);
    let saves = groups
        .iter()
        .zip(&states)
        .zip(places)
        .map(|((group, state), place)| {
            let save = reshard::save(state, URL)
                .group(group)
                .store(place)
                .strategy(config())
                .dialect(Dialect::TensorsOnly);
            let save: BoxFuture<'_, bool> = Box::pin(async { save.await.is_ok() });
            save
        });
    block_on(join_all(saves)).into_iter().all(|saved| saved)
}

#[test]
fn what_ranks_of_a_failed_save_put_outside_of_their_folder_can_be_pruned() {
    let zarr: Config = || ZarrConfig::default().into();
    let zarr3: Config = || Zarr3Config::default().into();
    for config in [zarr, zarr3] {
        for faulty in [0, 1] {
            let mut failed = 0;
            for n in 0..20 {
                let store = VersionedStore::new();
                let fault = FaultStore::new(plain(&store));
                fault.fail(Op::Write, n, Fault::Before);
                let mut places = [plain(&store), plain(&store)];
                places[faulty] = Arc::new(fault);
                if save_on_two(places, 1, config) {
                    break;
                }
                failed += 1;
                let told = format!(
                    "{:?}, rank {faulty}, write {n}: {:?}",
                    config(),
                    names(&store)
                );
                if !names(&store).is_empty() {
                    let prune = reshard_manager::prune(URL)
                        .stores(Stores::only(plain(&store)))
                        .older_than(Duration::ZERO);
                    block_on(async { prune.await }).unwrap_or_else(|e| panic!("{e} {told}"));
                }
                assert!(names(&store).is_empty(), "{told}: {:?}", names(&store));
                assert!(
                    save_on_two([plain(&store), plain(&store)], 2, config),
                    "{told}"
                );
                assert_eq!(found(&store), Some(2));
            }
            assert!((2..20).contains(&failed), "{:?}: {failed}", config());
        }
    }
}

#[test]
fn formats_with_fixed_names_are_not_replaced() {
    let zarr: Config = || ZarrConfig::default().into();
    let zarr3: Config = || Zarr3Config::default().into();
    for config in [zarr, zarr3, IN_FOLDER] {
        let store = VersionedStore::new();
        save(plain(&store), 1, config, false).unwrap();
        assert_eq!(found(&store), Some(1));
        let before = names(&store);
        let e = save(plain(&store), 2, config, true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(
            e.to_string().contains("the same names in every version"),
            "{e}"
        );
        assert_eq!((names(&store), found(&store)), (before, Some(1)));
    }
}

#[test]
fn another_format_does_not_replace_a_record_that_would_stay() {
    let store = VersionedStore::new();
    save(plain(&store), 1, INDEXED[1], false).unwrap();
    let e = save(plain(&store), 2, INDEXED[0], true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(
        e.to_string().contains("pytorch_model.bin.index.json"),
        "{e}"
    );
    assert_eq!(found(&store), Some(1));
    assert_eq!(block_on(store.top()).unwrap().folders.len(), 1);
}

#[test]
fn a_rank_local_save_is_refused_before_anything_is_begun() {
    let formats: [Config; 6] = [
        INDEXED[0],
        INDEXED[1],
        IN_FOLDER,
        || TensorBundleConfig::default().into(),
        || ZarrConfig::default().into(),
        || Zarr3Config::default().into(),
    ];
    for config in formats {
        let store = FaultStore::new(plain(&VersionedStore::new()));
        // Each of these would be the first step of a save.
        for op in [Op::Begin, Op::Write, Op::Commit] {
            store.fail(op, 0, Fault::Before);
        }
        let state = state(1);
        let save = reshard::save(&state, URL)
            .store(Arc::new(store) as Arc<dyn Store>)
            .strategy(config())
            .rank_local(true);
        let e = block_on(async { save.await.map(drop) }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        let why = config().capabilities().no_rank_local.unwrap();
        assert!(e.to_string().contains(why), "{e}");
    }
}
