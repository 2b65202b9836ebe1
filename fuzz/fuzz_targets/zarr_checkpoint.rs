//! Any bytes as one of the files of a zarr checkpoint: a `.zarray`, a chunk, or the record of reshard, with the record or without it.
//!
//! The first byte says which file. The rest is laid over it, byte by byte (exclusive or), and what is longer than the file makes it longer.
#![no_main]

use std::{collections::BTreeMap, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use reshard::{
    Dialect, Region, StateDict, Tensor,
    blocking::{self, Checkpoint},
    storage::Progress,
};
use reshard_storage::{Name, Store, StoreExt, testkit::MemoryStore};

const URL: &str = "memory://fuzz-zarr";
const RECORD: &str = reshard::zarr::RECORD;
const FILES: [&str; 4] = ["weight/.zarray", "weight/0.0", RECORD, "large/.zarray"];
const WEIGHT: [f32; 6] = [0., 1., 2., 3., 4., 5.];

static SOUND: LazyLock<BTreeMap<Name, Vec<u8>>> = LazyLock::new(|| {
    let mut state = StateDict::new();
    state.insert("weight", Tensor::from_vec(&[3, 2], WEIGHT.to_vec()).expect("a tensor"));
    state.insert("large", Tensor::from_vec(&[64, 64], vec![1i32; 4096]).expect("a tensor"));
    let zarr = reshard::zarr::ZarrConfig::default();
    blocking::run(reshard::save(&state, URL).dialect(Dialect::Dcp).strategy(zarr)).expect("it is saved");
    let store = MemoryStore::named("fuzz-zarr");
    let read = |name: &Name, bytes| blocking::run(store.read(name, 0..bytes)).expect("it is read").to_vec();
    let files = blocking::run(store.files()).expect("files");
    files.into_iter().map(|f| (f.name.clone(), read(&f.name, f.bytes))).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, over)) = bytes.split_first() else { return };
    let store = MemoryStore::named("fuzz-zarr");
    let with_record = which < 128;
    for (name, sound) in &*SOUND {
        let mut file = sound.clone();
        if name.as_str() == FILES[usize::from(which) % FILES.len()] {
            file.resize(file.len().max(over.len()), 0);
            file.iter_mut().zip(over).for_each(|(at, byte)| *at ^= byte);
        }
        store.put(name.clone(), file.into());
    }
    if !with_record {
        let names = [RECORD, "reshard.json"].map(|name| Name::new(name).expect("a name"));
        blocking::run(store.remove(&names)).expect("they are removed");
    }
    let Ok(checkpoint) = Checkpoint::open(URL) else { return };
    drop(checkpoint.verify(true, Progress::none()));
    for key in ["weight", "large"] {
        let Ok(tensor) = checkpoint.tensor(key) else { continue };
        // An array may claim any shape, and then has elements that are not stored.
        if tensor.nbytes() > 1 << 20 {
            continue;
        }
        drop(tensor.read(Region::rows(1..2)));
        let whole = tensor.read(..);
        // With checksums nothing but what was saved comes back.
        if let (true, "weight", Ok(whole)) = (with_record, key, whole) {
            assert_eq!(whole.to_vec::<f32>().as_deref(), Some(&WEIGHT[..]));
        }
    }
});
