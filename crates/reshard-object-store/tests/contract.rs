//! Places in object stores keep the contract of stores.

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, executor::block_on, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    memory::InMemory, path::Path,
};
use reshard_object_store::{ObjectStorePlace, ObjectStores, object_store};
use reshard_storage::{Hints, Store, testkit::store_contract};
use std::{fmt, sync::Arc};

#[test]
fn a_place_in_memory_keeps_the_contract() {
    block_on(store_contract(|| Arc::new(ObjectStorePlace::in_memory())));
}

#[test]
fn small_parts_and_few_requests_at_once_keep_the_contract() {
    let hints = Hints::default()
        .with_part_size(70_000)
        .with_coalesce_gap(0)
        .with_concurrency(2);
    block_on(store_contract(|| {
        let bucket = Arc::new(InMemory::new());
        let stores = ObjectStores::new()
            .with_client("s3://bucket", bucket)
            .with_hints(hints);
        let place = stores.open_place("s3://bucket/deep/er/place").unwrap();
        Arc::new(place) as Arc<dyn Store>
    }));
}

/// A service as s3s-fs is one: its listings have no tags, and it fails to remove what lies below an object, and all that is removed with it.
#[derive(Debug, Default)]
struct Files(Arc<InMemory>);

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Files")
    }
}

fn untagged(meta: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        e_tag: None,
        version: None,
        ..meta
    }
}

#[async_trait]
impl ObjectStore for Files {
    async fn put_opts(
        &self,
        to: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.0.put_opts(to, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, of: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(of, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let inner = Arc::clone(&self.0);
        let work = async move {
            let paths: Vec<Path> = paths.try_collect().await?;
            for path in &paths {
                let folder: Path = path.parts().take(path.parts_count() - 1).collect();
                if inner.head(&folder).await.is_ok() {
                    let source = "InternalError".into();
                    let store = "Files";
                    return Err(object_store::Error::Generic { store, source });
                }
                inner.delete(path).await?;
            }
            Ok(futures::stream::iter(paths.into_iter().map(Ok)))
        };
        futures::stream::once(work).try_flatten().boxed()
    }

    fn list(&self, below: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(below).map_ok(untagged).boxed()
    }

    async fn list_with_delimiter(&self, below: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.0.list_with_delimiter(below).await?;
        listed.objects = listed.objects.into_iter().map(untagged).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[test]
fn a_service_that_keeps_files_and_lists_no_tags_keeps_the_contract() {
    block_on(store_contract(|| {
        let stores = ObjectStores::new().with_client("s3://bucket", Arc::new(Files::default()));
        Arc::new(stores.open_place("s3://bucket/place").unwrap()) as Arc<dyn Store>
    }));
}
