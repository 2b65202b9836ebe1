//! What the rules have in common.

use crate::{
    Durability, Entry, FileBody, IfExists, Name, Progress, Result, Store, StoreExt, Written,
};
use bytes::Bytes;
use reshard_model::ErrorKind;
use std::sync::Arc;

pub(super) fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

pub(super) fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len)
        .map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

pub(super) fn file(n: &str, bytes: &Bytes) -> FileBody {
    FileBody::from_bytes(name(n), bytes.clone())
}

pub(super) fn record() -> (Name, Bytes) {
    (name("record"), Bytes::from_static(b"done"))
}

pub(super) fn entries(written: &[Written]) -> Vec<Entry> {
    written.iter().map(Written::entry).collect()
}

pub(super) fn replace(files: &[&str]) -> IfExists {
    IfExists::Replace(files.iter().map(|f| name(f)).collect())
}

pub(super) async fn committed(
    store: &Arc<dyn Store>,
    attempt: &str,
    if_exists: IfExists,
    files: &[(&str, Bytes)],
) {
    let transaction = store.begin(attempt, if_exists).await.unwrap();
    let bodies = files.iter().map(|(n, b)| file(n, b)).collect();
    let written = transaction
        .write(bodies, Durability::Process, Progress::none())
        .await
        .unwrap();
    let want: Vec<_> = files
        .iter()
        .map(|(n, b)| (name(n), b.len() as u64))
        .collect();
    let got: Vec<_> = written.iter().map(|w| (w.name.clone(), w.bytes)).collect();
    assert_eq!(got, want, "in the order given");
    transaction
        .commit(Some(record()), &entries(&written), Durability::Process)
        .await
        .unwrap();
}

pub(super) async fn names(store: &Arc<dyn Store>) -> Vec<String> {
    store
        .files()
        .await
        .unwrap()
        .into_iter()
        .map(|e| e.name.to_string())
        .collect()
}

pub(super) fn kind<T>(outcome: Result<T>) -> ErrorKind {
    match outcome {
        Ok(_) => panic!("this should have failed"),
        Err(e) => e.kind(),
    }
}
