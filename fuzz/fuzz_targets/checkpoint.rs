//! Any bytes as the data file of a checkpoint whose `.metadata` is sound: whole tensors, rows of them and objects.
//!
//! The input is laid over the file that was saved, byte by byte (exclusive or), so that the empty input is the sound one.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use reshard::{
    Dialect, Region, StateDict, Tensor,
    blocking::{self, Checkpoint},
};
use reshard_storage::{Name, Store, StoreExt, testkit::MemoryStore};

const URL: &str = "memory://fuzz";
const DATA: &str = "__0_0.distcp";
const WEIGHT: [f32; 6] = [0., 1., 2., 3., 4., 5.];

static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = StateDict::new();
    state.insert(
        "weight",
        Tensor::from_vec(&[3, 2], WEIGHT.to_vec()).expect("a tensor"),
    );
    // Large enough that only its ends are read before its elements.
    state.insert(
        "large",
        Tensor::from_vec(&[64, 64], vec![1i32; 4096]).expect("a tensor"),
    );
    state.insert("lr", 0.5);
    blocking::run(reshard::save(&state, URL).dialect(Dialect::Dcp)).expect("it is saved");
    let (store, name) = (MemoryStore::named("fuzz"), Name::new(DATA).expect("a name"));
    let len = blocking::run(store.files())
        .expect("files")
        .into_iter()
        .find(|f| f.name == name)
        .expect("data")
        .bytes;
    blocking::run(store.read(&name, 0..len))
        .expect("it is read")
        .to_vec()
});

fuzz_target!(|bytes: &[u8]| {
    let mut file = SOUND.clone();
    for (at, byte) in file.iter_mut().zip(bytes) {
        *at ^= byte;
    }
    let sound = file == *SOUND;
    MemoryStore::named("fuzz").put(Name::new(DATA).expect("a name"), file.into());
    let checkpoint = Checkpoint::open(URL).expect("the metadata is sound");
    for key in ["weight", "large"] {
        let tensor = checkpoint.tensor(key).expect("the metadata has it");
        drop(tensor.read(Region::rows(1..2)));
        let whole = tensor.read(..);
        assert!(!sound || whole.is_ok());
        // With checksums nothing but what was saved comes back.
        if let Ok(whole) = whole {
            match key {
                "weight" => assert_eq!(whole.to_vec::<f32>().unwrap(), WEIGHT),
                _ => assert_eq!(whole.to_vec::<i32>().unwrap(), [1; 4096]),
            }
        }
    }
    drop(checkpoint.object("lr"));
});
