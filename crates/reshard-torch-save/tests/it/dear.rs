//! Places where requests are dear: opening reads the start and the end of each file, or a small file as a whole.

use super::open;
use reshard_model::{Tensor, Value};
use reshard_storage::{CountingStore, Hints, Name, Store, testkit::MemoryStore};
use reshard_torch_format::save;
use std::sync::Arc;

/// A folder with an index and so many files, each with two tensors of so many numbers.
fn folder(files: usize, numbers: usize) -> CountingStore {
    let hints = Hints::default().with_coalesce_gap(64 << 10);
    let store = MemoryStore::new().with_hints(hints);
    let put = |name: &str, bytes: Vec<u8>| store.put(Name::new(name).unwrap(), bytes.into());
    let mut of = serde_json::Map::new();
    for n in 0..files {
        let tensors = ["a", "b"].map(|key| {
            let key = format!("{key}.{n}");
            let data: Vec<i32> = (0..numbers as i32).collect();
            let tensor = Tensor::from_vec(&[numbers as u64], data).unwrap();
            of.insert(key.clone(), format!("{n}.bin").into());
            (Value::from(key.as_str()), Value::from(tensor))
        });
        put(
            &format!("{n}.bin"),
            save(&Value::Dict(tensors.into())).unwrap(),
        );
    }
    let index = serde_json::json!({ "weight_map": of });
    put("pytorch_model.bin.index.json", index.to_string().into());
    CountingStore::new(Arc::new(store))
}

#[test]
fn a_small_file_takes_one_request_and_a_large_one_two() {
    // The index, a look for `pytorch_model.bin` next to it, and a listing with the lengths of files.
    for (files, numbers, requests) in [(100, 10, 3 + 100), (5, 1 << 18, 3 + 2 * 5)] {
        let counted = folder(files, numbers);
        let store: Arc<dyn Store> = Arc::new(counted.clone());
        let reader = open(&store);
        assert_eq!(reader.metadata().tensors().count(), 2 * files);
        let counts = counted.take();
        assert_eq!((counts.requests, counts.lists), (requests, 1));
    }
}
