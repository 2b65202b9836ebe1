//! What fuzz targets call: whatever the bytes are, nothing panics.

use crate::{RankFilesLoadConfig, TorchSaveLoadConfig};
use futures_executor::block_on;
use reshard_plan::{ChunkId, ObjectId};
use reshard_storage::{Name, Progress, testkit::MemoryStore};
use reshard_strategy::{LoadFormat, OpenCx, ReadCx, ReadLimits, ReadObject};
use std::sync::Arc;

/// Any bytes as a file: it is opened, verified, and its objects are decoded.
pub fn file(bytes: &[u8]) {
    place(&TorchSaveLoadConfig::default(), &[("model.pt", bytes)]);
}

/// Any bytes as the files of two ranks, and as the metadata of `torch_checkpointing` beside them.
pub fn rank_files(metadata: &[u8], first: &[u8], second: &[u8]) {
    let files = [
        ("metadata.pkl", metadata),
        ("model_0.pt", first),
        ("model_1.safetensors", second),
    ];
    place(&RankFilesLoadConfig::default(), &files);
    place(
        &RankFilesLoadConfig::default(),
        &[("rank0.pt", first), ("rank1.pt", second)],
    );
}

/// Any bytes as an index, beside a file of any bytes.
pub fn index(index: &[u8], file: &[u8]) {
    let files = [(crate::names::INDEX, index), (crate::names::WEIGHTS, file)];
    place(&TorchSaveLoadConfig::default(), &files);
}

fn place(format: &dyn LoadFormat, files: &[(&str, &[u8])]) {
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
        let Ok(reader) = format.open(&cx).await else {
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
