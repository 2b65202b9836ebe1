//! Every checkpoint that other programs wrote is the same in an object store, in a bucket of S3 and behind a web server.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail and speak as tests do"
)]

mod formats;
mod known;
mod unsound;

use futures::executor::block_on;
use reshard::{
    Checkpoint,
    storage::{Durability, FileBody, IfExists, Name, Progress, Store},
    strategy::VerifyReport,
};
#[cfg(feature = "clouds")]
use reshard_object_store::ObjectStores;
use std::{fs, path::Path};

/// All files below a folder; their names have this before their path in it.
fn files(folder: &Path, before: &str, out: &mut Vec<FileBody>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let last = path.file_name().unwrap().to_str().unwrap();
        let name = format!("{before}{last}");
        if path.is_dir() {
            files(&path, &format!("{name}/"), out);
            continue;
        }
        let name = Name::new(name).unwrap();
        out.push(FileBody::from_bytes(name, fs::read(&path).unwrap().into()));
    }
}

/// What a full check says. Only a listing tells of files of others, so without one nothing is said of what is not covered.
fn verified(checkpoint: &Checkpoint, lists: bool) -> reshard::Result<VerifyReport> {
    let mut report = block_on(checkpoint.verify(true, Progress::default()))?;
    if !lists {
        report.not_covered = Default::default();
    }
    Ok(report)
}

/// Puts files into a store, as they are, and last this one.
fn put_files(bodies: Vec<FileBody>, last: (Name, Vec<u8>), store: &dyn Store) {
    block_on(async {
        let attempt = "1-1a2b3c4d5e6f7081-9";
        let place = store.begin(attempt, IfExists::Refuse).await.unwrap();
        let written = place
            .write(bodies, Durability::Machine, Progress::none())
            .await
            .unwrap();
        let entries: Vec<_> = written.iter().map(|w| w.entry()).collect();
        let (name, bytes) = last;
        place
            .commit(Some((name, bytes.into())), &entries, Durability::Machine)
            .await
            .unwrap();
    });
}

/// Buckets of the server that the environment names.
#[cfg(feature = "clouds")]
fn bucket_of_moto() -> ObjectStores {
    let endpoint = std::env::var("RESHARD_MOTO").unwrap();
    ObjectStores::new()
        .with_option("aws_endpoint", endpoint)
        .with_option("aws_allow_http", "true")
        .with_option("aws_region", "us-east-1")
        .with_option("aws_access_key_id", "reshard")
        .with_option("aws_secret_access_key", "not-secret")
        .with_retries(2, std::time::Duration::from_secs(60))
}
