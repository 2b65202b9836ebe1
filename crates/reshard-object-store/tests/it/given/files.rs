//! A service that keeps files, as s3s-fs does.

use crate::given::service::{Differs, Service};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, executor::block_on, stream, stream::BoxStream};
use object_store::{ObjectMeta, ObjectStoreExt, Result, memory::InMemory, path::Path};
use reshard_object_store::{ObjectStores, object_store};
use reshard_storage::{Store, testkit::store_contract};
use std::sync::Arc;

/// Its listings have no tags, and it fails to remove what lies below an object, and all that is removed with it.
#[derive(Debug, Default)]
struct Files(InMemory);

#[async_trait]
impl Differs for Files {
    fn inner(&self) -> &InMemory {
        &self.0
    }

    fn remove(
        self: Arc<Self>,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let work = async move {
            let paths: Vec<Path> = paths.try_collect().await?;
            for path in &paths {
                let folder: Path = path.parts().take(path.parts_count() - 1).collect();
                if self.0.head(&folder).await.is_ok() {
                    let source = "InternalError".into();
                    let store = "Files";
                    return Err(object_store::Error::Generic { store, source });
                }
                self.0.delete(path).await?;
            }
            Ok(stream::iter(paths.into_iter().map(Ok)))
        };
        stream::once(work).try_flatten().boxed()
    }

    fn listed(&self, meta: ObjectMeta) -> ObjectMeta {
        ObjectMeta {
            e_tag: None,
            version: None,
            ..meta
        }
    }
}

#[test]
fn a_service_that_keeps_files_and_lists_no_tags_keeps_the_contract() {
    block_on(store_contract(|| {
        let client = Service::client(Files::default());
        let stores = ObjectStores::new().with_client("s3://bucket", client);
        Arc::new(stores.open_place("s3://bucket/place").unwrap()) as Arc<dyn Store>
    }));
}
