//! What a common strategy has to keep.

use super::{left::files, phases::spoil};
use crate::{
    BackendVersion, BoxVerifier, LoadCommonStrategy, OpenCx, ReadCx, ReadObject, ReadTensor,
    ReaderHooks, Result, SaveCommonStrategy, StorageInfo, StorageReader, Traffic, VerifyRun,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_executor::block_on;
use reshard_model::{
    Dialect, ObjectCodec, Payload, ShardedObject, Tensor, Value, ValueTree, testkit::Rule,
};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{
    Durability, FileBody, IfExists, Name, Progress, Store, testkit::MemoryStore,
};
use std::{collections::BTreeMap, sync::Arc};

/// Runs every rule of a strategy that stores common state, and of the one that loads what it stored; those of objects, too, if
/// it stores any.
///
/// # Panics
/// When a rule is broken. The text has the name of the rule, and the item whose documentation has it.
pub fn common_contract(save: &dyn SaveCommonStrategy, load: &dyn LoadCommonStrategy) {
    rule(
        "compatibility.its_own_is_loaded",
        "LoadCommonStrategy::check_compatibility",
    )
    .check(|| load.check_compatibility(&save.key()).unwrap());
    rule("common.comes_back", "SaveCommonStrategy::layout_common")
        .check(|| common_state_comes_back(save, load));
    let stores = rule(
        "objects.what_is_stored_can_be_loaded",
        "SaveCommonStrategy::layout_objects",
    )
    .check(|| {
        let stores = save.layout_objects(&[]).unwrap();
        assert_eq!(
            stores.is_some(),
            load.can_handle_sharded_objects(),
            "what is stored can be loaded"
        );
        assert!(stores.iter().all(Vec::is_empty), "no objects are no files");
        stores.is_some()
    });
    if stores {
        rule("objects.come_back", "SaveCommonStrategy::layout_objects")
            .check(|| objects_come_back(save, load));
    }
}

fn rule(name: &'static str, written: &'static str) -> Rule {
    let of = "the common strategy";
    Rule { of, name, written }
}

/// A sharded part without items.
#[derive(Debug, Default)]
struct NoItems {
    metadata: Arc<Metadata>,
}

impl ReaderHooks for NoItems {}

#[async_trait]
impl StorageReader for NoItems {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("no_items", 1)
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        Dialect::Megatron
    }

    fn locate_chunk(&self, _: ChunkId) -> Vec<StorageInfo> {
        Vec::new()
    }

    fn locate_object(&self, _: ObjectId) -> Vec<StorageInfo> {
        Vec::new()
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        unreachable!("it has no objects")
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, _: &ReadCx<'_>) -> Result<Traffic> {
        assert!(reads.is_empty(), "it has no tensors");
        Ok(Traffic::default())
    }

    async fn read_objects(&self, reads: &[ReadObject], _: &ReadCx<'_>) -> Result<Vec<Payload>> {
        assert!(reads.is_empty(), "it has no objects");
        Ok(Vec::new())
    }

    async fn verifier<'r>(&'r self, _: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        unreachable!("it has no items")
    }
}

fn tensor(salt: u8) -> Tensor {
    Tensor::from_vec(&[5, 3], (0..15).map(|i| i + salt).collect()).unwrap()
}

fn common(t: Tensor) -> ValueTree {
    let args = Value::Dict(vec![
        ("lr".into(), 0.5.into()),
        ("names".into(), vec!["a".into()].into()),
    ]);
    let mut out = ValueTree::new();
    out.insert("step", Value::Int(7));
    out.insert("args", args);
    out.insert("t", Value::Tensor(t));
    out
}

/// Writes what is laid out, after what it was made of has changed.
fn write(layout: Vec<FileBody>, changed: Vec<Tensor>) -> Arc<dyn Store> {
    changed.into_iter().for_each(spoil);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    block_on(async {
        let transaction = store.begin("common", IfExists::Refuse).await.unwrap();
        transaction
            .write(layout, Durability::Process, Progress::none())
            .await
            .unwrap();
        transaction
            .commit(None, &[], Durability::Process)
            .await
            .unwrap();
    });
    store
}

/// What the facade gives to a common strategy.
fn open(store: Arc<dyn Store>) -> OpenCx {
    OpenCx::new(store).with_dialect(Dialect::Megatron)
}

fn of(files: &BTreeMap<Name, Bytes>) -> OpenCx {
    let store = MemoryStore::new();
    files
        .iter()
        .for_each(|(name, bytes)| store.put(name.clone(), bytes.clone()));
    open(Arc::new(store))
}

/// Every file, cut or lost.
fn damaged(all: &BTreeMap<Name, Bytes>) -> impl Iterator<Item = OpenCx> {
    all.iter().flat_map(move |(name, bytes)| {
        (0..8).map(move |part| {
            let mut files = all.clone();
            match part {
                0 => drop(files.remove(name)),
                part => drop(files.insert(name.clone(), bytes.slice(..bytes.len() * part / 8))),
            }
            of(&files)
        })
    })
}

fn common_state_comes_back(save: &dyn SaveCommonStrategy, load: &dyn LoadCommonStrategy) {
    let t = tensor(0);
    let layout = save.layout_common(&common(t.clone())).unwrap();
    let store = write(layout, vec![t]);
    let loaded =
        block_on(load.load_common(&open(Arc::clone(&store)), &NoItems::default())).unwrap();
    assert_eq!(Value::from(loaded), Value::from(common(tensor(0))));
    let all = files(&store);
    assert!(
        all.keys().all(|name| load.owns(name)),
        "its files are its own"
    );
    let again = write(save.layout_common(&common(tensor(0))).unwrap(), Vec::new());
    assert!(files(&again) == all, "equal state gives equal bytes");
    for cx in damaged(&all) {
        if let Ok(found) = block_on(load.load_common(&cx, &NoItems::default())) {
            assert_eq!(Value::from(found), Value::from(common(tensor(0))));
        }
    }
}

fn cells(with: impl Fn(u64) -> Payload) -> Vec<ShardedObject> {
    let cell = |(key, shape, at): (&str, &[u64], &[u64])| {
        let cell = ShardedObject::new(key, Value::None, shape, at, 0).unwrap();
        ShardedObject {
            data: with(at.iter().sum()),
            ..cell
        }
    };
    let all: [(&str, &[u64], &[u64]); 4] = [
        ("rng_state", &[3], &[0]),
        ("rng_state", &[3], &[2]),
        ("decoder.layers._extra_state", &[12, 2], &[11, 1]),
        ("a", &[1], &[0]),
    ];
    all.into_iter().map(cell).collect()
}

fn objects_come_back(save: &dyn SaveCommonStrategy, load: &dyn LoadCommonStrategy) {
    let (t, keys) = (tensor(9), |o: &[ShardedObject]| {
        o.iter().map(|o| o.unique_key()).collect::<Vec<_>>()
    });
    let value = |t: &Tensor, n: u64| vec![Value::Int(n as i64), Value::Tensor(t.clone())].into();
    let objects = cells(|n| Payload::Value(value(&t, n)));
    let layout = save.layout_objects(&objects).unwrap().unwrap();
    drop(objects);
    let store = write(layout, vec![t]);
    let cx = open(Arc::clone(&store));
    let all = files(&store);
    assert!(
        all.keys().all(|name| load.owns_object(name)),
        "its files are its own"
    );

    let mut want = cells(|n| Payload::Value(value(&tensor(9), n)));
    let mut listed = block_on(load.load_sharded_metadata(&cx)).unwrap();
    assert!(
        listed.iter().all(|o| o.data == Payload::None),
        "they are listed without data"
    );
    listed.sort_by_key(ShardedObject::unique_key);
    want.sort_by_key(ShardedObject::unique_key);
    assert_eq!(keys(&listed), keys(&want));
    want.reverse();
    listed.reverse();
    let same = |loaded: &[ShardedObject]| {
        keys(loaded) == keys(&want) && loaded.iter().zip(&want).all(|(a, b)| a.data == b.data)
    };
    assert!(
        same(&block_on(load.load_sharded_objects(listed.clone(), &cx)).unwrap()),
        "in the order asked for"
    );
    for cx in damaged(&all) {
        // What is not listed is not asked for.
        drop(block_on(load.load_sharded_metadata(&cx)));
        if let Ok(loaded) = block_on(load.load_sharded_objects(listed.clone(), &cx)) {
            assert!(same(&loaded), "damage is an error, or does no harm");
        }
    }
}
