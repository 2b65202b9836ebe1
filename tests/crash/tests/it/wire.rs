//! What opening and loading cost in requests and bytes, counted between the client of a bucket and the service.
#![cfg(feature = "clouds")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard::{
    DType, Dialect, OpenOptions, Region, ShardedTensor, StateDict, Tensor, storage::Store,
    torch_dist::TorchDistConfig,
};
use reshard_crash::Proxy;
use reshard_object_store::ObjectStores;
use std::sync::Arc;

/// The same place as it is, and through the proxy.
fn places(name: &str) -> (Proxy, [Arc<dyn Store>; 2]) {
    let server = std::env::var("RESHARD_MOTO").unwrap();
    let proxy = Proxy::start(&server).unwrap();
    let url = format!("s3://reshard/wire {}/{name}", std::process::id());
    let open = |endpoint: &str| -> Arc<dyn Store> {
        let stores = ObjectStores::new()
            .with_option("aws_endpoint", endpoint)
            .with_option("aws_allow_http", "true")
            .with_option("aws_region", "us-east-1")
            .with_option("aws_access_key_id", "reshard")
            .with_option("aws_secret_access_key", "not-secret");
        Arc::new(stores.open_place(&url).unwrap())
    };
    let stores = [open(&server), open(proxy.url())];
    (proxy, stores)
}

/// Saves so many tensors of this shape on one rank.
fn save(store: &Arc<dyn Store>, tensors: u64, shape: [u64; 2], many_files: bool) {
    let mut state = StateDict::new();
    let elements = usize::try_from(shape[0] * shape[1]).unwrap();
    // They share their elements, because only requests are counted.
    let shared = Tensor::from_vec(&shape, vec![1f32; elements]).unwrap();
    for t in 0..tensors {
        state.insert(format!("w{t:04}"), shared.clone());
    }
    let config = TorchDistConfig::new().with_file_per_item(many_files);
    let save = reshard::save(&state, "s3://place")
        .store(Arc::clone(store))
        .dialect(Dialect::Dcp)
        .strategy(config);
    block_on(async { save.await }).unwrap();
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_a_checkpoint_of_1_000_files_is_open_after_four_requests() {
    let (proxy, [direct, through]) = places("files");
    save(&direct, 1_000, [1, 4], true);
    proxy.begin(|_| None);
    let open = OpenOptions::new().store(through);
    let checkpoint = block_on(open.open("s3://place")).unwrap();
    let requests = proxy.end().requests;
    assert_eq!(checkpoint.metadata().tensor_count(), 1_000);
    let lists = requests.iter().filter(|r| r.contains("list-type"));
    assert!(requests.len() <= 4 && lists.count() == 0, "{requests:#?}");
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_an_eighth_of_the_rows_costs_two_requests_a_chunk_and_few_bytes_beside() {
    let (proxy, [direct, through]) = places("rows");
    let (tensors, shape) = (6, [2_048, 1_024]);
    save(&direct, tensors, shape, false);
    proxy.begin(|_| None);
    let mut template = StateDict::new();
    for t in 0..tensors {
        let key = format!("w{t:04}");
        let rows = Region::new([256, 0], [256, 1_024]);
        let leaf = ShardedTensor::region_of(&key, DType::Float32, &shape, rows);
        template.insert(key, leaf);
    }
    let load = reshard::load(template, "s3://place").store(through);
    block_on(async { load.await }).unwrap();
    let seen = proxy.end();
    let (opening, chunks) = (4, tensors as usize);
    // The first archive of a form is read at both ends.
    let most = opening + 2 * chunks + 1;
    assert!(seen.requests.len() <= most, "{:#?}", seen.requests);
    let needed = tensors << 20;
    assert!(
        seen.bytes <= needed + needed / 20,
        "{} of {needed}",
        seen.bytes
    );
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_8_192_tensors_of_64_kib_are_loaded_in_200_requests() {
    let (proxy, [direct, through]) = places("small");
    let (tensors, shape) = (8_192, [16, 1_024]);
    save(&direct, tensors, shape, false);
    proxy.begin(|_| None);
    let mut template = StateDict::new();
    for t in 0..tensors {
        let key = format!("w{t:04}");
        template.insert_piece(ShardedTensor::template(&key, DType::Float32, &shape));
    }
    let load = reshard::load(template, "s3://place").store(through);
    block_on(async { load.await }).unwrap();
    let requests = proxy.end().requests.len();
    println!("{requests} requests");
    assert!(requests <= 200, "{requests}");
}
