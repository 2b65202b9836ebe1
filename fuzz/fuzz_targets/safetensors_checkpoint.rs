//! Any bytes as one of the files of a safetensors checkpoint: a file of tensors, the index, or the record of reshard, with the record or
//! without it.
//!
//! The first byte says which file. The rest is laid over it, byte by byte (exclusive or), and what is longer than the file makes it longer.
#![no_main]

use std::{collections::BTreeMap, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use reshard::{
    DType, Dialect, OpenOptions, Region, StateDict, Tensor,
    blocking::{self, Checkpoint},
    safetensors::{SafetensorsConfig, SafetensorsLoadConfig},
    storage::Progress,
};
use reshard_storage::{Name, Store, StoreExt, testkit::MemoryStore};

const URL: &str = "memory://fuzz-safetensors";
const RECORD: &str = reshard::safetensors::RECORD;
const FILES: [&str; 4] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    reshard::safetensors::INDEX,
    RECORD,
];
const WEIGHT: [f32; 6] = [0., 1., 2., 3., 4., 5.];

static SOUND: LazyLock<BTreeMap<Name, Vec<u8>>> = LazyLock::new(|| {
    let mut state = StateDict::new();
    state.insert(
        "weight",
        Tensor::from_vec(&[3, 2], WEIGHT.to_vec()).expect("a tensor"),
    );
    state.insert(
        "e_blocks",
        Tensor::from_vec(&[2, 1, 4], vec![0x21u8; 8]).expect("a tensor"),
    );
    state.insert(
        "e_scales",
        Tensor::from_vec(&[2, 1], vec![127u8; 2]).expect("a tensor"),
    );
    let config = SafetensorsConfig::default().with_max_shard_size(16);
    blocking::run(
        reshard::save(&state, URL)
            .dialect(Dialect::TensorsOnly)
            .strategy(config),
    )
    .expect("it is saved");
    let store = MemoryStore::named("fuzz-safetensors");
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

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, over)) = bytes.split_first() else {
        return;
    };
    let store = MemoryStore::named("fuzz-safetensors");
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
    let dequantize = SafetensorsLoadConfig::default().with_dequantize(DType::Float32);
    if let Ok(checkpoint) = blocking::run(OpenOptions::new().strategy(dequantize).open(URL))
        && let Ok(tensor) = checkpoint.tensor("e_blocks")
    {
        drop(blocking::run(tensor.read(..)));
    }
    let Ok(checkpoint) = Checkpoint::open(URL) else {
        return;
    };
    drop(checkpoint.verify(true, Progress::none()));
    let Ok(tensor) = checkpoint.tensor("weight") else {
        return;
    };
    drop(tensor.read(Region::rows(1..2)));
    let whole = tensor.read(..);
    // With checksums nothing but what was saved comes back, unless the record itself was changed.
    let is_record = FILES[usize::from(which) % FILES.len()] == RECORD;
    if let (true, false, Ok(whole)) = (with_record, is_record, whole) {
        assert_eq!(whole.to_vec::<f32>().unwrap(), WEIGHT);
    }
});
