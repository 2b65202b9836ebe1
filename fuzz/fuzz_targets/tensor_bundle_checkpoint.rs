//! Any bytes as one of the files of a TensorFlow checkpoint: an entry of the index (whose checksums are right), the index as it is, a data
//! file, or what reshard noted.
//!
//! The first byte says which. The rest is laid over it, byte by byte (exclusive or), and what is longer than the file makes it longer.
#![no_main]

use std::{collections::BTreeMap, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use reshard::{
    Dialect, Region, StateDict, Tensor, Value,
    blocking::{self, Checkpoint},
    storage::Progress,
    tensor_bundle::TensorBundleConfig,
};
use reshard_storage::{Name, Store, StoreExt, testkit::MemoryStore};
use reshard_tensor_bundle::testkit;

const URL: &str = "memory://fuzz-bundle";
const INDEX: &str = "ckpt.index";
const FILES: [&str; 3] = [
    INDEX,
    "ckpt.data-00000-of-00001",
    "ckpt.reshard_bundle.json",
];
const WEIGHT: [f32; 6] = [0., 1., 2., 3., 4., 5.];

static SOUND: LazyLock<BTreeMap<Name, Vec<u8>>> = LazyLock::new(|| {
    let mut state = StateDict::new();
    state.insert(
        "weight",
        Tensor::from_vec(&[3, 2], WEIGHT.to_vec()).expect("a tensor"),
    );
    state.insert("words", Value::List(vec!["a".into(), "é".into()]));
    state.insert("step", 7);
    let config = TensorBundleConfig::default().with_in_folder("ckpt");
    blocking::run(
        reshard::save(&state, URL)
            .dialect(Dialect::Dcp)
            .strategy(config),
    )
    .expect("it is saved");
    let store = MemoryStore::named("fuzz-bundle");
    let read = |name: &Name, bytes| {
        blocking::run(store.read(name, 0..bytes))
            .expect("it is read")
            .to_vec()
    };
    let files = blocking::run(store.files()).expect("files");
    let sound: BTreeMap<Name, Vec<u8>> = files
        .into_iter()
        .map(|f| (f.name.clone(), read(&f.name, f.bytes)))
        .collect();
    // A name that no file has would be one that is never damaged.
    for file in FILES {
        assert!(
            sound.keys().any(|name| name.as_str() == file),
            "{file} was not saved"
        );
    }
    sound
});

fn lay(over: &[u8], file: &mut Vec<u8>) {
    file.resize(file.len().max(over.len()), 0);
    file.iter_mut().zip(over).for_each(|(at, byte)| *at ^= byte);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, over)) = bytes.split_first() else {
        return;
    };
    let store = MemoryStore::named("fuzz-bundle");
    for (name, sound) in &*SOUND {
        let mut file = sound.clone();
        if which >= 128 && name.as_str() == INDEX {
            let mut entries = testkit::entries_of(&file).expect("a table");
            let n = usize::from(which) % entries.len();
            lay(over, &mut entries[n].1);
            file = testkit::table(&entries);
        } else if which < 128 && name.as_str() == FILES[usize::from(which) % FILES.len()] {
            lay(over, &mut file);
        }
        store.put(name.clone(), file.into());
    }
    let Ok(checkpoint) = Checkpoint::open(URL) else {
        return;
    };
    drop(checkpoint.verify(true, Progress::none()));
    let keys: Vec<String> = checkpoint.objects().map(str::to_owned).collect();
    keys.iter().for_each(|key| drop(checkpoint.object(key)));
    let Ok(tensor) = checkpoint.tensor("weight") else {
        return;
    };
    if tensor.nbytes() > 1 << 20 {
        return;
    }
    drop(tensor.read(Region::rows(1..2)));
    // Nothing but what was saved passes the checksums, unless the entry is another one.
    if let (Ok(whole), true) = (tensor.read(..), which < 128) {
        assert_eq!(whole.to_vec::<f32>().unwrap(), WEIGHT);
    }
});
