//! Conversions into a bucket whose uploads may hold little memory.

use crate::formats::states::contents;
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, DType, OpenOptions, Region, ShardedTensor, StateDict, Tensor,
    blocking,
    storage::{Hints, Stores},
};
use reshard_convert::convert;
use reshard_object_store::{ObjectStores, object_store::memory::InMemory};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// 48 tensors of 128 KiB each.
fn source(url: &str) -> Checkpoint {
    let mut state = StateDict::new();
    for n in 0..48u32 {
        let key = format!("w{n}");
        let elements: Vec<f32> = (0..64 * 512).map(|i| (i * 3 + n) as f32).collect();
        let data = Tensor::from_vec(&[64, 512], elements).unwrap();
        let region = Region::whole(&[64, 512]);
        let leaf = ShardedTensor::region_of(&key, DType::Float32, &[64, 512], region);
        state.insert(key, leaf.with_data(data));
    }
    blocking::run(reshard::save(&state, url)).unwrap();
    block_on(Checkpoint::open(url)).unwrap()
}

#[test]
fn ranks_that_fill_each_others_files_in_a_bucket_do_not_wait_for_memory_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(&dir.path().display().to_string());
    let hints = Hints::default()
        .with_part_size(64 << 10)
        .with_concurrency(2);
    let clouds = ObjectStores::new()
        .with_client("s3://bucket", Arc::new(InMemory::new()))
        .with_hints(hints);
    let stores = Stores::linked().unwrap().with("s3", clouds);
    let (send, ended) = mpsc::channel();
    let (from, to) = (source.clone(), stores.clone());
    thread::spawn(move || {
        let conversion = convert(&from, "s3://bucket/to")
            .to(BackendVersion::new("safetensors", 1))
            .stores(to)
            .max_shard_size(200 << 10)
            .ranks(3);
        send.send(blocking::run(conversion).map(drop)).unwrap();
    });
    // The time only ends a test that would never end.
    let converted = ended.recv_timeout(Duration::from_secs(300));
    converted.expect("ranks wait for each other").unwrap();
    let options = OpenOptions::new().stores(stores);
    let there = block_on(options.open("s3://bucket/to")).unwrap();
    assert_eq!(contents(&there), contents(&source));
    assert!(there.item_files().len() > 10);
}
