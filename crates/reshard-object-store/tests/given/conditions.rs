//! A service without conditional put can be read. Nothing is committed there, because two saves could mix their versions.

use crate::{
    name,
    service::{Differs, Service},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use object_store::{
    CopyMode, CopyOptions, ObjectStore, PutMode, PutOptions, PutPayload, PutResult,
    memory::InMemory, path::Path,
};
use reshard_object_store::{ObjectStores, object_store};
use reshard_storage::{
    Durability, FileBody, Hints, IfExists, Progress, StorageError, Store, StoreExt,
};

/// It says that it has no conditions.
#[derive(Debug, Default)]
struct Unconditional(InMemory);

fn not_there(operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: operation.into(),
        implementer: "Unconditional".into(),
    }
}

#[async_trait]
impl Differs for Unconditional {
    fn inner(&self) -> &InMemory {
        &self.0
    }

    async fn put(
        &self,
        to: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        match options.mode {
            PutMode::Overwrite => self.0.put_opts(to, bytes, options).await,
            _ => Err(not_there("put on a condition")),
        }
    }

    async fn copy(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        match options.mode {
            CopyMode::Overwrite => self.0.copy_opts(from, to, options).await,
            CopyMode::Create => Err(not_there("copy on a condition")),
        }
    }
}

const ATTEMPT: &str = "1-1a2b3c4d5e6f7081-9";

fn place() -> impl Store {
    let stores = ObjectStores::new()
        .with_client("s3://bucket", Service::client(Unconditional::default()))
        .with_hints(Hints::default().with_part_size(1_000));
    stores.open_place("s3://bucket/place").unwrap()
}

fn is_refused(e: &StorageError) {
    assert!(matches!(e, StorageError::Unsupported { .. }), "{e}");
    assert!(e.to_string().contains("no conditional put"), "{e}");
}

#[test]
fn a_service_that_says_that_it_has_no_conditions_gets_no_commit_record() {
    for (file, len) in [("small", 10), ("large", 2_500)] {
        let store = place();
        let bytes = Bytes::from(vec![7; len]);
        block_on(async {
            let begun = store.begin(ATTEMPT, IfExists::Refuse).await.unwrap();
            let write = async |file: &str| {
                let body = FileBody::from_bytes(name(file), bytes.clone());
                let written = begun.write(vec![body], Durability::Machine, Progress::none());
                written.await
            };
            // The names of an attempt are its own, so they need no condition.
            let written = write(&format!("{ATTEMPT}/{file}")).await.unwrap();
            is_refused(&write(file).await.unwrap_err());
            let entries = [written[0].entry()];
            let record = Some((name("record"), Bytes::from_static(b"done")));
            let e = begun.commit(record, &entries, Durability::Machine).await;
            is_refused(&e.unwrap_err());
            begun.rollback().await.unwrap();
            assert!(store.files().await.unwrap().is_empty(), "{file}");
        });
    }
}
