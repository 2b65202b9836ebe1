//! Servers that speak the protocols of clouds. `cargo xtask clouds` starts them, and names them in the environment.

#![cfg(all(feature = "aws", feature = "azure"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use bytes::Bytes;
use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_object_store::ObjectStores;
use reshard_storage::{
    Durability, FileBody, Hints, IfExists, Name, OpenStore as _, Progress, ServiceFault,
    StorageError, Store, StoreExt, testkit::store_contract,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

fn endpoint(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is set by `cargo xtask clouds`"))
}

fn s3(variable: &str) -> ObjectStores {
    ObjectStores::new()
        .with_option("aws_endpoint", endpoint(variable))
        .with_option("aws_allow_http", "true")
        .with_option("aws_region", "us-east-1")
        .with_option("aws_access_key_id", "reshard")
        .with_option("aws_secret_access_key", "not-secret")
        .with_retries(2, Duration::from_secs(60))
}

fn azurite() -> ObjectStores {
    ObjectStores::new()
        .with_option("azure_storage_account_name", "devstoreaccount1")
        .with_option("azure_storage_account_key", AZURITE_KEY)
        .with_option("azure_storage_endpoint", endpoint("RESHARD_AZURITE"))
        .with_option("azure_allow_http", "true")
        .with_retries(2, Duration::from_secs(60))
}

/// Places that nobody has used.
fn places(stores: ObjectStores, bucket: &'static str) -> impl Fn() -> Arc<dyn Store> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    move || {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let url = format!("{bucket}/run {}/place-{number}", std::process::id());
        Arc::new(stores.open_place(&url).unwrap())
    }
}

/// A file of many parts, in and outside of the folder of its version.
fn large_files(store: &dyn Store) {
    let attempt = "1-1a2b3c4d5e6f7081-9";
    let bytes: Bytes = (0..17 << 20_u32).map(|i: u32| (i / 3) as u8).collect();
    block_on(async {
        let transaction = store.begin(attempt, IfExists::Refuse).await.unwrap();
        let names = [format!("{attempt}/データ/a b%20c"), "large+file".into()];
        let names = names.map(|name| Name::new(name).unwrap());
        let bodies = names
            .iter()
            .map(|name| FileBody::from_bytes(name.clone(), bytes.clone()));
        let written = transaction
            .write(bodies.collect(), Durability::Machine, Progress::none())
            .await
            .unwrap();
        let entries: Vec<_> = written.iter().map(|w| w.entry()).collect();
        let record = (Name::new("record").unwrap(), "done".into());
        transaction
            .commit(Some(record), &entries, Durability::Machine)
            .await
            .unwrap();
        for name in &names {
            let len = bytes.len() as u64;
            assert_eq!(store.read(name, 0..len).await.unwrap(), bytes, "{name}");
        }
        assert_eq!(store.files().await.unwrap().len(), 3);
    });
}

/// Parts of 5 MiB are the smallest that S3 takes.
fn small_parts() -> Hints {
    Hints::default().with_part_size(5 << 20).with_concurrency(3)
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_moto_keeps_the_contract() {
    block_on(store_contract(places(s3("RESHARD_MOTO"), "s3://reshard")));
    let stores = s3("RESHARD_MOTO").with_hints(small_parts());
    large_files(&*places(stores, "s3a://reshard")());
}

#[test]
#[ignore = "needs RESHARD_S3S; cargo xtask clouds runs it"]
fn needs_clouds_s3s_keeps_the_contract() {
    block_on(store_contract(places(s3("RESHARD_S3S"), "s3://reshard")));
    let stores = s3("RESHARD_S3S").with_hints(small_parts());
    large_files(&*places(stores, "s3://reshard")());
}

#[test]
#[ignore = "needs RESHARD_AZURITE; cargo xtask clouds runs it"]
fn needs_clouds_azurite_keeps_the_contract() {
    block_on(store_contract(places(azurite(), "az://reshard")));
    let stores = azurite().with_hints(small_parts());
    large_files(&*places(stores, "abfs://reshard")());
}

fn fault(stores: &ObjectStores, bucket: &str) -> ServiceFault {
    let store = stores.open_place(bucket).unwrap();
    let name = Name::new("a").unwrap();
    let e = block_on(store.read(&name, 0..1)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    match e {
        StorageError::Service { fault, .. } => fault,
        e => panic!("{e}"),
    }
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_moto_has_other_faults_for_wrong_buckets_than_for_missing_files() {
    let stores = s3("RESHARD_MOTO");
    assert_eq!(
        fault(&stores, "s3://nothing-here/a"),
        ServiceFault::NoBucket
    );
}

#[test]
#[ignore = "needs RESHARD_S3S; cargo xtask clouds runs it"]
fn needs_clouds_s3s_has_other_faults_for_wrong_keys_than_for_missing_files() {
    // It says of a missing bucket that the file is missing.
    let wrong = s3("RESHARD_S3S").with_option("aws_secret_access_key", "wrong");
    assert_eq!(
        fault(&wrong, "s3://reshard/a"),
        ServiceFault::Unauthenticated
    );
}

#[test]
#[ignore = "needs RESHARD_AZURITE; cargo xtask clouds runs it"]
fn needs_clouds_azurite_has_other_faults_for_wrong_containers_and_keys_than_for_missing_files() {
    let stores = azurite();
    assert_eq!(
        fault(&stores, "az://nothing-here/a"),
        ServiceFault::NoBucket
    );
    let wrong = stores.with_option("azure_storage_account_key", "d3Jvbmc=");
    // Azurite answers as Azure does to somebody who lacks the right.
    assert_eq!(fault(&wrong, "az://reshard/a"), ServiceFault::Denied);
}

/// Begins uploads and leaves them. What of them is listed, and how many are left after they were aborted.
fn uploads(variable: &str) -> Result<([usize; 2], usize), StorageError> {
    use reshard_object_store::object_store::{
        aws::AmazonS3Builder, multipart::MultipartStore, path::Path,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = AmazonS3Builder::new()
        .with_bucket_name("reshard")
        .with_endpoint(endpoint(variable))
        .with_allow_http(true)
        .with_access_key_id("reshard")
        .with_secret_access_key("not-secret")
        .build()
        .unwrap();
    let folder = format!("uploads {}", std::process::id());
    let twice = "x/データ/a b%20c&d";
    for name in [twice, twice, "x/e", "x-2/e"] {
        let path = Path::parse(format!("{folder}/{name}")).unwrap();
        runtime.block_on(client.create_multipart(&path)).unwrap();
    }
    let open = |name: &str| {
        let url = format!("s3://reshard/{folder}/{name}");
        s3(variable).open_place(&url).unwrap()
    };
    let [one, two] = ["x", "x-2"].map(open);
    let found = block_on(one.unfinished_uploads())?;
    let others = block_on(two.unfinished_uploads())?;
    for upload in &found {
        assert!(upload.began.is_some());
        block_on(one.abort_upload(upload))?;
        // It is gone by now.
        block_on(one.abort_upload(upload))?;
    }
    let left = block_on(one.unfinished_uploads())?.len();
    assert_eq!(block_on(two.unfinished_uploads())?, others);
    Ok(([found.len(), others.len()], left))
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_moto_tells_unfinished_uploads() {
    assert_eq!(uploads("RESHARD_MOTO").unwrap(), ([3, 1], 0));
}

#[test]
#[ignore = "needs RESHARD_S3S; cargo xtask clouds runs it"]
fn needs_clouds_s3s_can_not_tell_unfinished_uploads() {
    let e = uploads("RESHARD_S3S").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}

/// As the server MinIO on this machine.
#[cfg(feature = "aws")]
#[test]
fn an_endpoint_without_encryption_names_the_variable_that_allows_it() {
    let open = |allowed: &str| {
        ObjectStores::new()
            .with_option("aws_endpoint", "http://127.0.0.1:9000")
            .with_option("aws_allow_http", allowed)
            .open("s3://bucket/a")
    };
    let e = open("false").unwrap_err().to_string();
    assert!(
        e.contains("http://127.0.0.1:9000") && e.contains("AWS_ALLOW_HTTP=true"),
        "{e}"
    );
    assert!(open("true").is_ok() && open("1").is_ok());
}
