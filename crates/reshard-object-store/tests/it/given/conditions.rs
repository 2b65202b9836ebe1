//! To a service without conditional put only new versions are saved, and only those whose files nobody else can write over.

use crate::given::{
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
use reshard_model::testkit::Events;
use reshard_object_store::{ObjectStores, object_store};
use reshard_storage::{
    Durability, Entry, FileBody, Hints, IfExists, Name, PlaceKind, Progress, StorageError, Store,
    StoreExt, Transaction,
};

/// It says that it has no conditions.
#[derive(Debug, Default)]
struct Unconditional {
    objects: InMemory,
    /// Another save puts these bytes over each record at once.
    other: Option<&'static [u8]>,
}

fn not_there(operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: operation.into(),
        implementer: "Unconditional".into(),
    }
}

#[async_trait]
impl Differs for Unconditional {
    fn inner(&self) -> &InMemory {
        &self.objects
    }

    async fn put(
        &self,
        to: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        match options.mode {
            PutMode::Overwrite => {
                let put = self.objects.put_opts(to, bytes, options).await;
                match self.other {
                    Some(other) if to.filename() == Some("record") => {
                        let other = Bytes::from_static(other).into();
                        self.objects
                            .put_opts(to, other, PutOptions::default())
                            .await
                    }
                    _ => put,
                }
            }
            _ => Err(not_there("put on a condition")),
        }
    }

    async fn copy(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        match options.mode {
            CopyMode::Overwrite => self.objects.copy_opts(from, to, options).await,
            CopyMode::Create => Err(not_there("copy on a condition")),
        }
    }
}

const ATTEMPT: &str = "1-1a2b3c4d5e6f7081-9";

fn stores(other: Option<&'static [u8]>) -> ObjectStores {
    let service = Unconditional {
        other,
        ..Unconditional::default()
    };
    ObjectStores::new()
        .with_client("s3://bucket", Service::client(service))
        .with_hints(Hints::default().with_part_size(1_000))
}

fn place() -> impl Store {
    stores(None).open_place("s3://bucket/place").unwrap()
}

fn is_refused(e: &StorageError) {
    assert!(matches!(e, StorageError::Unsupported { .. }), "{e}");
    assert!(e.to_string().contains("no conditional put"), "{e}");
}

async fn written(
    begun: &dyn Transaction,
    file: String,
    bytes: impl Into<Bytes>,
) -> Result<Entry, StorageError> {
    let body = FileBody::from_bytes(name(&file), bytes.into());
    let written = begun.write(vec![body], Durability::Machine, Progress::none());
    Ok(written.await?[0].entry())
}

async fn names(store: &impl Store) -> Vec<String> {
    let files = store.files().await.unwrap().into_iter();
    files.map(|file| file.name.into()).collect()
}

fn record() -> Option<(Name, Bytes)> {
    Some((name("record"), Bytes::from_static(b"done")))
}

#[test]
fn a_new_version_is_committed_and_told() {
    for (file, len) in [("small", 10), ("large", 2_500)] {
        let store = place();
        let bytes = Bytes::from(vec![7; len]);
        let save = async || {
            let begun = store.begin(ATTEMPT, IfExists::Refuse).await.unwrap();
            // The names of an attempt are its own, so they need no condition.
            let entry = written(&*begun, format!("{ATTEMPT}/{file}"), bytes.clone()).await;
            let entries = [entry.unwrap()];
            begun.commit(record(), &entries, Durability::Machine).await
        };
        let (ended, told) = Events::only(tracing::Level::WARN).of(|| block_on(save()));
        ended.unwrap();
        assert!(told.contains("no conditional put"), "{told}");
        let files = block_on(names(&store));
        assert_eq!(files, [format!("{ATTEMPT}/{file}"), "record".into()]);

        let again = block_on(store.begin(ATTEMPT, IfExists::Refuse)).err();
        assert!(
            matches!(again, Some(StorageError::Exists { .. })),
            "{again:?}"
        );
    }
}

#[test]
fn a_file_outside_of_the_folder_is_refused() {
    for len in [10, 2_500] {
        let store = place();
        let bytes = Bytes::from(vec![7; len]);
        block_on(async {
            let begun = store.begin(ATTEMPT, IfExists::Refuse).await.unwrap();
            is_refused(
                &written(&*begun, "common.pt".into(), bytes.clone())
                    .await
                    .unwrap_err(),
            );
            begun.rollback().await.unwrap();
            assert!(store.files().await.unwrap().is_empty(), "{len}");
        });
    }
}

#[test]
fn nothing_is_replaced() {
    let store = place();
    block_on(async {
        let begun = store.begin(ATTEMPT, IfExists::Refuse).await.unwrap();
        let entry = written(&*begun, format!("{ATTEMPT}/file"), &b"old"[..]);
        let entries = [entry.await.unwrap()];
        begun
            .commit(record(), &entries, Durability::Machine)
            .await
            .unwrap();

        const SECOND: &str = "2-1a2b3c4d5e6f7081-9";
        let replace = IfExists::Replace(["record"].map(name).into());
        let begun = store.begin(SECOND, replace).await.unwrap();
        let entry = written(&*begun, format!("{SECOND}/file"), &b"new"[..]);
        let entries = [entry.await.unwrap()];
        let new = Some((name("record"), Bytes::from_static(b"new")));
        let e = begun.commit(new, &entries, Durability::Machine).await;
        is_refused(&e.unwrap_err());
        begun.rollback().await.unwrap();
        let there = names(&store).await;
        assert_eq!(there, [format!("{ATTEMPT}/file"), "record".into()]);
    });
}

/// Of two saves that commit in the same moment the last one stays, and the other one learns of it.
#[test]
fn a_record_that_another_save_has_put_meanwhile_is_a_conflict() {
    let store = stores(Some(b"other's"));
    let store = store.open_place("s3://bucket/place").unwrap();
    block_on(async {
        let begun = store.begin(ATTEMPT, IfExists::Refuse).await.unwrap();
        let entry = written(&*begun, format!("{ATTEMPT}/file"), &b"1"[..]);
        let entries = [entry.await.unwrap()];
        let ended = begun.commit(record(), &entries, Durability::Machine).await;
        assert!(
            matches!(ended, Err(StorageError::Exists { .. })),
            "{ended:?}"
        );
    });
}

#[test]
fn a_new_single_file_is_committed_and_told() {
    let store = stores(None);
    let store = store.open_place("s3://bucket/one.bin").unwrap();
    let store = store.of_kind(PlaceKind::File).unwrap();
    let save = async || {
        let begun = store.begin(ATTEMPT, IfExists::Refuse).await?;
        let entries = [written(&*begun, "one.bin".into(), &b"whole"[..]).await?];
        begun.commit(None, &entries, Durability::Machine).await
    };
    let (ended, told) = Events::only(tracing::Level::WARN).of(|| block_on(save()));
    ended.unwrap();
    assert!(told.contains("no conditional put"), "{told}");
    let there = block_on(store.read_all(&name("one.bin"), 1 << 10)).unwrap();
    assert_eq!(there.unwrap(), "whole");
    let again = block_on(save());
    assert!(
        matches!(again, Err(StorageError::Exists { .. })),
        "{again:?}"
    );
}
