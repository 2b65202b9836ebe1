//! The ready index (`ItemIndex`, `IndexReader`), whatever lies in its files.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    Dialect, ErrorKind, OpenOptions, ShardedTensor, StateDict, Tensor, blocking::Checkpoint,
    storage::Progress,
};
use reshard_example::ExampleConfig;
use reshard_storage::{Name, Store, StoreExt, testkit::MemoryStore};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, sync::Arc};

const INDEX: &str = "example.index.json";
const WEIGHT: [f32; 6] = [0., 1., 2., 3., 4., 5.];

type Files = BTreeMap<Name, Vec<u8>>;

/// A checkpoint of a tensor and an object, in PyTorch's dialect.
fn sound() -> Files {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut state = StateDict::new();
    let weight = Tensor::from_vec(&[3, 2], WEIGHT.to_vec()).unwrap();
    state.insert("weight", ShardedTensor::full("weight", weight));
    state.insert("step", 7);
    let save = reshard::save(&state, "memory://index").store(Arc::clone(&store));
    let save = save
        .dialect(Dialect::Dcp)
        .strategy(ExampleConfig::default());
    reshard::blocking::run(save).unwrap();
    let files = block_on(store.files()).unwrap().into_iter();
    let files = files.filter(|f| f.name.as_str() != "reshard.json");
    let read = |f: reshard_storage::Entry| {
        let bytes = block_on(store.read(&f.name, 0..f.bytes)).unwrap();
        (f.name, bytes.to_vec())
    };
    files.map(read).collect()
}

fn open(files: &Files) -> reshard::Result<Checkpoint> {
    let store = MemoryStore::new();
    let copies = files.iter().map(|(n, b)| (n.clone(), b.clone().into()));
    copies.for_each(|(name, bytes)| store.put(name, bytes));
    let options = OpenOptions::new().store(Arc::new(store) as Arc<dyn Store>);
    Checkpoint::open_with(options, "memory://index")
}

fn weight(checkpoint: &Checkpoint) -> reshard::Result<Vec<f32>> {
    let tensor = checkpoint.tensor("weight")?;
    Ok(tensor.read(..)?.to_vec().unwrap())
}

/// The checkpoint with a changed index.
fn with(change: impl Fn(&mut Json)) -> Files {
    let mut files = sound();
    let index = files.get_mut(&Name::new(INDEX).unwrap()).unwrap();
    let mut json: Json = serde_json::from_slice(index).unwrap();
    change(&mut json);
    *index = serde_json::to_vec(&json).unwrap();
    files
}

#[test]
fn an_index_that_contradicts_itself_is_damage() {
    let sound = open(&sound()).unwrap();
    assert_eq!(weight(&sound).unwrap(), WEIGHT);
    type Change = fn(&mut Json);
    let chunk = "/tensors/0/chunks/0";
    let cases: [(&str, Change, &str); 8] = [
        (
            "a chunk of another length",
            |i| i["tensors"][0]["chunks"][0][1]["bytes"]["end"] = 20.into(),
            "tensor weight: chunk [0:3, 0:2] can't be bytes 0..20",
        ),
        (
            "a range that ends before it starts",
            |i| i["objects"][0][1]["bytes"] = json!({ "start": 9, "end": 8 }),
            "object step can't be bytes 9..8",
        ),
        (
            "a shape whose bytes can't be counted",
            |i| i["tensors"][0]["chunks"][0][0]["lengths"] = json!([u64::MAX, u64::MAX]),
            "can't be bytes 0..24",
        ),
        (
            "items that share bytes",
            |i| i["objects"][0][1]["bytes"]["start"] = 23.into(),
            "two items share bytes of rank-0.bin, at byte 23",
        ),
        (
            "a key twice",
            |i| i["objects"][0][0] = "weight".into(),
            "weight: it is stored twice",
        ),
        (
            "a chunk of another number of axes",
            |i| {
                let region = json!({ "offsets": [0], "lengths": [6] });
                i["tensors"][0]["chunks"][0][0] = region;
            },
            "does not fit a tensor of 2 axes",
        ),
        (
            "a file outside of the checkpoint",
            |i| i["objects"][0][1]["file"] = "../secret".into(),
            "it is not an index of tensors and objects",
        ),
        (
            "a field that nobody knows",
            |i| i["more"] = 1.into(),
            "it is not an index of tensors and objects",
        ),
    ];
    assert!(with(|i| assert!(i.pointer(chunk).is_some())).len() > 1);
    for (name, change, says) in cases {
        let e = open(&with(change)).unwrap_err();
        let said = reshard::strategy::with_sources(e.to_string(), &e);
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{name}: {said}");
        assert!(
            said.contains(says) && said.contains(INDEX),
            "{name}: {said}"
        );
    }
}

#[test]
fn a_file_that_is_cut_or_missing_and_a_hole_are_found_without_reading() {
    let data = Name::new("rank-0.bin").unwrap();
    let mut cut = sound();
    cut.get_mut(&data).unwrap().truncate(30);
    let mut missing = sound();
    missing.remove(&data);
    let hole = with(|i| i["tensors"][0]["shape"] = json!([4, 2]));
    for (files, says) in [
        (
            cut,
            "it reaches beyond the end of the file, which has 30 bytes",
        ),
        (missing, "its file is missing"),
        (hole, "no chunk covers [3:4, 0:2] of shape [4, 2]"),
    ] {
        let report = open(&files).unwrap().verify(false, Progress::none());
        let report = report.unwrap();
        let found = report.damage.iter().any(|damage| damage.what == says);
        assert!(found, "{says}: {report:?}");
    }
}

#[test]
fn an_index_takes_no_more_memory_than_it_may() {
    let limits = reshard::strategy::ReadLimits::default().with_max_memory(1 << 10);
    let store = MemoryStore::new();
    let all = sound();
    let copies = all.iter().map(|(n, b)| (n.clone(), b.clone().into()));
    copies.for_each(|(name, bytes)| store.put(name, bytes));
    let store = Arc::new(store) as Arc<dyn Store>;
    let options = OpenOptions::new().store(store).limits(limits);
    let e = Checkpoint::open_with(options, "memory://index").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Limit);
    assert!(e.to_string().contains(INDEX), "{e}");
}

#[test]
fn only_names_of_its_files_are_its_own() {
    use reshard_strategy::LoadFormat as _;
    let load = reshard_example::ExampleLoadConfig::default();
    let owns = |name: &str| load.info().own_file(name).is_some();
    assert!(["rank-0.bin", "rank-12-3.bin", INDEX].into_iter().all(owns));
    for name in [
        "rank-+1.bin",
        "rank-007.bin",
        "rank-1-2-3.bin",
        "rank-.bin",
        "rank--1.bin",
    ] {
        assert!(!owns(name), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any bytes in any file: no panic, and nothing but what was saved comes back, unless the index itself says otherwise.
    #[test]
    fn any_bytes_are_an_error_or_what_was_saved(
        in_index in any::<bool>(),
        at in any::<prop::sample::Index>(),
        over in prop::collection::vec(any::<u8>(), 1..8),
    ) {
        let mut files = sound();
        let name = if in_index { INDEX } else { "rank-0.bin" };
        let bytes = files.get_mut(&Name::new(name).unwrap()).unwrap();
        let at = at.index(bytes.len());
        bytes.iter_mut().skip(at).zip(&over).for_each(|(byte, with)| *byte ^= with);
        if let Ok(checkpoint) = open(&files) {
            let report = checkpoint.verify(true, Progress::none()).unwrap();
            let read = weight(&checkpoint);
            let changed = over.iter().any(|byte| *byte != 0);
            if !in_index && changed {
                prop_assert!(!report.damage.is_empty());
                prop_assert!(read.is_err() || read.unwrap() == WEIGHT);
            }
        }
    }

    /// Any text as an index.
    #[test]
    fn any_index_opens_or_is_damage(text in "[\\[\\]{}\",:0-9a-z_]{0,64}") {
        let mut files = sound();
        files.insert(Name::new(INDEX).unwrap(), text.into_bytes());
        drop(open(&files));
    }
}
