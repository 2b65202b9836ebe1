//! Services whose listings say less of an object than they want in a condition.

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
use reshard_object_store::{ObjectStorePlace, object_store};
use reshard_storage::{Durability, IfExists, Result, StorageError, Store};
use std::sync::Arc;

/// Listings have no versions, as those of Google Cloud, and no quotes, as those of Azure. A condition needs both.
#[derive(Debug, Default)]
struct Strict(InMemory);

/// The version of an object with this tag.
fn version(tag: Option<&str>) -> Option<String> {
    tag.map(|tag| format!("v{}", tag.trim_matches('"')))
}

fn no(what: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "Strict",
        source: what.into(),
    }
}

#[async_trait]
impl Differs for Strict {
    fn inner(&self) -> &InMemory {
        &self.0
    }

    async fn put(
        &self,
        to: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        if let PutMode::Update(of) = &options.mode {
            let tag = of.e_tag.as_deref();
            if of.version.is_none() {
                return Err(no("missing version"));
            }
            if of.version != version(tag) || !tag.is_some_and(|tag| tag.starts_with('"')) {
                return Err(no("400 Bad Request: invalid header"));
            }
        }
        self.0.put_opts(to, bytes, options).await
    }

    async fn get(&self, of: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let mut got = self.0.get_opts(of, options).await?;
        got.meta.version = version(got.meta.e_tag.as_deref());
        Ok(got)
    }

    fn listed(&self, meta: ObjectMeta) -> ObjectMeta {
        ObjectMeta {
            e_tag: meta.e_tag.map(|tag| tag.trim_matches('"').to_owned()),
            ..meta
        }
    }
}

/// A place in such a bucket.
fn place() -> ObjectStorePlace {
    ObjectStorePlace::new(Service::client(Strict::default()), "gs://bucket/a", "a").unwrap()
}

fn replace() -> IfExists {
    IfExists::Replace(Arc::new([name("record")]))
}

/// Commits a version that is only its record. `between` happens after it has begun.
async fn save(
    store: &dyn Store,
    (n, bytes): (u32, &'static str),
    if_exists: IfExists,
    between: impl AsyncFnOnce(),
) -> Result<()> {
    let attempt = format!("1-1a2b3c4d5e6f7081-{n}");
    let version = store.begin(&attempt, if_exists).await?;
    between().await;
    let record = Some((name("record"), bytes.into()));
    version.commit(record, &[], Durability::Machine).await
}

#[test]
fn a_record_is_replaced_where_listings_have_no_versions_and_no_quotes_around_tags() {
    let place = place();
    block_on(async {
        save(&place, (1, "one"), IfExists::Refuse, async || ())
            .await
            .unwrap();
        save(&place, (2, "two"), replace(), async || ())
            .await
            .unwrap();
        save(&place, (3, "three"), replace(), async || ())
            .await
            .unwrap();
        let record = place.read_all(&name("record"), 10).await.unwrap();
        assert_eq!(record.unwrap(), "three");
    });
}

#[test]
fn a_record_that_was_replaced_or_removed_meanwhile_is_kept_as_it_is() {
    let place = place();
    block_on(async {
        save(&place, (1, "one"), IfExists::Refuse, async || ())
            .await
            .unwrap();
        let other = async || {
            save(&place, (3, "three"), replace(), async || ())
                .await
                .unwrap()
        };
        let e = save(&place, (2, "two"), replace(), other)
            .await
            .unwrap_err();
        assert!(matches!(e, StorageError::Changed { .. }), "{e}");
        let record = place.read_all(&name("record"), 10).await.unwrap();
        assert_eq!(record.unwrap(), "three");

        let removed = async || place.remove(&[name("record")]).await.unwrap();
        let e = save(&place, (4, "four"), replace(), removed)
            .await
            .unwrap_err();
        assert!(matches!(e, StorageError::Changed { .. }), "{e}");
        assert!(place.read_all(&name("record"), 10).await.unwrap().is_none());
    });
}
