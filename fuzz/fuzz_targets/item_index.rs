//! Any bytes as the index of a format that is made of ready parts (`ItemIndex`, `IndexReader`).
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard::{OpenOptions, blocking, storage::Progress};
use reshard_example as _;
use reshard_storage::{Name, testkit::MemoryStore};

const URL: &str = "memory://fuzz-index";

fuzz_target!(|bytes: &[u8]| {
    let store = MemoryStore::named("fuzz-index");
    let name = |name: &str| Name::new(name).expect("a name");
    store.put(name("example.index.json"), bytes.to_vec().into());
    store.put(name("rank-0.bin"), vec![7; 64].into());
    let Ok(checkpoint) = blocking::run(OpenOptions::new().open(URL)) else {
        return;
    };
    drop(blocking::run(checkpoint.verify(true, Progress::none())));
    for tensor in checkpoint.tensors() {
        drop(blocking::run(tensor.read(..)));
    }
});
