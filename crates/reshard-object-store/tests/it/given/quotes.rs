//! A service whose tags have no quotes.

use crate::given::{
    name,
    service::{Differs, Service},
};
use async_trait::async_trait;
use futures::executor::block_on;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload, PutResult,
    memory::InMemory, path::Path,
};
use reshard_model::ErrorKind;
use reshard_object_store::{ObjectStorePlace, object_store, read_through};
use reshard_storage::{CachedStore, Durability, FileBody, IfExists, Progress, Result, Store};
use std::sync::Arc;

/// A service whose tags have no quotes, in no answer and in no condition.
#[derive(Debug, Default)]
struct Bare(InMemory);

fn bare(tag: Option<String>) -> Option<String> {
    tag.map(|tag| tag.trim_matches('"').to_owned())
}

fn bare_meta(meta: ObjectMeta) -> ObjectMeta {
    let e_tag = bare(meta.e_tag);
    ObjectMeta { e_tag, ..meta }
}

/// The tag that is meant. One with quotes is that of no object.
fn meant(tag: Option<String>) -> Option<String> {
    tag.map(|tag| match tag.contains('"') {
        true => "\"none\"".into(),
        false => format!("\"{tag}\""),
    })
}

#[async_trait]
impl Differs for Bare {
    fn inner(&self) -> &InMemory {
        &self.0
    }

    async fn put(
        &self,
        to: &Path,
        bytes: PutPayload,
        mut options: PutOptions,
    ) -> object_store::Result<PutResult> {
        if let PutMode::Update(version) = &mut options.mode {
            version.e_tag = meant(version.e_tag.take());
        }
        let mut put = self.0.put_opts(to, bytes, options).await?;
        put.e_tag = bare(put.e_tag);
        Ok(put)
    }

    async fn get(&self, of: &Path, mut options: GetOptions) -> object_store::Result<GetResult> {
        options.if_match = meant(options.if_match);
        let mut got = self.0.get_opts(of, options).await?;
        got.meta = bare_meta(got.meta);
        Ok(got)
    }

    fn listed(&self, meta: ObjectMeta) -> ObjectMeta {
        bare_meta(meta)
    }
}

/// Saves a version: its data and its record tell its number.
async fn save(store: &dyn Store, number: u64, if_exists: IfExists) -> Result<()> {
    let attempt = format!("1-1a2b3c4d5e6f7081-{number:x}");
    let transaction = store.begin(&attempt, if_exists).await?;
    let file = name(&format!("{attempt}/a"));
    let body = FileBody::from_bytes(file, number.to_string().into());
    let written = transaction
        .write(vec![body], Durability::Machine, Progress::none())
        .await?;
    let record = (name("record"), attempt.into());
    let files = [written[0].entry()];
    transaction
        .commit(Some(record), &files, Durability::Machine)
        .await
}

#[test]
fn a_client_whose_tags_have_no_quotes_reads_and_replaces() {
    let place =
        ObjectStorePlace::new(Service::client(Bare::default()), "s3://bucket/a", "a").unwrap();
    let replace = || IfExists::Replace(Arc::new([name("record")]));
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        save(&place, 1, IfExists::Refuse).await.unwrap();
        let cached = CachedStore::new(Arc::new(place.clone()), read_through(dir.path(), 1 << 20));
        for store in [&place as &dyn Store, &cached] {
            let pinned = store.pinned().await.unwrap().unwrap();
            let tags = pinned.tags(&name("record")).await.unwrap().unwrap();
            assert_eq!(tags.files.len(), 2);
            for _ in 0..2 {
                let record = pinned
                    .read_all(&name("record"), 100)
                    .await
                    .unwrap()
                    .unwrap();
                let file = name(&format!("{}/a", std::str::from_utf8(&record).unwrap()));
                assert_eq!(pinned.read(&file, 0..1).await.unwrap(), "1");
            }
        }

        // One that replaces the record after somebody else has done so has no success.
        let late = place
            .begin("1-1a2b3c4d5e6f7081-9", replace())
            .await
            .unwrap();
        let pinned = place.pinned().await.unwrap().unwrap();
        assert!(pinned.tags(&name("record")).await.unwrap().is_some());
        save(&place, 2, replace()).await.unwrap();
        let e = late
            .commit(Some((name("record"), "9".into())), &[], Durability::Machine)
            .await
            .unwrap_err();
        assert!(e.to_string().contains("s3://bucket/a"), "{e}");
        let record = place.read_all(&name("record"), 100).await.unwrap();
        assert_eq!(record.unwrap(), "1-1a2b3c4d5e6f7081-2");
        let e = pinned.read(&name("record"), 0..1).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    });
}
