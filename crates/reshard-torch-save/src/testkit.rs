//! What fuzz targets call: whatever the bytes are, nothing panics.

use crate::TorchSaveLoadConfig;
use futures_executor::block_on;
use reshard_plan::{ChunkId, ObjectId};
use reshard_storage::{Name, Progress, testkit::MemoryStore};
use reshard_strategy::{LoadFormat, OpenCx, ReadCx, ReadLimits, ReadObject};
use std::sync::Arc;

/// Any bytes as a file: it is opened, verified, and its objects are decoded.
pub fn file(bytes: &[u8]) {
    place(&[("model.pt", bytes)]);
}

/// Any bytes as an index, beside a file of any bytes.
pub fn index(index: &[u8], file: &[u8]) {
    place(&[(crate::names::INDEX, index), (crate::names::WEIGHTS, file)]);
}

fn place(files: &[(&str, &[u8])]) {
    let store = MemoryStore::new();
    for (name, bytes) in files {
        if let Ok(name) = Name::new(*name) {
            store.put(name, bytes.to_vec().into());
        }
    }
    let limits = ReadLimits::default()
        .with_max_memory(64 << 20)
        .with_max_whole(16 << 20);
    let cx = OpenCx::new(Arc::new(store)).with_limits(limits);
    block_on(async {
        let Ok(reader) = TorchSaveLoadConfig::default().open(&cx).await else {
            return;
        };
        let none = Progress::none();
        drop(reader.verify(true, &none).await);
        let how = ReadCx::new(true, &none);
        for (object, key) in reader.metadata().objects().take(64) {
            let object: ObjectId = object;
            drop(reader.read_objects(&[ReadObject { object }], &how).await);
            drop(reader.permits(key));
        }
        for tensor in reader.metadata().tensors() {
            drop(reader.permits(tensor.key()));
            for (chunk, _) in tensor.chunks() {
                let chunk: ChunkId = chunk;
                drop(reader.locate_chunk(chunk));
            }
        }
    });
}
